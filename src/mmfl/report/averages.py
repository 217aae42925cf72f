"""The weights that are averaged over rounds, beside the current ones."""

from dataclasses import replace

from mmfl.report.figure import Figure, Line
from mmfl.report.observations import task_figure
from mmfl.report.scores import scores
from mmfl.runs.results import Comparison

_KEYS = ["method", "seed", "task", "round"]


def average(comparison: Comparison) -> Figure | None:
    """Test metric of averaged weights by round, with pale curves of the current ones; only of methods that average."""
    averaged = scores(comparison, "average_").dropna(subset=["value"]).rename(columns={"value": "average"})
    table = averaged.merge(scores(comparison).rename(columns={"value": "current"}), on=_KEYS)
    caption = "Metric of averaged weights on the test examples by round; pale: that of the current weights."
    shown, behind = (
        task_figure(comparison, "average", "Averaged weights", caption, table, quantity, "test metric")
        for quantity in ("average", "current")
    )
    if shown is None or behind is None:
        return None
    panels = []
    for panel, other in zip(shown.panels, behind.panels, strict=True):
        pale = [replace(mark, low=None, high=None, pale=True) for mark in other.marks if isinstance(mark, Line)]
        panels.append(replace(panel, marks=[*panel.marks, *pale]))
    return replace(shown, panels=panels)
