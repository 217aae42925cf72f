"""Observations: what runs recorded as long tables, and the curves over seeds that figures show of them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from mmfl.record import Cost, RoundRecord
from mmfl.report.figure import Line, Numbers, Panel
from mmfl.runs.results import Comparison

MAX_POINTS = 400
"""Points of a curve; more are not told apart, and make a page of many methods heavy."""


def by_task(comparison: Comparison, *quantities: str) -> pd.DataFrame:
    """Recorded quantities of tasks: a row per method, seed, task and round in which one of them is known."""

    def measured(record: RoundRecord) -> Mapping[str, Mapping[str, Any]]:
        return {name: {each: task.value(each) for each in quantities} for name, task in record.tasks.items()}

    return _table(comparison, measured, quantities)


def by_round(comparison: Comparison, *quantities: str) -> pd.DataFrame:
    """Recorded quantities of whole rounds, such as the mean and the worst task."""

    def measured(record: RoundRecord) -> Mapping[str, Mapping[str, Any]]:
        return {"": {each: getattr(record, each) for each in quantities}}

    return _table(comparison, measured, quantities).drop(columns="task")


def costs(comparison: Comparison) -> pd.DataFrame:
    """Every cost of every round, in bytes and seconds."""
    names = [*(field.name for field in fields(Cost)), "seconds"]
    parts = _table(comparison, lambda record: {"": {**asdict(record.cost), "seconds": record.seconds}}, names)
    return parts.drop(columns="task")


def _table(
    comparison: Comparison, parts: Callable[[RoundRecord], Mapping[str, Mapping[str, Any]]], quantities: Sequence[str]
) -> pd.DataFrame:
    found = []
    for run in comparison:
        rows = [(name, record.round, values) for record in run.records for name, values in parts(record).items()]
        names, rounds, told = zip(*rows, strict=True) if rows else ((), (), ())
        measured = {each: _numbers([values.get(each) for values in told]) for each in quantities}
        found.append(pd.DataFrame({"method": run.method, "seed": run.seed, "task": names, "round": rounds, **measured}))
    return pd.concat(found).dropna(subset=list(quantities), how="all").reset_index(drop=True)


def _numbers(values: Sequence[float | None]) -> NDArray[Any]:
    """An array of numbers: integers where all of them are, and nan for None."""
    array = np.array(values)
    return array.astype(np.float64) if array.dtype == object else array


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


def banded(table: pd.DataFrame, low: str, middle: str, high: str, methods: Sequence[str]) -> list[Line]:
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
            mine = rounds.loc[method]
            mine = mine.iloc[evenly(len(mine), MAX_POINTS)]
            x, y, low, high = (mine[name].to_numpy(dtype=np.float64) for name in ("x", "y", "low", "high"))
            several = mine["seeds"].max() > 1
            lines.append(Line(method, x, y, group, low, high) if several else Line(method, x, y, group))
    return lines


def task_panels(
    comparison: Comparison,
    table: pd.DataFrame,
    lines: Callable[[pd.DataFrame], list[Line]],
    label: str,
    reference: float | None = None,
) -> list[Panel]:
    """A panel per task that the table knows."""
    return [
        Panel(task, lines(mine), "round", label, reference)
        for task in comparison.tasks
        if len(mine := table[table["task"] == task])
    ]


def spread(comparison: Comparison) -> str:
    """How to read the curves of `curves`; nothing to say of a single seed."""
    several = any(len(comparison.of(method)) > 1 for method in comparison.methods)
    return " Lines are means over seeds, bands one standard deviation." if several else ""


def evenly(length: int, most: int) -> list[int]:
    """Evenly spaced places of a sequence, `most` of them at most, with the first and the last.

    >>> evenly(3, 5), evenly(9, 3)
    ([0, 1, 2], [0, 4, 8])
    """
    places: list[int] = np.linspace(0, length - 1, min(length, most)).round().astype(int).tolist()
    return places


def numbers(values: Sequence[float]) -> Numbers:
    """An array of floats."""
    return np.array(values, dtype=np.float64)
