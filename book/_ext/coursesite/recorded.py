"""Recorded run: a curve, measurements that one may ask for, and causes to choose from. For cells of the book."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

WIDTH, HEIGHT = 640, 240
LEFT, RIGHT, TOP, BOTTOM = 58, 16, 26, 34  # room for labels
DASHES = ("", "7 4", "2 4")  # lines differ without colour too


@dataclass(frozen=True)
class RecordedRun:
    """
    A diagnosis from a really trained run, shown by a notebook as HTML that works without a script.

    Args:
        curve: Values by step, or a mapping of such series by their names; nan and inf end a line, and are marked.
        measurements: What a reader may look at, by the question that it answers: a number or a text.
        causes: The reason why it is the cause, or is not, by cause; in the order in which they are offered.
        right: The cause that the measurements point to.
        name: Short and unique on its page: ids are made from it.
        question: What is asked.
        log: Whether the vertical axis is logarithmic.
    """

    curve: Mapping[str, Sequence[float]] | Sequence[float]
    measurements: Mapping[str, Any]
    causes: Mapping[str, str]
    right: str
    name: str
    question: str = "What holds this run back?"
    log: bool = False
    horizontal: str = "step"

    def __post_init__(self) -> None:
        """Refuse a card that has no right answer, or one that gives it away."""
        if self.right not in self.causes:
            raise ValueError(f"{self.right!r} is none of the causes {list(self.causes)}; `right` must be one of them")
        if len(self.causes) < 2 or not self.measurements:
            raise ValueError(
                f"a recorded run needs two causes and a measurement, got {len(self.causes)} and "
                f"{len(self.measurements)}; add rivals that a reader would think of"
            )

    @property
    def series(self) -> dict[str, list[float]]:
        """The curve as named series of numbers."""
        named = self.curve if isinstance(self.curve, Mapping) else {"loss": self.curve}
        return {name: [float(value) for value in values] for name, values in named.items()}

    def _repr_html_(self) -> str:
        """Return the card."""
        key = f"recorded-{self.name}"
        looks = "".join(_measurement(label, value) for label, value in self.measurements.items())
        choices = "".join(self._choice(key, i, cause, reason) for i, (cause, reason) in enumerate(self.causes.items()))
        return (
            f'<section class="recorded-run" aria-labelledby="{key}">'
            f'<p class="recorded-title" id="{key}">{html.escape(self.question)}</p>'
            f'<div class="recorded-curve">{drawn(self.series, log=self.log, horizontal=self.horizontal)}</div>'
            f'<div class="recorded-looks"><p>Measurements of this run. Open as few as you need:</p>{looks}</div>'
            f"<fieldset><legend>The cause is that</legend>{choices}</fieldset></section>"
        )

    def _choice(self, key: str, number: int, cause: str, reason: str) -> str:
        ident, right = f"{key}-{number}", cause == self.right
        verdict = "Yes" if right else "No"
        return (
            f'<div class="recorded-cause"><input type="radio" name="{key}" id="{ident}" aria-describedby="{ident}-why">'
            f'<label for="{ident}">{html.escape(cause)}</label>'
            f'<p class="recorded-why {"right" if right else "wrong"}" id="{ident}-why">'
            f"<strong>{verdict}.</strong> {html.escape(reason)}</p></div>"
        )


def _measurement(label: str, value: Any) -> str:
    if hasattr(value, "item"):
        value = value.item()
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    shown = f"<pre>{html.escape(text)}</pre>" if "\n" in text else f"<p>{html.escape(text)}</p>"
    return f"<details><summary>{html.escape(label)}</summary>{shown}</details>"


def drawn(series: Mapping[str, Sequence[float]], *, log: bool = False, horizontal: str = "step") -> str:
    """Draw series as an SVG whose colours are those of the page, with a sentence for those who cannot see it."""
    values = [value for values in series.values() for value in values]
    points = [value for value in values if math.isfinite(value) and (value > 0 or not log)]
    if not points:
        raise ValueError("the curve has no finite value to draw; record the steps before it broke, too")
    scale = _Scale(min(points), max(points), max(len(values) for values in series.values()), log)
    lines = [_line(name, values, scale, i) for i, (name, values) in enumerate(series.items())]
    legend = [_legend(name, i) for i, name in enumerate(series)]
    says = html.escape(". ".join(_told(name, values, horizontal) for name, values in series.items()))
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{says}">'
        f"{scale.axes(horizontal)}{''.join(lines)}{''.join(legend)}</svg>"
    )


class _Scale:
    """From values to places in the picture."""

    def __init__(self, low: float, high: float, steps: int, log: bool) -> None:
        self.log, self.last = log, max(steps - 1, 1)
        low, high = self.value(low), self.value(high)
        margin = 0.05 * (high - low) or 0.5
        self.low, self.high = low - margin, high + margin

    def value(self, number: float) -> float:
        return math.log10(number) if self.log else number

    def x(self, step: float) -> float:
        return round(LEFT + (WIDTH - LEFT - RIGHT) * step / self.last, 1)

    def y(self, number: float) -> float:
        share = (self.value(number) - self.low) / (self.high - self.low)
        return round(HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * share, 1)

    def axes(self, horizontal: str) -> str:
        floor = HEIGHT - BOTTOM
        parts = [f'<path class="axis" d="M{LEFT} {TOP}V{floor}H{WIDTH - RIGHT}"/>']
        for share in (0.0, 0.5, 1.0):
            inner = self.low + (self.high - self.low) * (0.05 + 0.9 * share)
            place = round(floor - (HEIGHT - TOP - BOTTOM) * (0.05 + 0.9 * share), 1)
            label = f"{10**inner if self.log else inner:.3g}"
            parts.append(f'<path class="grid" d="M{LEFT} {place}H{WIDTH - RIGHT}"/>')
            parts.append(f'<text x="{LEFT - 8}" y="{place + 4}" text-anchor="end">{label}</text>')
        for step in sorted({0, self.last // 2, self.last}):
            parts.append(f'<text x="{self.x(step)}" y="{floor + 17}" text-anchor="middle">{step}</text>')
        middle = (LEFT + WIDTH - RIGHT) / 2
        parts.append(f'<text x="{middle}" y="{HEIGHT - 3}" text-anchor="middle">{html.escape(horizontal)}</text>')
        return "".join(parts)


def _line(name: str, values: Sequence[float], scale: _Scale, number: int) -> str:
    usable = [math.isfinite(value) and (value > 0 or not scale.log) for value in values]
    path, pen = "", "M"
    for step, value in enumerate(values):
        path += f"{pen}{scale.x(step)} {scale.y(value)}" if usable[step] else ""
        pen = "L" if usable[step] else "M"
    dash = f' stroke-dasharray="{DASHES[number % 3]}"' if DASHES[number % 3] else ""
    drawing = f'<path class="line line-{number % 3}" d="{path}"{dash}/>'
    broken = next((step for step, value in enumerate(values) if not math.isfinite(value)), None)
    if broken is not None:
        last = next((step for step in range(broken, -1, -1) if usable[step]), broken)
        x, y = scale.x(broken), scale.y(values[last]) if usable[last] else TOP
        end = ' text-anchor="end"' if x > WIDTH / 2 else ""
        label = f"{values[broken]} at {broken}"
        drawing += f'<path class="broken" d="M{x - 5} {y - 5}l10 10m0 -10l-10 10"/>'
        drawing += f'<text class="broken-label" x="{x + (-9 if end else 9)}" y="{y + 14}"{end}>{label}</text>'
    return drawing


def _legend(name: str, number: int) -> str:
    x = LEFT + 4 + 190 * number
    dash = f' stroke-dasharray="{DASHES[number % 3]}"' if DASHES[number % 3] else ""
    return (
        f'<path class="line line-{number % 3}" d="M{x} 10h24"{dash}/>'
        f'<text x="{x + 30}" y="14">{html.escape(name)}</text>'
    )


def _told(name: str, values: Sequence[float], horizontal: str) -> str:
    broken = next((step for step, value in enumerate(values) if not math.isfinite(value)), None)
    end = f"{values[broken]} from {horizontal} {broken} on" if broken is not None else f"{values[-1]:.3g} at the end"
    finite = [value for value in values if math.isfinite(value)]
    lowest = f", lowest {min(finite):.3g}, highest {max(finite):.3g}" if finite else ""
    return f"Curve of the {name} over {len(values)} {horizontal}s: {values[0]:.3g} at the start, {end}{lowest}"
