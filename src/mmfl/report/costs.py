"""What it took: trainings, passes, bytes, memory and time, the metric they bought, and what went wrong."""

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd

from mmfl.report import observations
from mmfl.report.figure import Bars, Figure, Line, Panel
from mmfl.report.observations import MAX_POINTS, by_round, curves, evenly, numbers, spread
from mmfl.runs.results import Comparison, Run

_COSTS: dict[str, tuple[str, float, Callable[[pd.Series], float]]] = {
    "trainings": ("trainings a round", 1, pd.Series.mean),
    "forward_passes": ("forward passes a round", 1, pd.Series.mean),
    "bytes_down": ("MB to clients a round", 1e6, pd.Series.mean),
    "bytes_up": ("MB from clients a round", 1e6, pd.Series.mean),
    "stored_bytes": ("MB kept by the server, at most", 1e6, pd.Series.max),
    "seconds": ("seconds a round", 1, pd.Series.mean),
}


def costs(comparison: Comparison) -> Figure | None:
    """What a round of each method asks of clients, network and server."""
    table = observations.costs(comparison)
    methods = comparison.methods
    panels = []
    for quantity, (title, unit, total) in _COSTS.items():
        values = numbers([total(table.loc[table["method"] == method, quantity]) / unit for method in methods])
        if (values > 0).any():
            panels.append(Panel(title, [Bars(methods, values, range(len(methods)))]))
    caption = (
        "Means over rounds and seeds; memory is that of what a method remembers of clients. Methods trained side by "
        "side share their seconds evenly."
    )
    return Figure("costs", "Costs", caption, panels, table)


def efficiency(comparison: Comparison) -> Figure | None:
    """The mean metric against what had been spent to get there."""
    spent = observations.costs(comparison)
    runs = spent.groupby(["method", "seed"], sort=False)
    spent["trainings"] = runs["trainings"].cumsum()
    spent["megabytes"] = (runs["bytes_up"].cumsum() + runs["bytes_down"].cumsum()) / 1e6
    keys = ["method", "seed", "round"]
    table = by_round(comparison, "mean").merge(spent[[*keys, "trainings", "megabytes"]], on=keys)
    panels = [
        Panel("", curves(table, "mean", comparison.methods, x, least=0), label, "mean test metric", log="x")
        for x, label in (("trainings", "trainings so far"), ("megabytes", "MB sent so far"))
    ]
    caption = (
        "The mean of the tasks' test metrics against what had been spent by then, on a logarithmic scale."
        + spread(comparison)
    )
    return Figure("efficiency", "Metric by cost", caption, panels, table) if len(table) else None


def faults(comparison: Comparison) -> Figure | None:
    """What went wrong so far, by kind: updates that were rejected, and events of nodes."""
    tables = {run: _faults(run) for run in comparison}
    kinds = list(dict.fromkeys(kind for table in tables.values() for kind in table.columns))
    panels = []
    for method in comparison.methods:
        mine = [tables[run] for run in comparison.of(method)]
        lines = _cumulative(mine, kinds)
        panels += [Panel(method, lines, "round", "so far")] if lines else []
    long = [
        table.reset_index().melt("round", var_name="kind", value_name="events").assign(method=run.method, seed=run.seed)
        for run, table in tables.items()
    ]
    table = pd.concat(long, ignore_index=True)[["method", "seed", "round", "kind", "events"]]
    table = table[table["events"] > 0].reset_index(drop=True)
    caption = "What went wrong and was coped with, counted since the first round over all seeds."
    return Figure("faults", "Faults", caption, panels, table) if panels else None


def _faults(run: Run) -> pd.DataFrame:
    """Events by round and kind, kinds that happened."""
    rejected = [sum(task.rejected for task in record.tasks.values()) for record in run.records]
    table = run.faults.assign(**{"rejected update": rejected})
    return table.loc[:, (table > 0).any()]


def _cumulative(tables: Sequence[pd.DataFrame], kinds: Sequence[str]) -> list[Line]:
    """A line per kind that any of the tables has, of its sums."""
    lines = []
    for group, kind in enumerate(kinds):
        known = [table[kind] for table in tables if kind in table]
        if known:
            total = pd.concat(known, axis=1).sum(axis=1).cumsum()
            total = total.iloc[evenly(len(total), MAX_POINTS)]
            lines.append(Line(kind, total.index.to_numpy(np.float64), total.to_numpy(np.float64), group))
    return lines
