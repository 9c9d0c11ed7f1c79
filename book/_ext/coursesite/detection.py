"""`detection`: the detection matrix of the diagnostics, from its stored result, which the build keeps current."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

from coursesite.execution import ROOT
from coursesite.markdown import parsed, table
from rerail.briefs import plain

if TYPE_CHECKING:
    from sphinx.application import Sphinx

RESULT = ROOT / "benchmarks/detection/result.json"


def setup(app: Sphinx) -> None:
    """Register the directive."""
    app.add_directive("detection", Detection)


class Detection(SphinxDirective):
    """A part of the matrix: `totals`, `faults`, `checks` or `healthy`."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Read the result and build the part."""
        self.env.note_dependency(str(RESULT))
        result: dict[str, Any] = json.loads(RESULT.read_text("utf-8"))
        parts = {"totals": _totals, "faults": _faults, "checks": _checks, "healthy": _healthy}
        if self.arguments[0] not in parts:
            raise self.error(f"the matrix has the parts {', '.join(parts)}, got {self.arguments[0]!r}")
        return parsed(self, parts[self.arguments[0]](result))


def _totals(result: dict[str, Any]) -> list[str]:
    count = result["totals"]
    rows = [
        ["faults, all", f"{count['faults']}", f"layer {count['right_layer']}, cause {count['right_cause']}"],
        [
            "faults that the goals are set on", f"{count['starred']}",
            f"layer {count['starred_right_layer']} (goal 31), cause {count['starred_right_cause']} (goal 27)",
        ],
        ["wrong fixes", f"{count['wrong_fixes']}", f"{count['wrong_fixes_flagged']} still flagged (goal 90 %)"],
        ["right fixes", f"{count['right_fixes']}", f"{count['right_fixes_accepted']} accepted (goal all)"],
        ["healthy runs", f"{count['healthy']}", f"{count['healthy_fault']} with a fault (goal 0)"],
        ["", "", f"{count['healthy_suspicious']} with a question (goal at most 5 %)"],
    ]  # fmt: skip
    return table(("What", "Cases", "Verdicts"), rows)


def _faults(result: dict[str, Any]) -> list[str]:
    rows = []
    for row in result["faults"]:
        status, _, cause = row["verdict"] or ["nothing found", "", ""]
        star = " ★" if row["starred"] else ""
        wrong = f"{sum(each is not None for each in row['wrong'].values())}/{len(row['wrong'])}"
        right = f"{sum(each is None for each in row['right'].values())}/{len(row['right'])}"
        rows.append([f"{row['ident']}{star}", plain(row["title"]), f"{status} `{cause}`", f"{wrong}; {right}"])
    return table(("Fault", "What is wrong", "Verdict", "Repairs: wrong flagged; right accepted"), rows)


def _checks(result: dict[str, Any]) -> list[str]:
    """For each check: which faults it names, about which it asks, and on how many it was silent."""
    names = dict.fromkeys(name for row in result["faults"] for name in row["checks"])
    rows = []
    for name in sorted(names):
        by_status: dict[str, list[str]] = {}
        for row in result["faults"]:
            if name in row["checks"]:
                by_status.setdefault(row["checks"][name], []).append(row["ident"])
        quiet = len(by_status.get("ok", []))
        other = len(by_status.get("unknown", [])) + len(by_status.get("not_applicable", []))
        found = (", ".join(by_status.get(status, [])) or "none" for status in ("fault", "suspicious"))
        rows.append([f"`{name}`", *found, str(quiet), str(other)])
    return table(("Check", "fault", "suspicious", "ok", "no answer"), rows)


def _healthy(result: dict[str, Any]) -> list[str]:
    by_name: dict[str, list[dict[str, Any]]] = {}
    for row in result["healthy"]:
        by_name.setdefault(row["name"], []).append(row)
    rows = []
    for name, runs in by_name.items():
        statuses = [run["status"] for run in runs]
        told = ", ".join(f"{status} {statuses.count(status)}" for status in dict.fromkeys(statuses))
        rows.append([plain(name), str(len(runs)), str(sum(run["checks"] for run in runs)), told])
    return table(("Healthy run", "Variations", "Checks asked", "Verdicts"), rows)
