"""Observations: what runs recorded as long tables, and the curves over seeds that figures show of them."""

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import pandas as pd

from mmfl.report.figure import Line, Numbers
from mmfl.run import Comparison
from mmfl.training import Record

MAX_POINTS = 400
"""Points of a curve; more are not told apart, and would make a page of many methods heavy."""


def by_task(comparison: Comparison, *quantities: str) -> pd.DataFrame:
    """Recorded quantities of tasks: a row per method, seed, task and round in which one of them is known."""

    return _table(comparison, lambda record: record["tasks"], quantities)


def overall(comparison: Comparison, *quantities: str) -> pd.DataFrame:
    """Recorded quantities of a round, such as the mean and the worst task."""

    return _table(comparison, lambda record: {"": record}, quantities).drop(columns="task")


def _table(
    comparison: Comparison, parts: Callable[[Record], Mapping[str, Record]], quantities: Sequence[str]
) -> pd.DataFrame:
    found = [
        (run.method, run.seed, name, record["round"], *(values.get(quantity) for quantity in quantities))
        for run in comparison
        for record in run.records
        for name, values in parts(record).items()
    ]
    frame = pd.DataFrame(found, columns=["method", "seed", "task", "round", *quantities])
    frame[list(quantities)] = frame[list(quantities)].astype(float)
    return frame.dropna(subset=list(quantities), how="all").reset_index(drop=True)


def curves(table: pd.DataFrame, quantity: str, methods: Sequence[str]) -> list[Line]:
    """A line per method of the table: mean over seeds by round, with a band of one standard deviation."""
    lines = []
    for group, method in enumerate(methods):
        mine = table[table["method"] == method]
        values = mine.pivot(index="round", columns="seed", values=quantity)
        if values.notna().to_numpy().any():
            lines.append(curve(method, values, group))
    return lines


def curve(name: str, values: pd.DataFrame, group: int) -> Line:
    """The mean over columns (runs) by row, with a band of one standard deviation where there are several."""
    values = thinned(values)
    x, y = values.index.to_numpy(dtype=float), values.mean(axis=1).to_numpy(dtype=float)
    if values.shape[1] < 2:
        return Line(name, x, y, group)
    spread = values.std(axis=1).fillna(0).to_numpy(dtype=float)
    return Line(name, x, y, group, y - spread, y + spread)


def thinned(values: pd.DataFrame) -> pd.DataFrame:
    """The table, or where it is too long as many of its rows as a curve has points, evenly spaced."""
    return values.iloc[evenly(len(values), MAX_POINTS)]


def evenly(length: int, most: int) -> list[int]:
    """At most so many places of a sequence, evenly spaced, with its first and last.

    >>> evenly(3, 5), evenly(9, 3)
    ([0, 1, 2], [0, 4, 8])
    """
    places: list[int] = np.linspace(0, length - 1, min(length, most)).round().astype(int).tolist()
    return places


def numbers(values: Iterable[float]) -> Numbers:
    """An array of floats."""
    return np.array(list(values), dtype=np.float64)
