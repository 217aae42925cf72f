"""Figures of a sweep: the final metric against the swept values."""

import re
from collections.abc import Sequence
from typing import Literal

import numpy as np
import pandas as pd

from mmfl.errors import UserError, nearest
from mmfl.report.figure import Dots, Figure, Heat, Line, Mark, Panel
from mmfl.report.observations import SUMMARIES
from mmfl.runs.grid import describe, points, short_names, text_of
from mmfl.runs.sweep_results import SPREAD, Sweep, is_number

_WIDE = 10  # times the smallest value: from there on an axis is logarithmic


def figures(sweep: Sweep) -> list[Figure]:
    """All figures of a sweep: one where a single number is swept, else one for every task, their mean and the worst."""
    if _is_line(sweep):
        return [_lines(sweep, sweep.quantities)]
    return [_heat_maps(sweep, quantity) for quantity in sorted(sweep.quantities, key=lambda name: name != "mean")]


def figure(sweep: Sweep, quantity: str) -> Figure:
    """The figure of one task, or of "mean" or "worst"."""
    if quantity not in sweep.quantities:
        raise UserError(f"sweep: no task '{quantity}': {nearest(quantity, sweep.quantities)}")
    return _lines(sweep, [quantity]) if _is_line(sweep) else _heat_maps(sweep, quantity)


def _is_line(sweep: Sweep) -> bool:
    (first, *others) = sweep.grid.values()
    return not others and len(first) > 1 and all(map(is_number, first))


def _title(quantity: str) -> str:
    return {**SUMMARIES, "average_mean": "mean of the tasks, averaged weights"}.get(quantity, quantity)


def _lines(sweep: Sweep, quantities: Sequence[str]) -> Figure:
    """The metric against the values of the one key, a line per method and a panel per quantity."""
    (key,) = sweep.keys
    table = sweep.table().sort_values(key, kind="stable")
    values = [float(value) for value in sweep.grid[key]]
    log: Literal["", "x"] = "x" if min(values) > 0 and max(values) >= _WIDE * min(values) else ""
    panels = []
    for quantity in quantities:
        marks: list[Mark] = []
        for group, method in enumerate(sweep.methods):
            known = table[table["method"] == method].dropna(subset=[quantity])
            x, y, spread = (known[name].to_numpy(dtype=np.float64) for name in (key, quantity, f"{quantity}{SPREAD}"))
            band = (y - spread, y + spread) if np.isfinite(spread).all() else (None, None)
            marks.append(Line(method, x, y, group, *band))
            marks.append(Dots(method, x, y, group, [f"{short_names([key])[key]}={value:g}" for value in x]))
        panels.append(Panel(_title(quantity), marks, key, "final test metric", log=log))
    bands = " Lines are means over seeds, bands one standard deviation." if _has_spread(table) else ""
    caption = f"Final test metric against {key}.{bands}"
    return Figure("sweep", "Final metric", caption, panels, _plain(table))


def _heat_maps(sweep: Sweep, quantity: str) -> Figure:
    """The metric by the two keys with most values, in a panel per method and combination of the other keys; or by the
    one key and the methods, in a single panel."""
    table, axes = sweep.table(), {**sweep.grid, "method": sweep.methods}
    largest = sorted(sweep.keys, key=lambda key: -len(sweep.grid[key]))[:2]
    rows, columns = sorted(largest, key=sweep.keys.index) if len(largest) > 1 else ("method", largest[0])
    cells = {tuple(text_of(row[key]) for key in axes): row[quantity] for row in table.to_dict(orient="records")}
    low, high = table[quantity].min(), table[quantity].max()
    panels = []
    for point in points({key: values for key, values in axes.items() if key not in (rows, columns)}):
        values = np.array(
            [
                [
                    cells[tuple(text_of({**point, rows: row, columns: column}[key]) for key in axes)]
                    for column in axes[columns]
                ]
                for row in axes[rows]
            ],
            dtype=np.float64,
        )
        texts = [["" if np.isnan(value) else f"{value:.3f}" for value in line] for line in values]
        across, down = ([text_of(value) for value in axes[key]] for key in (columns, rows))
        heat = Heat(values, down, across, _title(quantity), low, max(high, low + 1e-9), texts, "failed or not finished")
        method = point.pop("method", "")
        panels.append(Panel(", ".join(filter(None, [method, describe(point)])), [heat], columns, rows))
    seeds = ", averaged over seeds" if _has_spread(table) else ""
    caption = f"Final test metric by {rows} and {columns}: {_title(quantity)}{seeds}."
    plain = re.sub(r"[^\w.-]+", "-", quantity)
    name = f"sweep-{sweep.quantities.index(quantity) + 1}-{plain}"
    return Figure(name, f"Final metric: {_title(quantity)}", caption, panels, _plain(table))


def _has_spread(table: pd.DataFrame) -> bool:
    return bool(table[f"mean{SPREAD}"].notna().any())


def _plain(table: pd.DataFrame) -> pd.DataFrame:
    """A table that any file can hold: values that are no numbers as texts."""
    return table.map(lambda value: value if is_number(value) else text_of(value))
