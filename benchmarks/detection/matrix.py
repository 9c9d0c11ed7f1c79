"""
The detection matrix: every fault by every check, its wrong and right repairs, and the healthy runs.

`python benchmarks/detection/matrix.py` computes it where the library or the cases have changed since the stored result,
which the book shows; with `--anew` in any case. The stored result is `benchmarks/detection/result.json`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
RESULT = HERE / "result.json"
sys.path[:0] = [str(HERE.parent), str(ROOT / "src")]


def source_digest() -> str:
    """Return a digest of all that the result depends on: the library, the cases, the version of torch."""
    from importlib.metadata import version

    state = hashlib.sha256(version("torch").partition("+")[0].encode())
    for path in sorted([*(ROOT / "src/rerail/diagnostics").glob("*.py"), *HERE.glob("*.py")]):
        state.update(path.name.encode() + path.read_bytes())
    return state.hexdigest()[:16]


def current(*, anew: bool = False) -> dict[str, Any]:
    """Return the result: the stored one where nothing has changed, else a new one, which is stored."""
    if not anew and RESULT.exists():
        stored: dict[str, Any] = json.loads(RESULT.read_text("utf-8"))
        if stored["source"] == source_digest():
            return stored
    result = computed()
    RESULT.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", "utf-8")
    return result


def computed() -> dict[str, Any]:
    """Ask every check about every case."""
    from detection.faults import FAULTS
    from detection.healthy import healthy_cases

    faults = [fault_row(fault) for fault in FAULTS]
    healthy = [healthy_row(name, variation, make) for name, variation, make in healthy_cases()]
    return {"source": source_digest(), "totals": totals(faults, healthy), "faults": faults, "healthy": healthy}


def fault_row(fault: Any) -> dict[str, Any]:
    """Ask every check about one fault, its wrong fixes and its right ones."""
    from detection.case import primary

    found = asked(fault.make, "broken")
    verdict = primary(found)
    return {
        "ident": fault.ident,
        "title": fault.title,
        "starred": fault.starred,
        "layer": fault.layer,
        "causes": list(fault.causes),
        "verdict": None if verdict is None else [verdict.status, verdict.layer, verdict.cause],
        "checks": {report.check: report.status for report in found},
        "wrong": {name: _cause(primary(asked(fault.make, name))) for name in fault.wrong},
        "right": {name: _cause(primary(asked(fault.make, name))) for name in fault.right},
    }


def healthy_row(name: str, variation: str, make: Any) -> dict[str, Any]:
    """Ask every check about one healthy run."""
    found = asked(lambda _: make(), "")
    statuses = {finding.status for report in found for finding in report.findings}
    status = next((each for each in ("fault", "suspicious", "unknown") if each in statuses), "ok")
    causes = sorted({cause for report in found for cause in report.causes})
    return {"name": name, "variation": variation, "status": status, "causes": causes, "checks": len(found)}


def asked(make: Any, variant: str) -> list[Any]:
    """Build a case in the same state of the generators, and ask every check."""
    import torch
    from detection.case import quiet, reports

    with quiet():
        torch.manual_seed(0)
        return list(reports(make(variant)))


def totals(faults: list[dict[str, Any]], healthy: list[dict[str, Any]]) -> dict[str, Any]:
    """Count what the goals are set on."""
    starred = [row for row in faults if row["starred"]]
    wrong = [cause for row in faults for cause in row["wrong"].values()]
    right = [cause for row in faults for cause in row["right"].values()]
    return {
        "faults": len(faults),
        "right_layer": sum(_layer_is_right(row) for row in faults),
        "right_cause": sum(_cause_is_right(row) for row in faults),
        "starred": len(starred),
        "starred_right_layer": sum(_layer_is_right(row) for row in starred),
        "starred_right_cause": sum(_cause_is_right(row) for row in starred),
        "wrong_fixes": len(wrong),
        "wrong_fixes_flagged": sum(cause is not None for cause in wrong),
        "right_fixes": len(right),
        "right_fixes_accepted": sum(cause is None for cause in right),
        "healthy": len(healthy),
        "healthy_fault": sum(row["status"] == "fault" for row in healthy),
        "healthy_suspicious": sum(row["status"] == "suspicious" for row in healthy),
    }


def _layer_is_right(row: dict[str, Any]) -> bool:
    return row["verdict"] is not None and row["verdict"][1] == row["layer"]


def _cause_is_right(row: dict[str, Any]) -> bool:
    return row["verdict"] is not None and row["verdict"][2] in row["causes"]


def _cause(finding: Any) -> str | None:
    return None if finding is None else finding.cause


def main() -> None:
    """Compute what is not stored, and print the totals."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[1])  # type: ignore[union-attr]
    options.add_argument("--anew", action="store_true", help="compute also where nothing has changed")
    begin = time.monotonic()
    result = current(anew=options.parse_args().anew)
    for name, count in result["totals"].items():
        print(f"{name:22} {count}")
    print(f"{'seconds':22} {time.monotonic() - begin:.0f}")


if __name__ == "__main__":
    main()
