"""A report of a failure and its repair, to paste where somebody else will read it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rerail.diagnostics.environment import env_record
from rerail.diagnostics.finding import Report


def run_report(
    comparison: Report,
    *,
    command: str | None = None,
    environment: Any = None,
    modes: tuple[str, ...] | list[str] = ("eager", "cpu"),
) -> str:
    """Write a report of a failure and its repair, to paste into an issue: Markdown, without paths of home folders.

    Args:
        comparison: What `compare_steps` found.
        command: The minimal command that reproduces it; by default that of this process.
        environment: What `env_record` gave; by default it is recorded now.
        modes: What was exercised. The report says that all other modes were not.

    Returns:
        The text: command, environment, baseline failure, candidate outcome, modes, repeats.
    """
    record = environment if environment is not None else env_record()
    facts = comparison.facts
    lines = [
        "## Reproduction",
        f"Command: `{command or record.to_dict().get('command', 'unknown')}`",
        "",
        "```text",
        str(record),
        "```",
        "",
        *(f"{side.title()}: {facts.get(side, 'not run')}{_count(facts, side)}" for side in ("baseline", "candidate")),
        f"Repeats: {facts.get('repeats', 0)}, all counted; seeds from {facts.get('seed', 0)}",
        f"Modes exercised: {', '.join(modes)}. Not exercised: other devices and precisions, compiled, distributed.",
        f"Verdict: {comparison.status}",
        *(f"- {finding.cause}: {finding.says}" for finding in comparison.findings),
    ]
    return "\n".join(lines)


def _count(facts: Mapping[str, Any], side: str) -> str:
    shown = facts.get(f"{side}_shown")
    return "" if shown is None else f"; shows the symptom in {shown} of {facts['repeats']} run(s)"
