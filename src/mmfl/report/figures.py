"""The figures of runs: what there is to show of them, in the order in which a report shows it."""

from collections.abc import Callable

import pandas as pd

from mmfl.report.figure import Figure, Heat, Panel
from mmfl.report.observations import by_task, curves, evenly, overall
from mmfl.run import Comparison

MAX_CLIENTS = 400
"""Rows of a heat map; more are not told apart."""


def figures(comparison: Comparison) -> list[Figure]:
    """Every figure that has something to show."""
    made = [make(comparison) for make in FIGURES.values()]
    return [figure for figure in made if figure is not None]


def accuracy(comparison: Comparison) -> Figure | None:
    """Test metric of each task, and the mean and worst task, by round."""
    tasks = by_task(comparison, "metric")
    summary = overall(comparison, "mean", "worst")
    panels = _task_panels(comparison, tasks, "metric", "test metric")
    for column, title in (("mean", "mean of the tasks"), ("worst", "worst task")):
        lines = curves(summary, column, comparison.methods)
        panels += [Panel(title, lines, "round", "test metric")] if lines else []
    caption = "Metric on the test examples by round: the mean over seeds, with a band of one standard deviation."
    table = pd.concat(
        [tasks.rename(columns={"metric": "value"})]
        + [
            summary[["method", "seed", "round"]].assign(task=title, value=summary[column])
            for column, title in (("mean", "(mean)"), ("worst", "(worst)"))
        ],
        ignore_index=True,
    )
    return Figure("accuracy", "Test metric", caption, panels, table) if panels else None


def loss(comparison: Comparison) -> Figure | None:
    """Test loss of each task by round."""
    tasks = by_task(comparison, "loss")
    panels = _task_panels(comparison, tasks, "loss", "test loss")
    caption = "Loss on the test examples by round: the mean over seeds, with a band of one standard deviation."
    return Figure("loss", "Test loss", caption, panels, tasks) if panels else None


def participation(comparison: Comparison) -> Figure | None:
    """Which client trained which task how often, a panel per method."""
    panels, tables = [], []
    for method in comparison.methods:
        runs = comparison.of(method)
        counts = sum((run.participation for run in runs[1:]), runs[0].participation)
        rate = counts / sum(len(run.records) for run in runs)
        total = rate.sum(axis=1)
        order = total.sort_values(ascending=False, kind="stable").index
        never = int((total == 0).sum())
        shown = rate.loc[order[evenly(len(order), MAX_CLIENTS)]]
        heat = Heat(
            shown.to_numpy(),
            [f"client {client}" for client in shown.index],
            comparison.tasks,
            "trainings a round",
            0.0,
            float(rate.to_numpy().max(initial=0.0)) or 1.0,
        )
        title = f"{method}: {never} never seen" if never else method
        panels.append(Panel(title, [heat], "", "clients, most active first"))
        long = rate.rename_axis("client").reset_index().melt("client", var_name="task", value_name="trainings")
        tables.append(long.assign(method=method)[["method", "client", "task", "trainings"]])
    table = pd.concat(tables, ignore_index=True)
    caption = "How often each client trained each task, in trainings a round over all seeds."
    return Figure("participation", "Participation", caption, panels, table)


def step_size(comparison: Comparison) -> Figure | None:
    """||H||_1 of each task by round; 1 on average for an unbiased method."""
    tasks = by_task(comparison, "step_size")
    panels = _task_panels(comparison, tasks, "step_size", "step size ||H||", reference=1.0)
    caption = "The sum of the aggregation's inverse-probability weights; 1 on average for an unbiased method."
    return Figure("step_size", "Step size ||H||", caption, panels, tasks) if panels else None


def _task_panels(
    comparison: Comparison, table: pd.DataFrame, quantity: str, label: str, reference: float | None = None
) -> list[Panel]:
    """A panel per task in which the quantity is known, with a line per method."""
    panels = []
    for task in comparison.tasks:
        lines = curves(table[table["task"] == task], quantity, comparison.methods)
        panels += [Panel(task, lines, "round", label, reference)] if lines else []
    return panels


FIGURES: dict[str, Callable[[Comparison], Figure | None]] = {
    "accuracy": accuracy,
    "loss": loss,
    "participation": participation,
    "step_size": step_size,
}
