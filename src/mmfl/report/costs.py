"""Figures of costs (trainings, passes, bytes, memory, time), of the metric by cost, and of faults."""

from dataclasses import fields

import numpy as np
import pandas as pd

from mmfl.record import Cost
from mmfl.report.figure import Bars, Figure, Line, Panel
from mmfl.report.observations import MAX_POINTS, by_round, curves, describe_bands, evenly
from mmfl.runs.results import Comparison, Run

_COSTS = {
    "trainings": ("trainings a round", 1, "mean"),
    "forward_passes": ("forward passes a round", 1, "mean"),
    "bytes_down": ("MB to clients a round", 1e6, "mean"),
    "bytes_up": ("MB from clients a round", 1e6, "mean"),
    "stored_bytes": ("MB stored, at most", 1e6, "max"),
    "seconds": ("seconds a round", 1, "mean"),
}


def costs(comparison: Comparison) -> Figure | None:
    """What a round of each method asks of clients, network and server."""
    table = by_round(comparison, *(field.name for field in fields(Cost)), "seconds")
    methods = comparison.methods
    panels = []
    for quantity, (title, unit, total) in _COSTS.items():
        values = np.array([table.loc[table["method"] == method, quantity].agg(total) / unit for method in methods])
        if (values > 0).any():
            panels.append(Panel(title, [Bars(methods, values)]))
    caption = (
        "Means over rounds and seeds; memory is that of what a method remembers of clients. Methods trained side by "
        "side share their seconds evenly."
    )
    return Figure("costs", "Costs", caption, panels, table)


def efficiency(comparison: Comparison) -> Figure | None:
    """The mean metric against what had been spent to get there."""
    table = by_round(comparison, "mean", "trainings", "bytes_up", "bytes_down")
    runs = table.groupby(["method", "seed"], sort=False)
    table["trainings"] = runs["trainings"].cumsum()
    table["megabytes"] = (runs["bytes_up"].cumsum() + runs["bytes_down"].cumsum()) / 1e6
    table = table.drop(columns=["bytes_up", "bytes_down"]).dropna(subset=["mean"]).reset_index(drop=True)
    panels = [
        Panel("", curves(table, "mean", comparison.methods, x, least=0), label, "mean test metric", log="x")
        for x, label in (("trainings", "trainings so far"), ("megabytes", "MB sent so far"))
    ]
    caption = (
        "The mean of the tasks' test metrics against what had been spent by then, on a logarithmic scale."
        + describe_bands(comparison)
    )
    return Figure("efficiency", "Metric by cost", caption, panels, table) if len(table) else None


def faults(comparison: Comparison) -> Figure | None:
    """What went wrong so far, by kind: updates that were rejected, and events of nodes."""
    table = pd.concat([_faults(run) for run in comparison], ignore_index=True)
    kinds = list(table["kind"].unique())
    panels = []
    for method, subset in table.groupby("method", sort=False):
        events = subset.groupby(["kind", "round"])["events"].sum()
        lines = [_cumulative(events[kind], kind, kinds.index(kind)) for kind in kinds if kind in events]
        panels.append(Panel(str(method), lines, "round", "so far"))
    caption = "What went wrong and was coped with, counted since the first round over all seeds."
    table = table[table["events"] > 0].reset_index(drop=True)
    return Figure("faults", "Faults", caption, panels, table) if panels else None


def _faults(run: Run) -> pd.DataFrame:
    """A row per round and kind of event, of the kinds that happened."""
    rejected = [sum(task.rejected for task in record.tasks.values()) for record in run.records]
    table = run.faults.assign(**{"rejected update": rejected})
    happened = table.loc[:, (table > 0).any()].reset_index()
    long = happened.melt("round", var_name="kind", value_name="events").assign(method=run.method, seed=run.seed)
    return long[["method", "seed", "round", "kind", "events"]]


def _cumulative(events: pd.Series, kind: str, group: int) -> Line:
    total = events.cumsum()
    total = total.iloc[evenly(len(total), MAX_POINTS)]
    return Line(kind, total.index.to_numpy(np.float64), total.to_numpy(np.float64), group)
