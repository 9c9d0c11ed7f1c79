"""The layered checklist as functions: one module a layer, each answers with a `Report`.

| layer         | modules                                                                                   |
| ------------- | ----------------------------------------------------------------------------------------- |
| process       | `environment`, `machine`, `masking`, `digests`, `failures`, `tracebacks`, `trace_reader`  |
|               | `history`, `reading`, `curves`, `comparison`, `resuming`, `reporting`                     |
| data          | `data`, `reads`, `leak`, `rows`                                                           |
| values        | `loss_contract`, `loss_forms`, `spying`, `values`                                         |
| tiny batch    | `tiny_batch`                                                                              |
| gradient path | `gradient_path`, `activations`, `graph`, `gradient_check`, `nonfinite`, `origins`,        |
|               | `guard`                                                                                   |
| update        | `update`, `entries`, `watching`, `accumulation`, `replicas`                               |
| evaluation    | `evaluation`, `metrics`, `modes`                                                          |

All use `finding` (causes, findings, reports), `state` (leave no trace) and `calling` (how a model is called).
`checkup` runs the layers in order; `monitor` watches a loop. Every check leaves what it was given as it was.
"""
