"""The results of a comparison as tables of texts: for the terminal as for a page."""

from typing import Any

import pandas as pd

from mmfl.federation.metrics import METRICS
from mmfl.federation.objectives import lower_is_better
from mmfl.report.differences import difference
from mmfl.runs.results import Comparison

_COSTS = ["trainings", "forward_passes", "megabytes"]
_HEADINGS = {
    "average_mean": "mean, averaged",
    "spread": "± of mean",
    "relative": "of full",
    "forward_passes": "forward passes",
    "megabytes": "MB sent",
}


def results(comparison: Comparison) -> dict[str, pd.DataFrame]:
    """Tables by title, a row per method: final metric, cost of a round, and faults of nodes."""
    frame = comparison.table()
    final = in_words(frame.drop(columns=_COSTS).dropna(axis=1, how="all"))
    for heading, values in (("last rounds", _windows(comparison)), ("seeds", _seeds(comparison))):
        if len(set(values)) > 1:
            final[heading] = values
    tables = {final_title(comparison): final, "cost of a round": in_words(frame[_COSTS])}
    if len(times := clock(comparison)):
        tables["on the devices' clock"] = times
    faults = pd.DataFrame({method: sum(run.faults.sum() for run in comparison.of(method)) for method in frame.index}).T
    if len(faults.columns):
        counts = faults.fillna(0).astype(int).rename_axis("method").reset_index()
        tables["what went wrong with nodes, in all rounds"] = counts.astype(str)
    return tables | further_metrics(comparison) | by_client(comparison)


def clock(comparison: Comparison) -> pd.DataFrame:
    """What the devices' clock says, a row per method: how long a round and the run took, how much of their time devices
    worked, and which share of their work was wasted, by cause; no rows without devices."""
    rows = []
    for method in comparison.methods:
        times = pd.concat([run.times for run in comparison.of(method)])
        if len(times):
            wasted = times.filter(like="wasted_").sum() / max(times["busy"].sum(), 1e-12)
            rows.append(
                {
                    "method": method,
                    "seconds a round": f"{times['seconds'].mean():,.4g}",
                    "seconds in all": f"{times['seconds'].sum() / len(comparison.of(method)):,.4g}",
                    "utilisation": f"{times['busy'].sum() / max(times['offered'].sum(), 1e-12):.1%}",
                    **{str(name).replace("_", ": "): f"{share:.1%}" for name, share in wasted.items()},
                }
            )
    return pd.DataFrame(rows).fillna("")


def further_metrics(comparison: Comparison) -> dict[str, pd.DataFrame]:
    """All metrics of tasks that have several, or one that is undefined: a row per method and task."""
    rows = []
    for method in comparison.methods:
        finals = Comparison(comparison.of(method)).metrics().loc[method]  # of the metrics that its runs recorded
        for task, found in finals.groupby(level="task", sort=False):
            if len(found) > 1 or found.isna().any():
                values = found.droplevel("task").items()
                texts = {with_direction(str(name)): _or_undefined(value) for name, value in values}
                rows.append({"method": method, "task": task, **texts})
    return {f"all test metrics: {final_rounds(comparison)}": pd.DataFrame(rows).fillna("")} if rows else {}


def by_client(comparison: Comparison) -> dict[str, pd.DataFrame]:
    """How the metric is distributed over clients with test examples of their own: a row per method and task."""
    frame = comparison.clients()
    if frame.empty:
        return {}
    words = {name: name.replace("_", " ") for name in ("mean", "worst_tenth", "deviation", "median", "fairness")}
    texts = {word: frame[name].map(_or_undefined) for name, word in words.items()}
    table = pd.DataFrame({**texts, "clients": frame["clients"].map("{:,.0f}".format)})
    if frame["undefined"].any():
        table["undefined for"] = frame["undefined"].map("{:,.0f}".format)
    return {f"test metric by client, on its own examples: {final_rounds(comparison)}": table.reset_index()}


def with_direction(metric: str) -> str:
    """A metric's name, and whether lower is better as far as the package knows."""
    lower = metric in METRICS and lower_is_better(METRICS[metric])
    return f"{metric}, lower is better" if lower else metric


def _or_undefined(value: Any) -> str:
    return "undefined" if pd.isna(value) else f"{value:.3f}"


def final_title(comparison: Comparison) -> str:
    """What the final metric is the mean of. Where that is not the same for all methods, a column says it."""
    seeds = set(_seeds(comparison))
    over = f"{next(iter(seeds))} seed{'s' if seeds != {'1'} else ''}" if len(seeds) == 1 else "seeds as listed"
    spread = "; ± of mean: its standard deviation over seeds" if seeds != {"1"} else ""
    return f"final test metric: {final_rounds(comparison)}, {over}{spread}"


def final_rounds(comparison: Comparison) -> str:
    """The rounds that are final."""
    windows = set(_windows(comparison))
    number = f"{next(iter(windows))} " if len(windows) == 1 else ""
    return "last tested round" if windows == {"1"} else f"mean of the last {number}tested rounds"


def _windows(comparison: Comparison) -> list[str]:
    """How many of the last tested rounds each method's final metric is the mean of."""
    windows = [sorted({run.window for run in comparison.of(method)}) for method in comparison.methods]
    return [" to ".join(map(str, dict.fromkeys((each[0], each[-1])))) for each in windows]


def _seeds(comparison: Comparison) -> list[str]:
    return [str(len(comparison.of(method))) for method in comparison.methods]


def paired_differences(comparison: Comparison) -> dict[str, pd.DataFrame]:
    """Differences of the final mean and worst task to the first method and to full participation of the same
    experiment, paired over seeds, with 95% intervals; nothing where there is a single method."""
    finals, (first, *_) = comparison.finals(), comparison.methods
    full_of = {method: comparison.full_of(method) for method in comparison.methods}
    tables = {}
    for other in dict.fromkeys([first, *(method for method, full in full_of.items() if method == full)]):
        title = f"paired differences: final test metric minus that of {other}, seed by seed, 95% intervals"
        compared = [method for method in full_of if method != other and other in (first, full_of[method])]
        gaps = {
            name: [difference(finals.loc[method][name], finals.loc[other][name]).interval() for method in compared]
            for name in ("mean", "worst")
        }
        if compared:
            tables[title] = pd.DataFrame({"method": compared, **gaps})
    return tables


def in_words(frame: pd.DataFrame) -> pd.DataFrame:
    """Numbers as they are read, with the method as the first column."""
    texts = {_HEADINGS.get(str(name), name): [cell(str(name), value) for value in frame[name]] for name in frame}
    return pd.DataFrame({"method": [str(method) for method in frame.index], **texts})


def cell(column: str, value: Any) -> str:
    """How a value of a comparison's table is written."""
    if pd.isna(value):
        return ""
    if column in ("trainings", "forward_passes"):
        return f"{value:,.1f}"
    return f"{value:,.2f}" if column == "megabytes" else f"{value:.3f}"
