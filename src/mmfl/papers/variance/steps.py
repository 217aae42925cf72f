"""Figures 2 and 4 of Zhang et al. 2025: the variation of the global step, and all tasks together or one at a time."""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from mmfl.papers.evidence import greater, spread
from mmfl.papers.measurements import KEYS, by_round
from mmfl.papers.panels import panels
from mmfl.papers.reproduction import Claim, Findings, Frames, Part, reproduction
from mmfl.papers.variance.table1 import parts3, parts5
from mmfl.report.plots import COLOURS, DASHES, curve, legend

_COMPARED = ["mmfl-gvr", "roundrobin-gvr"]
_SMOOTH = 3  # accuracy is averaged over so many tests before it is compared with a target


def step_parts(quick: bool) -> list[Part]:
    """The three-task runs of Table 1 with recorded step sizes."""
    return [part for part in parts3(quick) if part.name.endswith("/memoryless")]


def total_steps(frames: Frames) -> pd.DataFrame:
    """The sum over the tasks of ||H||_1, by method, seed and round."""
    steps = frames["steps"]
    tasks = [column for column in steps if column not in KEYS]
    return steps[KEYS].assign(total=steps[tasks].sum(axis=1))


def find_steps(frames: Frames) -> Findings:
    """Mean and variation of the total step, and whether GVR's varies more than LVR's."""
    total = total_steps(frames)
    groups = total.groupby(["method", "seed"])["total"]
    mean, deviation = groups.mean().unstack("method"), groups.std().unstack("method")
    expected = len(frames["steps"].columns) - len(KEYS)
    rows = [
        [method, expected, spread(mean[method]), spread(deviation[method]), f"{groups.max()[method].max():.1f}"]
        for method in dict.fromkeys(total["method"])
    ]
    table = pd.DataFrame(rows, columns=["method", "expected", "mean", "standard deviation over rounds", "largest"])
    claims = []
    for other, paper in (("mmfl-gvr", "far less stable"), ("random", "")):
        if {other, "mmfl-lvr"} <= set(deviation):
            text = f"the step of {other} varies more from round to round than LVR's"
            claims.append(greater(text, paper, deviation[other], deviation["mmfl-lvr"]))
    return Findings(table, claims)


def draw_steps(frames: Frames) -> Figure:
    """The total step by round, first seed, a panel per method."""
    total = total_steps(frames)
    methods = list(dict.fromkeys(total["method"]))
    figure, axes = panels(len(methods), columns=2, xlabel="round", ylabel="sum of ||H|| over the tasks")
    for n, (panel, method) in enumerate(zip(axes, methods, strict=True)):
        one = by_round(total, "total", method).iloc[:, 0]
        panel.plot(one.index, one, color=COLOURS[n], linewidth=1)
        panel.axhline(len(frames["steps"].columns) - len(KEYS), color="grey", linewidth=0.8)
        panel.set(title=method, ylim=(0, total["total"].max()))
    return figure


def roundrobin_parts(quick: bool) -> list[Part]:
    """The runs of Table 1 with MMFL-GVR and RoundRobin-GVR, three and five tasks."""
    wanted = ("memoryless", "full", *_COMPARED)
    return [part for part in [*parts3(quick), *parts5(quick)] if part.name.split("/")[1] in wanted]


def rounds_to(frames: Frames) -> pd.DataFrame:
    """The first tested round in which the mean over tasks, averaged over three tests, reaches each target.

    Columns tasks, method, seed, target, rounds (nan where it is never met).
    """
    table = frames["accuracy"]
    table = table[table["method"].isin(_COMPARED)]
    number = np.where(table["cifar10"].isna(), 3, 5) if "cifar10" in table else np.full(len(table), 3)
    rows = []
    for (tasks, method, seed), run in table.groupby([number, "method", "seed"]):
        run = run.sort_values("round")
        smooth = run["mean"].rolling(_SMOOTH, min_periods=1).mean()
        for target in np.arange(0.2, 0.95, 0.05).round(2):
            met = run["round"][smooth >= target]
            rows.append([tasks, method, seed, target, met.iloc[0] if len(met) else np.nan])
    return pd.DataFrame(rows, columns=["tasks", "method", "seed", "target", "rounds"])


def find_roundrobin(frames: Frames) -> Findings:
    """Rounds to each target accuracy, for both methods."""
    reached = rounds_to(frames)
    met = reached.groupby(["tasks", "target"])["rounds"].transform("count") > 0
    rows = []
    for (tasks, target), subset in reached[met].groupby(["tasks", "target"]):
        cells = {method: _describe_rounds(run["rounds"]) for method, run in subset.groupby("method")}
        rows.append([tasks, f"{target:.2f}", *(cells.get(method, "") for method in _COMPARED)])
    table = pd.DataFrame(rows, columns=["tasks", "target accuracy", *_COMPARED])
    claims = [claim for tasks, subset in reached.groupby("tasks") for claim in _speed_claims(str(tasks), subset)]
    return Findings(table, claims)


def _describe_rounds(rounds: pd.Series) -> str:
    missed = f" (missed by {rounds.isna().sum()} of {len(rounds)})" if rounds.isna().any() else ""
    return spread(rounds, 0) + missed


def _speed_claims(tasks: str, reached: pd.DataFrame) -> list[Claim]:
    """Rounds to the middle and the highest target that all runs of both methods reach, and how the gap grows."""
    wide = reached.pivot_table(index=["target", "seed"], columns="method", values="rounds", dropna=False)
    if set(wide) != set(_COMPARED):
        return []
    both = wide.dropna().groupby("target").filter(lambda rows: len(rows) == reached["seed"].nunique())
    targets = both.index.get_level_values("target").unique()
    claims = []
    for target in dict.fromkeys([*targets[len(targets) // 2 :][:1], *targets[-1:]]):
        subset = both.loc[target]
        text = f"{tasks} tasks: one task a round takes more rounds to accuracy {target:.2f} than all at once"
        claims.append(greater(text, "more rounds at every target", subset["roundrobin-gvr"], subset["mmfl-gvr"]))
    if len(targets) > 1:
        gap = (both["roundrobin-gvr"] - both["mmfl-gvr"]).unstack("target")
        text = f"{tasks} tasks: the difference in rounds grows with the target"
        claims.append(greater(text, "widens", gap[targets[-1]], gap[targets[0]]))
    return claims


def draw_roundrobin(frames: Frames) -> Figure:
    """Target accuracy against rounds, a panel for three and one for five tasks."""
    reached = rounds_to(frames)
    numbers = sorted(reached["tasks"].unique())
    figure, axes = panels(len(numbers), xlabel="target accuracy, mean of the tasks", ylabel="rounds")
    for panel, tasks in zip(axes, numbers, strict=True):
        for n, method in enumerate(_COMPARED):
            subset = reached[(reached["tasks"] == tasks) & (reached["method"] == method)]
            wide = subset.pivot_table(index="target", columns="seed", values="rounds")
            curve(panel, wide, method, n)
            panel.plot(wide.index, wide.mean(axis=1), "o", color=COLOURS[n], linestyle=DASHES[n], markersize=3)
        panel.set_title(f"{tasks} tasks")
    legend(figure, axes[0])
    return figure


REPRODUCTIONS = (
    reproduction("fig2-global-step", step_parts, find_steps, draw_steps),
    reproduction("fig4-roundrobin", roundrobin_parts, find_roundrobin, draw_roundrobin),
)
