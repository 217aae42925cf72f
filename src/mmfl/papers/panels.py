"""Panels of a figure, with the labels and the grid that they share."""

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mmfl.report.plots import grid


def panels(number: int, columns: int = 3, height: float = 3.0, **labels: Any) -> tuple[Figure, list[Axes]]:
    """A figure with a number of panels, in rows of at most `columns`; `labels` are those of every panel."""
    figure, axes = grid(number, columns, height)
    for panel in axes:
        panel.set(**labels)
        panel.grid(alpha=0.3)
    return figure, axes
