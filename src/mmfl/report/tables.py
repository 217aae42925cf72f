"""The results of a comparison as tables of texts: for the terminal as for a page."""

from typing import Any

import numpy as np
import pandas as pd

from mmfl.report.differences import Difference, difference
from mmfl.runs.results import Comparison

_COSTS = ["trainings", "forward_passes", "megabytes"]
HEADINGS = {
    "spread": "± of mean",
    "relative": "of full",
    "forward_passes": "forward passes",
    "megabytes": "MB sent",
}


def results(comparison: Comparison) -> dict[str, pd.DataFrame]:
    """How good each method is, at what cost a round, and what went wrong: a row per method, by title."""
    frame = comparison.table()
    final = _texts(frame.drop(columns=_COSTS).dropna(axis=1, how="all"))
    for heading, told in (("last rounds", _windows(comparison)), ("seeds", _seeds(comparison))):
        if len(set(told.values())) > 1:
            final[heading] = list(told.values())
    tables = {final_title(comparison): final, "cost of a round": _texts(frame[_COSTS])}
    faults = pd.DataFrame({method: sum(run.faults.sum() for run in comparison.of(method)) for method in frame.index}).T
    if len(faults.columns):
        counts = faults.fillna(0).astype(int).rename_axis("method").reset_index()
        tables["what went wrong with nodes, in all rounds"] = counts.astype(str)
    return tables


def final_title(comparison: Comparison) -> str:
    """What the final metric is the mean of. Where that is not the same for all methods, a column says it."""
    seeds = set(_seeds(comparison).values())
    over = f"{next(iter(seeds))} seed{'s' if seeds != {'1'} else ''}" if len(seeds) == 1 else "seeds as listed"
    spread = "; ± of mean: its standard deviation over seeds" if seeds != {"1"} else ""
    return f"final test metric: {final_rounds(comparison)}, {over}{spread}"


def final_rounds(comparison: Comparison) -> str:
    """The rounds that are final."""
    windows = set(_windows(comparison).values())
    number = f"{next(iter(windows))} " if len(windows) == 1 else ""
    return "last tested round" if windows == {"1"} else f"mean of the last {number}tested rounds"


def _windows(comparison: Comparison) -> dict[str, str]:
    """How many of the last tested rounds each method's final metric is the mean of."""
    found = {method: sorted({run.window for run in comparison.of(method)}) for method in comparison.methods}
    return {method: " to ".join(map(str, dict.fromkeys((each[0], each[-1])))) for method, each in found.items()}


def _seeds(comparison: Comparison) -> dict[str, str]:
    return {method: str(len(comparison.of(method))) for method in comparison.methods}


def paired(comparison: Comparison) -> dict[str, pd.DataFrame]:
    """Differences of the final mean and worst task to the first method and to full participation of the same
    experiment, paired over seeds, with 95% intervals; nothing where there is a single method."""
    finals, methods, tables = comparison.finals(), comparison.methods, {}
    fulls = [name for name in methods if comparison.full_of(name) == name]
    for other in dict.fromkeys([methods[0], *fulls]):
        theirs = finals.loc[other]
        mine = methods if other == methods[0] else [name for name in methods if comparison.full_of(name) == other]
        rows = [
            {"method": method, **{name: _gap(difference(ours[name], theirs[name])) for name in ("mean", "worst")}}
            for method in mine
            if method != other
            for ours in [finals.loc[method]]
        ]
        if rows:
            title = f"paired differences: final test metric minus that of {other}, seed by seed, 95% intervals"
            tables[title] = pd.DataFrame(rows)
    return tables


def _gap(gap: Difference) -> str:
    """A difference with its interval, where there are seeds enough for one."""
    if not gap.pairs:
        return ""
    return f"{gap.mean:+.3f} ± {gap.half:.3f}" if np.isfinite(gap.half) else f"{gap.mean:+.3f} (one seed)"


def _texts(frame: pd.DataFrame) -> pd.DataFrame:
    """Numbers as they are read, with the method as the first column."""
    texts = pd.DataFrame({name: [cell(str(name), value) for value in frame[name]] for name in frame.columns})
    texts = texts.rename(columns=HEADINGS)
    texts.insert(0, "method", [str(method) for method in frame.index])
    return texts


def cell(column: str, value: Any) -> str:
    """How a value of a comparison's table is written."""
    if pd.isna(value):
        return ""
    if column in ("trainings", "forward_passes"):
        return f"{value:,.1f}"
    return f"{value:,.2f}" if column == "megabytes" else f"{value:.3f}"
