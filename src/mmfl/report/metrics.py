"""What tests found besides the main metric: further metrics, how clients differ, and confusion matrices."""

from itertools import product

import numpy as np
import pandas as pd

from mmfl.report.figure import Figure, Heat, Line, Numbers, Panel
from mmfl.report.observations import MAX_POINTS, by_task, curves, curves_between, describe_bands, evenly
from mmfl.report.tables import with_direction
from mmfl.runs.results import Comparison

_QUARTILES = ("client_lower_quartile", "client_median", "client_upper_quartile")
_WORST = "client_worst_tenth"
_MAX_WRITTEN = 12  # classes of a confusion matrix with numbers in its cells


def metrics(comparison: Comparison) -> Figure | None:
    """Metrics other than the main one, by round."""
    tables = []
    for run in comparison:
        table = run.metrics
        further = table[table.groupby(["round", "task"]).cumcount() > 0]  # the main one comes first
        tables.append(further.assign(method=run.method, seed=run.seed))
    table = pd.concat(tables)[["method", "seed", "task", "metric", "round", "value"]]
    table = table.dropna(subset=["value"]).reset_index(drop=True)
    panels = []
    for task, metric in product(comparison.tasks, dict.fromkeys(table["metric"])):
        of_task = table[(table["task"] == task) & (table["metric"] == metric)]
        if len(of_task):
            lines = curves(of_task, "value", comparison.methods)
            panels.append(Panel(f"{task}: {with_direction(metric)}", lines, "round", "test metric"))
    caption = "Further metrics on the test examples by round." + describe_bands(comparison)
    return Figure("metrics", "Further metrics", caption, panels, table) if panels else None


def clients(comparison: Comparison) -> Figure | None:
    """How the main metric differs between clients, by round."""
    table, panels = by_task(comparison, *_QUARTILES, _WORST), []
    for task in comparison.tasks:
        of_task = table[table["task"] == task]
        if len(of_task):
            shown = curves_between(of_task, *_QUARTILES, comparison.methods)
            panels.append(Panel(f"{task}: median client", shown, "round", "test metric"))
            worst = curves(of_task, _WORST, comparison.methods)
            panels.append(Panel(f"{task}: worst tenth of clients", worst, "round", "test metric"))
    caption = (
        "The metric of each client on its own test examples: the median over clients, with a band between the "
        "quartiles, means over seeds; and the mean over the tenth of the clients for which it is worst."
        + describe_bands(comparison)
    )
    return Figure("clients", "Metric by client", caption, panels, table) if panels else None


def client_distribution(comparison: Comparison) -> Figure | None:
    """The main metric of all clients in the last tested round, sorted."""
    parts = [
        run.client_metric(task).reset_index().assign(method=run.method, seed=run.seed, task=task)
        for run in comparison
        for task in comparison.tasks
        if task in run.tested and run.tested[task].clients
    ]
    if not parts:
        return None
    table = pd.concat(parts, ignore_index=True)
    table = table[["method", "seed", "task", "client", *(["name"] if "name" in table else []), "examples", "value"]]
    known, panels = table.dropna(subset=["value"]), []
    for task in comparison.tasks:
        of_task = known[known["task"] == task]
        lines = [
            _distribution(method, group, of_task.loc[of_task["method"] == method, "value"])
            for group, method in enumerate(comparison.methods)
        ]
        if lines := [line for line in lines if len(line.x)]:
            panels.append(Panel(task, lines, "share of clients", "test metric"))
    caption = (
        "The metric of every client on its own test examples in the last tested round, from the lowest to the highest; "
        "clients of all seeds together."
    )
    return Figure("client_distribution", "Distribution over clients", caption, panels, table) if panels else None


def _distribution(method: str, group: int, values: pd.Series) -> Line:
    y = np.sort(values.to_numpy(dtype=np.float64))
    x = (np.arange(len(y)) + 0.5) / max(len(y), 1)
    shown = evenly(len(y), MAX_POINTS) if len(y) else []
    return Line(method, x[shown], y[shown], group)


def confusion(comparison: Comparison) -> Figure | None:
    """Confusion matrices of the last tested round, summed over seeds."""
    panels, tables = [], []
    for method, task in product(comparison.methods, comparison.tasks):
        runs = [run for run in comparison.of(method) if task in run.tested]
        for name in dict.fromkeys(name for run in runs for name in run.tested[task].tables):
            counts = np.array([run.tested[task].tables[name] for run in runs], dtype=np.float64).sum(0)
            if counts.shape[0] != counts.shape[1] or counts.min(initial=0) < 0:
                continue  # a table of another kind
            panels.append(Panel(f"{method}, {task}", [_heat(counts)], "prediction", "target"))
            target, prediction = np.nonzero(counts)
            cells = {"target": target, "prediction": prediction, "examples": counts[target, prediction]}
            tables.append(pd.DataFrame({"method": method, "task": task, "metric": name, **cells}))
    if not panels:
        return None
    caption = (
        "Which share of the examples of a class (row) is taken for which class (column) in the last tested round; "
        "examples of all seeds together."
    )
    return Figure("confusion", "Confusion matrices", caption, panels, pd.concat(tables, ignore_index=True))


def _heat(counts: Numbers) -> Heat:
    classes = [str(n) for n in range(len(counts))]
    totals = counts.sum(1, keepdims=True)
    share = np.divide(counts, totals, out=np.full_like(counts, np.nan), where=totals > 0)
    texts = [[f"{value:.2f}".removeprefix("0") if value > 0 else "" for value in row] for row in share.tolist()]
    written = texts if len(counts) <= _MAX_WRITTEN else ()
    return Heat(share, classes, classes, "share of the class", 0.0, 1.0, written)
