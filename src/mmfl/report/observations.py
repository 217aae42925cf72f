"""Observations: what runs recorded as long tables, and the curves over seeds that figures show of them."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
import pandas as pd

from mmfl.record import RoundRecord
from mmfl.report.figure import Figure, Line, Panel
from mmfl.runs.results import Comparison

MAX_POINTS = 400
"""Points of a curve; more are not told apart, and make a page of many methods heavy."""
SUMMARIES = {"mean": "mean of the tasks", "worst": "worst task"}


def by_task(comparison: Comparison, *quantities: str) -> pd.DataFrame:
    """Recorded quantities of tasks: a row per method, seed, task and round in which one of them is known."""
    return _table(comparison, quantities, lambda record: {name: task.value for name, task in record.tasks.items()})


def by_round(comparison: Comparison, *quantities: str) -> pd.DataFrame:
    """Recorded quantities of whole rounds, such as the mean, the worst task or a cost."""
    return _table(comparison, quantities, lambda record: {"": partial(_of_round, record)}).drop(columns="task")


def _of_round(record: RoundRecord, quantity: str) -> float | None:
    value: float | None = getattr(record.cost if hasattr(record.cost, quantity) else record, quantity)
    return value


def _table(
    comparison: Comparison,
    quantities: Sequence[str],
    parts: Callable[[RoundRecord], Mapping[str, Callable[[str], float | None]]],
) -> pd.DataFrame:
    """What the parts of every round say of the quantities, a row each."""
    rows = [
        (run.method, run.seed, name, record.round, *map(value, quantities))
        for run in comparison
        for record in run.records
        for name, value in parts(record).items()
    ]
    measured = list(quantities)
    table = pd.DataFrame(rows, columns=["method", "seed", "task", "round", *measured])
    table[measured] = table[measured].apply(pd.to_numeric)
    return table.dropna(subset=measured, how="all").reset_index(drop=True)


def curves(
    table: pd.DataFrame, quantity: str, methods: Sequence[str], x: str = "round", least: float = -np.inf
) -> list[Line]:
    """A line per method: the mean over seeds by round, with a band of one standard deviation where seeds are several.

    Another column as `x` is averaged over seeds like the quantity. Bands end at `least`, the quantity's least value,
    unless some are below it all the same.
    """
    known = table.dropna(subset=[quantity]).assign(at=table[x])
    rounds = known.groupby(["method", "round"]).agg(
        x=("at", "mean"), y=(quantity, "mean"), spread=(quantity, "std"), seeds=("seed", "nunique")
    )
    rounds["low"], rounds["high"] = rounds["y"] - rounds["spread"].fillna(0), rounds["y"] + rounds["spread"].fillna(0)
    if (known[quantity] >= least).all():
        rounds["low"] = rounds["low"].clip(lower=least)
    return _lines(rounds, methods)


def curves_between(table: pd.DataFrame, low: str, middle: str, high: str, methods: Sequence[str]) -> list[Line]:
    """A line per method of one column, with a band between two others: each the mean over seeds, by round."""
    names = {"y": (middle, "mean"), "low": (low, "mean"), "high": (high, "mean")}
    rounds = table.dropna(subset=[middle]).groupby(["method", "round"]).agg(**names)
    return _lines(rounds.assign(x=rounds.index.get_level_values("round"), seeds=2), methods)


def _lines(rounds: pd.DataFrame, methods: Sequence[str]) -> list[Line]:
    """Lines of a table by method and round."""
    lines = []
    known = set(rounds.index.unique("method"))
    for group, method in enumerate(methods):
        if method in known:
            subset = rounds.loc[method]
            subset = subset.iloc[evenly(len(subset), MAX_POINTS)]
            x, y, low, high = (subset[name].to_numpy(dtype=np.float64) for name in ("x", "y", "low", "high"))
            several = subset["seeds"].max() > 1
            lines.append(Line(method, x, y, group, low, high) if several else Line(method, x, y, group))
    return lines


def task_figure(
    comparison: Comparison,
    name: str,
    title: str,
    caption: str,
    table: pd.DataFrame,
    quantity: str,
    label: str,
    *,
    reference: float | None = None,
    band: tuple[str, str] | None = None,
) -> Figure | None:
    """Curves of a quantity that is not negative: a panel for each of the tasks, their mean `(mean)` and the worst
    `(worst)` that the table knows; nothing where it was never measured. Bands are one standard deviation over seeds,
    or lie between two other columns of the table."""

    def lines(subset: pd.DataFrame) -> list[Line]:
        if band:
            return curves_between(subset, band[0], quantity, band[1], comparison.methods)
        return curves(subset, quantity, comparison.methods, least=0)

    titles = {task: task for task in comparison.tasks} | {f"({name})": title for name, title in SUMMARIES.items()}
    panels = [
        Panel(shown, lines(subset), "round", label, reference)
        for task, shown in titles.items()
        if len(subset := table[table["task"] == task])
    ]
    caption += "" if band else describe_bands(comparison)
    return Figure(name, title, caption, panels, table) if panels else None


def describe_bands(comparison: Comparison) -> str:
    """How to read the lines and bands of `curves`; empty with a single seed."""
    several = any(len(comparison.of(method)) > 1 for method in comparison.methods)
    return " Lines are means over seeds, bands one standard deviation." if several else ""


def evenly(length: int, most: int) -> list[int]:
    """Evenly spaced places of a sequence, `most` of them at most, with the first and the last.

    >>> evenly(3, 5), evenly(9, 3)
    ([0, 1, 2], [0, 4, 8])
    """
    places: list[int] = np.linspace(0, length - 1, min(length, most)).round().astype(int).tolist()
    return places
