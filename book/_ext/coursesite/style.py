"""The look of figures: one style for all pages, drawn for light pages; `course.css` turns it round on dark ones."""

from __future__ import annotations

# Okabe and Ito's colours for colour-blind readers, without the yellow, which is too pale on white, and darkened where
# a thin line had less than 3:1 of contrast (WCAG 1.4.11).
COLOURS = ("#0072b2", "#c04a00", "#007a5a", "#a8487f", "#3a3a3a", "#2a8fbd")

SETTINGS = {
    "figure.figsize": (7.2, 3.4),  # inches of 72 points: as wide as the text
    "figure.constrained_layout.use": True,
    "font.family": "DejaVu Sans",  # ships with matplotlib: the same letters on every machine
    "font.size": 10.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.titlelocation": "left",
    "axes.titlesize": 11,
    "grid.color": "#d9d9d9",
    "grid.linewidth": 0.7,
    "lines.linewidth": 1.8,
    "legend.frameon": False,
    "svg.hashsalt": "coursesite",  # else ids are random, and no two builds are the same
    "svg.fonttype": "path",
}


def apply() -> None:
    """Set matplotlib's defaults in this kernel, where matplotlib is imported only when a cell does so."""
    import importlib.util

    if importlib.util.find_spec("matplotlib") is None:
        return
    import matplotlib
    from cycler import cycler

    matplotlib.rcParams.update(SETTINGS)
    matplotlib.rcParams["axes.prop_cycle"] = cycler(color=COLOURS)
