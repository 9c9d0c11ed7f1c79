"""Debug training runs: graded practice, and the checks behind it.

The diagnostics' names are imported when they are first used: `import rerail` costs nothing, and needs no torch.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_MODULE_BY_NAME = {
    "Cause": "finding", "Finding": "finding", "Report": "finding", "FaultFound": "finding", "CannotAnswer": "finding",
    "digest": "state", "untouched": "state",
    "env_record": "environment", "env_diff": "environment", "EnvRecord": "environment",
    "classify_failure": "failures",
    "minify_traceback": "tracebacks", "traceback_signature": "tracebacks",
    "diagnose_history": "history", "read_history": "reading",
    "compare_steps": "comparison", "run_report": "reporting", "Setup": "comparison", "Trial": "comparison",
    "resume_check": "resuming", "load_report": "resuming", "snapshot_check": "resuming",
    "replica_report": "replicas",
    "split_audit": "data", "reads_audit": "reads", "fit_leak_test": "leak",
    "check_loss_contract": "loss_contract", "check_values": "values",
    "overfit_batch": "tiny_batch",
    "gradient_report": "gradient_path", "graph_growth": "graph", "gradient_check": "gradient_check",
    "first_nonfinite": "nonfinite", "finite_guard": "guard",
    "update_report": "update", "accumulation_check": "accumulation", "optimizer_audit": "entries",
    "evaluation_guard": "evaluation", "evaluation_report": "evaluation",
    "metric_check": "metrics", "reduction_check": "metrics",
    "checkup": "checkup", "Monitor": "monitor",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import a public name of the diagnostics at its first use."""
    module = _MODULE_BY_NAME.get(name)
    if module is None:
        raise AttributeError(f"module 'rerail' has no attribute {name!r}; `dir(rerail)` shows its names")
    return getattr(importlib.import_module(f"rerail.diagnostics.{module}"), name)


def __dir__() -> list[str]:
    return ["__version__", *sorted(_MODULE_BY_NAME)]
