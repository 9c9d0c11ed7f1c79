"""The layered checklist as functions: one module a layer, each answers with a `Report`.

| layer         | module        |
| ------------- | ------------- |
| process       | `environment`, `tracebacks`, `history`, `comparison` |
| data          | `data`        |
| values        | `values`      |
| tiny batch    | `tiny_batch`  |
| gradient path | `gradient_path`, `nonfinite` |
| update        | `update`      |
| evaluation    | `evaluation`  |

`checkup` runs the layers in order; `monitor` watches a loop. Every check leaves what it was given as it was.
"""
