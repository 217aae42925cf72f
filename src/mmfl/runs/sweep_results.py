"""The results of a sweep: a table with a row for every point and method, the best ones, and the runs of each."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from mmfl.errors import UserError, nearest
from mmfl.runs.grid import Grid, describe, label_of, points, text_of
from mmfl.runs.layout import REPORT_PAGE
from mmfl.runs.results import Comparison, Run
from mmfl.runs.sweep_directory import SweepDirectory

SPREAD = "_spread"
"""Ends the names of columns with the standard deviation over seeds."""


@dataclass(eq=False, repr=False)
class Sweep:
    """Every method at every point of a grid.

    `runs` has the runs of each, in the order of the points, with a run per seed; none where they failed or have not
    finished. `failures` says why, by the names of the runs. `lower_is_better` are the tasks measured by an error.
    """

    grid: Grid
    methods: Sequence[str]
    runs: Mapping[str, Sequence[Run]]
    failures: Mapping[str, str]
    lower_is_better: Sequence[str] = ()

    @property
    def keys(self) -> list[str]:
        """The settings that are swept."""
        return list(self.grid)

    @property
    def tasks(self) -> list[str]:
        """The tasks, in order."""
        return next((runs[0].tasks for runs in self.runs.values() if runs), [])

    @property
    def quantities(self) -> list[str]:
        """What is compared: the final metric of each task, their mean and the worst; where weights are averaged, the
        mean of these."""
        averaged = any("average_mean" in run.summary for runs in self.runs.values() for run in runs)
        return [*self.tasks, "mean", "worst", *(["average_mean"] if averaged else [])]

    @property
    def unfinished(self) -> list[str]:
        """The names of the runs that have not finished, and have not failed."""
        return [label for label, runs in self.runs.items() if not runs and label not in self.failures]

    def at(self, point: Mapping[str, Any]) -> Comparison:
        """The runs at a point, all methods side by side: `at({"rate": 0.1})`, with a value for every key."""
        unknown = next((key for key in point if key not in self.grid), None)
        if unknown is not None:
            raise UserError(f"sweep: '{unknown}' was not swept: {nearest(unknown, self.grid)}")
        for key, values in self.grid.items():
            if key not in point or point[key] not in values:
                given = text_of(point[key]) if key in point else "not given"
                raise UserError(f"sweep: '{key}' is {given}; expected one of: {', '.join(map(text_of, values))}.")
        ordered = {key: point[key] for key in self.grid}
        found = [run for method in self.methods for run in self._runs_of(method, ordered)]
        if not found:
            raise UserError(f"sweep: no run has finished at {describe(ordered)}.")
        return Comparison(found)

    def _runs_of(self, method: str, point: Mapping[str, Any]) -> list[Run]:
        return [replace(run, method=method) for run in self.runs[label_of(method, point)]]

    def finals(self, window: int | None = None) -> pd.DataFrame:
        """The final metrics of every run: a row per point, method and seed, as `Comparison.finals` computes them."""
        rows = [
            {**point, "method": run.method, "seed": run.seed, **run.final(window).to_dict()}
            for point in points(self.grid)
            for method in self.methods
            for run in self._runs_of(method, point)
        ]
        return _table(rows, self.keys, ["method", "seed", *self.quantities])

    def table(self, window: int | None = None) -> pd.DataFrame:
        """A row per point and method: the final metric of each task, their mean and the worst, averaged over seeds.
        Columns that end in `_spread` have the standard deviation over seeds; a run that failed has no numbers."""
        finals, rows = self.finals(window), []
        by_seed = dict(list(finals.groupby([*_texts(finals, self.keys), "method"], sort=False)))
        for point in points(self.grid):
            for method in self.methods:
                found = by_seed.get((*map(text_of, point.values()), method))
                numbers = {} if found is None else _mean_and_spread(found[self.quantities])
                rows.append({**point, "method": method, **numbers})
        spreads = [f"{name}{SPREAD}" for name in self.quantities]
        return _table(rows, self.keys, ["method", *self.quantities, *spreads])

    def to_json(self) -> list[dict[str, Any]]:
        """The table as JSON values; what is not known is None."""
        rows: list[dict[str, Any]] = json.loads(self.table().to_json(orient="records"))
        return rows

    def best(self, window: int | None = None) -> pd.DataFrame:
        """The best point and method for each task, for their mean and for the worst: a row each, with the metric."""
        table, rows = self.table(window), {}
        for name in self.quantities:
            known = table.dropna(subset=[name])
            if len(known):
                numbers = known[name].to_numpy(dtype=np.float64)
                row = known.iloc[int(numbers.argmin() if self.is_lower_better(name) else numbers.argmax())]
                rows[name] = {
                    **{key: row[key] for key in self.keys},
                    "method": row["method"],
                    "metric": row[name],
                    "spread": row[f"{name}{SPREAD}"],
                }
        columns = [*self.keys, "method", "metric", "spread"]
        return pd.DataFrame.from_dict(rows, orient="index", columns=columns).rename_axis("best")

    def is_lower_better(self, quantity: str) -> bool:
        """Whether a task's metric is an error; mean and worst are of the scores, where there are some."""
        return quantity in self.lower_is_better or (
            quantity not in self.tasks and set(self.tasks) <= set(self.lower_is_better)
        )

    def edges(self) -> list[str]:
        """Which values of the best mean are the smallest or the largest that were tried: better ones may lie beyond.
        Not of `average`, which does not change the mean."""
        best, found = self.best(), []
        for key, values in self.grid.items():
            if key != "average" and "mean" in best.index and len(values) > 2 and all(map(is_number, values)):
                value = best.loc["mean", key]
                end = {min(values): "smallest", max(values): "largest"}.get(value)
                found += [f"the best {key}, {text_of(value)}, is the {end} that was tried"] if end else []
        return found

    def plot(self, path: str | Path, quantity: str = "mean") -> None:
        """Draws the final metric against the swept values: lines for one key, heat maps for more."""
        from mmfl.report.plots import draw, save
        from mmfl.report.sweep_figures import figure

        save(draw(figure(self, quantity)), Path(path))

    def report(self, path: str | Path = REPORT_PAGE) -> None:
        """Writes tables and figures as one HTML file, which needs no network. Needs plotly."""
        from mmfl.report.sweep_page import write

        write(self, Path(path))

    def __len__(self) -> int:
        return len(self.runs)

    def __iter__(self) -> Iterator[Run]:
        return iter([run for runs in self.runs.values() for run in runs])

    def __repr__(self) -> str:
        return f"Sweep({', '.join(self.grid)}; {len(self.methods)} methods, {len(points(self.grid))} points)"

    def _repr_html_(self) -> str:
        from mmfl.report import notebook

        return notebook.sweep(self)


def load_sweep(path: str | Path) -> Sweep:
    """The sweep in a directory, from the records of the runs that have finished.

    >>> load_sweep("runs/nothing-here")
    Traceback (most recent call last):
    ...
    mmfl.errors.UserError: 'runs/nothing-here' is not the directory of a sweep: it has no sweep.toml.
    """
    directory = SweepDirectory(Path(path))
    file = directory.read()
    labels = [label_of(method, point) for point in points(file.grid) for method in file.methods]
    runs: dict[str, list[Run]] = {label: [] for label in labels}
    failures: dict[str, str] = {}
    for part in directory.parts():
        if part.finished:
            for run in directory.runs_of(part):
                runs.get(run.method, []).append(run)
        elif len(part.labels) == 1 and (reason := directory.failure_of(part)):
            failures[part.labels[0]] = reason
    return Sweep(file.grid, file.methods, runs, failures, file.lower_is_better)


def is_number(value: Any) -> bool:
    """Whether a value has a place on an axis."""
    return isinstance(value, int | float | np.number) and not isinstance(value, bool)


def _table(rows: Sequence[Mapping[str, Any]], keys: Sequence[str], columns: Sequence[str]) -> pd.DataFrame:
    """A table in which the values of the keys are those of the grid: pandas makes 1 beside 0.5 a 1.0."""
    table = pd.DataFrame(rows, columns=[*keys, *columns])
    for key in keys:
        values = [row[key] for row in rows]
        if list(map(text_of, values)) != list(map(text_of, table[key])):
            table[key] = pd.Series(values, index=table.index, dtype=object)
    return table


def _texts(frame: pd.DataFrame, keys: Sequence[str]) -> list[pd.Series]:
    """Columns of values as texts: values may be lists or tables, which cannot be grouped by."""
    return [frame[key].map(text_of).rename(key) for key in keys]


def _mean_and_spread(finals: pd.DataFrame) -> dict[str, float]:
    means = {str(name): float(finals[name].mean()) for name in finals}
    return means | {f"{name}{SPREAD}": float(finals[name].std(ddof=1)) for name in finals}
