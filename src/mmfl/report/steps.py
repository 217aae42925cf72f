"""How steady the steps are: step size, variances of what is sampled, and trust in stale updates."""

from dataclasses import replace

import numpy as np

from mmfl.report.figure import Figure, Line, Panel
from mmfl.report.observations import by_task, curves, describe_bands, task_figure
from mmfl.runs.results import Comparison

_VARIANCES = {"loss_variance": "sampled loss", "update_variance": "sampled update"}


def step_size(comparison: Comparison) -> Figure | None:
    """||H||_1 of each task by round; 1 on average for an unbiased method."""
    table, title, label = by_task(comparison, "step_size"), "Step size ||H||", "step size ||H||"
    caption = "The sum of the aggregation's inverse-probability weights: 1 on average for an unbiased method."
    return task_figure(comparison, "step_size", title, caption, table, "step_size", label, reference=1.0)


def variances(comparison: Comparison) -> Figure | None:
    """Variances of the sampled loss and of the sampled update of each task, by round, where they are known."""
    table = by_task(comparison, *_VARIANCES)
    panels = []
    for task in comparison.tasks:
        for quantity, title in _VARIANCES.items():
            subset = table[(table["task"] == task) & (table[quantity] > 0)]
            lines = curves(subset.assign(log=np.log(subset[quantity])), "log", comparison.methods)
            panel = Panel(f"{task}: {title}", [_exponential(line) for line in lines], "round", "variance", log="y")
            panels += [panel] if lines else []
    caption = (
        "The variance that the draw causes, where losses or updates of all clients are known: of the sampled loss and "
        "of the sampled update, on a logarithmic scale, over which means and deviations are taken. Full participation "
        "has none." + describe_bands(comparison)
    )
    return Figure("variances", "Variance of the draw", caption, panels, table) if panels else None


def beta(comparison: Comparison) -> Figure | None:
    """What stale updates are worth to the methods that keep them, by round."""
    table, title = by_task(comparison, "beta_min", "beta_mean", "beta_max"), "Trust in stale updates (beta)"
    caption = (
        "The weight of clients' last updates: the mean over clients, with a band from the least to the largest; means "
        "over seeds. At 1 an old update counts in full, at 0 not at all."
    )
    return task_figure(comparison, "beta", title, caption, table, "beta_mean", "beta", band=("beta_min", "beta_max"))


def _exponential(line: Line) -> Line:
    """A line of logarithms as one of the values themselves."""
    low, high = (None if edge is None else np.exp(edge) for edge in (line.low, line.high))
    return replace(line, y=np.exp(line.y), low=low, high=high)
