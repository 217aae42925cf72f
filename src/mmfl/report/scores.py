"""How good the models are: test metric and loss, relative to full participation, and differences between methods."""

from itertools import product

import numpy as np
import pandas as pd

from mmfl.report.differences import difference
from mmfl.report.figure import Figure, Heat, Panel
from mmfl.report.observations import SUMMARIES, by_round, by_task, task_figure
from mmfl.report.tables import final_rounds
from mmfl.runs.results import Comparison


def accuracy(comparison: Comparison) -> Figure | None:
    """Test metric of each task, and the mean and worst task, by round."""
    caption = (
        "Metric on the test examples by round. Where some tasks' metric is a score and others' an error, mean and "
        "worst are of the scores."
    )
    table = scores(comparison)
    return task_figure(comparison, "accuracy", "Test metric", caption, table, "value", "test metric")


def relative(comparison: Comparison) -> Figure | None:
    """The metric divided by that of full participation with the same seed, by round."""
    fulls = {
        method: full for method in comparison.methods if (full := comparison.full_of(method)) not in (None, method)
    }
    if not fulls:
        return None
    table, keys = scores(comparison), ["full", "seed", "task", "round"]
    theirs = table.rename(columns={"method": "full", "value": "theirs"}).set_index(keys)
    table = table[table["method"].isin(list(fulls))]
    table = table.assign(full=table["method"].map(fulls)).join(theirs, on=keys).drop(columns="full")
    table["value"] = (table["value"] / table.pop("theirs")).replace([np.inf, -np.inf], np.nan)
    table = table.dropna(subset=["value"]).reset_index(drop=True)
    title, label = "Relative to full participation", "relative to full"
    caption = "The test metric divided by that of full participation in the same round with the same seed."
    return task_figure(comparison, "relative", title, caption, table, "value", label, reference=1.0)


def loss(comparison: Comparison) -> Figure | None:
    """Test loss of each task by round."""
    caption, table = "Loss on the test examples by round.", by_task(comparison, "loss")
    return task_figure(comparison, "loss", "Test loss", caption, table, "loss", "test loss")


def differences(comparison: Comparison) -> Figure | None:
    """Every method minus every other, paired over seeds, of the final mean metric."""
    methods = comparison.methods
    if len(methods) < 2:
        return None
    table = _difference_table(comparison)
    square = (len(methods), len(methods))
    values = table["difference"].to_numpy(dtype=np.float64).reshape(square)
    blank = np.isnan(values) | np.eye(len(methods), dtype=bool)
    if blank.all():  # no two methods have a seed in common
        return None
    texts = [f"{row.difference:+.3f}{'*' if row.sure else ''}" for row in table.itertuples()]
    written = np.where(blank, "", np.array(texts).reshape(square)).tolist()
    limit = float(np.nanmax(np.abs(values))) or 1.0
    heat = Heat(np.where(blank, np.nan, values), methods, methods, "difference", -limit, limit, written)
    caption = (
        f"The row's method minus the column's: the final mean of the tasks ({final_rounds(comparison)}), paired seed "
        "by seed. A star marks differences whose 95% interval (Student's t over seeds) leaves out zero."
    )
    return Figure("differences", "Paired differences", caption, [Panel("", [heat])], table)


def _difference_table(comparison: Comparison) -> pd.DataFrame:
    """Every method minus every method, a row each, with the 95% interval over seeds; nan where one seed gives none."""
    finals, rows = comparison.finals()["mean"], []
    for method, minus in product(comparison.methods, repeat=2):
        gap = difference(finals.loc[method], finals.loc[minus])
        half = gap.half if np.isfinite(gap.half) else np.nan
        sure = abs(gap.mean) > half
        rows.append((method, minus, gap.mean, gap.mean - half, gap.mean + half, gap.pairs, sure))
    return pd.DataFrame(rows, columns=["method", "minus", "difference", "low", "high", "seeds", "sure"])


def scores(comparison: Comparison, prefix: str = "") -> pd.DataFrame:
    """The metric of every task, and under `(mean)` and `(worst)` that of all; `prefix` begins the recorded names."""
    metric, recorded = f"{prefix}metric", {name: f"{prefix}{name}" for name in SUMMARIES}
    tasks = by_task(comparison, metric).rename(columns={metric: "value"})
    rounds = by_round(comparison, *recorded.values())
    summaries = [
        rounds.drop(columns=list(recorded.values())).assign(task=f"({name})", value=rounds[column])
        for name, column in recorded.items()
    ]
    return pd.concat([tasks, *summaries], ignore_index=True)
