"""What the runs of Table 1 show besides: the variation of the global step (Zhang et al. 2025, Figure 2), all tasks
together or one at a time (Figure 4), and measured costs (Zhang et al. 2024, the cost columns of the slides)."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib import pyplot
from matplotlib.figure import Figure

from mmfl.papers.evidence import every, fact, greater, spread, spread_of_rounds
from mmfl.papers.measurements import KEYS, by_round
from mmfl.papers.reproduction import OWN, Claim, Findings, Frames, Part, reproduction
from mmfl.papers.variance.table1 import PAPER, parts3, parts5
from mmfl.report.plots import COLOURS, DASHES, curve, legend, panels

# Communication, computation and memory as the slides rate them.
RATED = {
    "full": "High, High, Low",
    "random": "Low, Low, Low",
    "fedvarp": "Low, Low, High",
    "mifa": "Low, Low, High",
    "scaffold": "Low, Low, Low",
    "mmfl-gvr": "Low, High, Low",
    "mmfl-gvr-star": "Low, High, High",
    "mmfl-lvr": "Low, Low, Low",
}
_MEASURES = {"communication": "MB up", "computation": "trainings", "memory": "MB stored"}
_COMPARED = ["mmfl-gvr", "roundrobin-gvr"]
_SMOOTH = 3  # accuracy is averaged over so many tests before it is compared with a target


def of_groups(parts: Sequence[Part], *groups: str) -> list[Part]:
    """The parts of Table 1 that train these groups of its methods."""
    return [part for part in parts if part.name.split("/")[1] in groups]


def total_steps(frames: Frames) -> pd.DataFrame:
    """The sum over the `tasks`, so many, of ||H||_1, by method, seed and round."""
    steps = frames["steps"]
    each = steps.drop(columns=KEYS)
    return steps[KEYS].assign(tasks=each.notna().sum(axis=1), total=each.sum(axis=1))


def find_steps(frames: Frames) -> Findings:
    """Mean and variation of the total step, and whether GVR's varies more than LVR's."""
    rows, claims = [], []
    for tasks, total in total_steps(frames).groupby("tasks"):
        groups = total.groupby(["method", "seed"])["total"]
        mean, deviation = groups.mean().unstack("method"), groups.std().unstack("method")
        for method in total["method"].unique():
            largest = f"{groups.max()[method].max():.1f}"
            rows.append([method, tasks, spread(mean[method]), spread(deviation[method]), largest])
        for method, paper in {"mmfl-gvr": "far less stable", "random": OWN}.items():
            text = f"{tasks} tasks: the step of {method} varies more from round to round than LVR's"
            claims.append(greater(text, paper, deviation[method], deviation["mmfl-lvr"]))
    columns = ["method", "expected", "mean", "standard deviation over rounds", "largest"]
    return Findings(pd.DataFrame(rows, columns=columns), claims)


def draw_steps(frames: Frames) -> Figure:
    """The total step by round, first seed, a panel per number of tasks and method."""
    steps = total_steps(frames)
    groups = list(steps.groupby(["tasks", "method"]))
    colours = dict(zip(sorted(steps["method"].unique()), COLOURS, strict=False))
    figure, axes = panels(len(groups), columns=4, xlabel="round", ylabel="sum of ||H|| over the tasks")
    for panel, ((tasks, method), total) in zip(axes, groups, strict=True):
        one = by_round(total, "total", str(method)).iloc[:, 0]
        panel.plot(one.index, one, color=colours[method], linewidth=1)
        panel.axhline(float(total["tasks"].iloc[0]), color="grey", linewidth=0.8)
        panel.set(title=f"{method}, {tasks} tasks", ylim=(0, 4 * total["tasks"].iloc[0]))
    return figure


def rounds_to(frames: Frames) -> pd.DataFrame:
    """The first tested round in which the mean over tasks, averaged over three tests, reaches each target.

    Columns tasks, method, seed, target, rounds (nan where it is never met).
    """
    table = frames["accuracy"]
    table = table[table["method"].isin(_COMPARED)]
    number = np.where(table["cifar10"].isna(), 3, 5)
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
        rounds = subset.groupby("method")["rounds"]
        rows.append([tasks, f"{target:.2f}", *(spread_of_rounds(rounds.get_group(method)) for method in _COMPARED)])
    table = pd.DataFrame(rows, columns=["tasks", "target accuracy", *_COMPARED])
    claims = [claim for tasks, subset in reached.groupby("tasks") for claim in _speed_claims(str(tasks), subset)]
    return Findings(table, claims)


def _speed_claims(tasks: str, reached: pd.DataFrame) -> list[Claim]:
    """Rounds to every target that all runs of both methods reach, and how the gap grows."""
    wide = reached.pivot_table(index=["target", "seed"], columns="method", values="rounds", dropna=False)
    both = wide.dropna().groupby("target").filter(lambda rows: len(rows) == reached["seed"].nunique())
    targets = both.index.get_level_values("target").unique()
    by_target = {f"to {target:.2f}": both.loc[target] for target in targets}
    slower = {name: greater("", "", runs["roundrobin-gvr"], runs["mmfl-gvr"]) for name, runs in by_target.items()}
    text = f"{tasks} tasks: one task a round takes more rounds than all at once to every target that all runs meet"
    claims = [every(text, "more rounds at every target", slower)] if slower else []
    if len(targets) > 1:
        gap = (both["roundrobin-gvr"] - both["mmfl-gvr"]).unstack("target")
        text = f"{tasks} tasks: the difference in rounds grows with the target"
        claims.append(greater(text, "widens", gap[targets[-1]], gap[targets[0]]))
    return claims


def draw_roundrobin(frames: Frames) -> Figure:
    """Target accuracy against rounds, a panel for three and one for five tasks; up to where all runs meet it."""
    reached = rounds_to(frames)
    numbers = sorted(reached["tasks"].unique())
    figure, axes = panels(len(numbers), xlabel="target accuracy, mean of the tasks", ylabel="rounds")
    for panel, tasks in zip(axes, numbers, strict=True):
        for n, method in enumerate(_COMPARED):
            subset = reached[(reached["tasks"] == tasks) & (reached["method"] == method)]
            wide = subset.pivot_table(index="target", columns="seed", values="rounds", dropna=False).dropna()
            curve(panel, wide, method, n)
            panel.plot(wide.index, wide.mean(axis=1), "o", color=COLOURS[n], linestyle=DASHES[n], markersize=3)
        panel.set_title(f"{tasks} tasks")
    legend(figure, axes[0])
    return figure


def costs_by_method(frames: Frames) -> pd.DataFrame:
    """Mean costs of a round, a row per method; sizes in MB."""
    mean = frames["costs"].drop(columns="seed").groupby("method").mean()
    sizes = {"bytes_up": "MB up", "bytes_down": "MB down", "stored_bytes": "MB stored"}
    mean[list(sizes)] /= 1e6
    return mean.rename(columns=sizes).loc[[method for method in PAPER if method in mean.index]]


def find_costs(frames: Frames) -> Findings:
    """Costs per round, beside the slides' ratings of communication, computation and memory."""
    costs = costs_by_method(frames)
    columns = {
        "slides: communication, computation, memory": [RATED.get(str(method), "") for method in costs.index],
        "updates sent": costs["processors"].map("{:.1f}".format),
        "MB up": costs["MB up"].map(_amount),
        "MB down": costs["MB down"].map(_amount),
        "trainings": costs["trainings"].map("{:,.1f}".format),
        "forward passes": costs["forward_passes"].map("{:,.0f}".format),
        "MB stored": costs["MB stored"].map(_amount),
    }
    return Findings(pd.DataFrame(columns, costs.index).reset_index(), rating_claims(costs))


def rating_claims(costs: pd.DataFrame) -> list[Claim]:
    """A rating of High should mean more than four times the cost of any method that is rated Low."""
    found = []
    for n, (word, column) in enumerate(_MEASURES.items()):
        high, low = (
            [method for method, ratings in RATED.items() if ratings.split(", ")[n] == kind] for kind in ("High", "Low")
        )
        smallest, largest, worst = costs[column][high].min(), costs[column][low].max(), costs[column][low].idxmax()
        text = f"{word}: High for {'/'.join(high)}, Low for the others"
        shown = f"{column}: at least {_amount(smallest)} against at most {_amount(largest)} ({worst})"
        found.append(fact(text, "ratings", shown, bool(smallest > 4 * largest)))
    return found


def _amount(number: float) -> str:
    return f"{number:,.1f}" if number >= 1 else f"{number:.2g}"


def draw_costs(frames: Frames) -> Figure:
    """The costs of each method per round, a panel per kind of cost."""
    costs = costs_by_method(frames)[::-1]
    kinds = ["trainings", "forward_passes", "MB up", "MB down", "MB stored"]
    titles = {"trainings": "local trainings", "forward_passes": "forward passes"}
    figure, axes = pyplot.subplots(1, len(kinds), figsize=(12.6, 4.2), sharey=True, layout="constrained")
    for panel, kind, colour in zip(axes, kinds, COLOURS, strict=False):
        panel.barh(costs.index, costs[kind], color=colour)
        panel.set(title=titles.get(kind, kind), xlabel="at the end" if kind == "MB stored" else "in a round")
        panel.grid(axis="x", alpha=0.3)
    return figure


REPRODUCTIONS = (
    reproduction("table1-costs", parts3, find_costs, draw_costs),
    reproduction(
        "fig2-global-step",
        lambda quick: of_groups([*parts3(quick), *parts5(quick)], "memoryless", "drawn", "mmfl-gvr"),
        find_steps,
        draw_steps,
    ),
    reproduction(
        "fig4-roundrobin",
        lambda quick: of_groups([*parts3(quick), *parts5(quick)], "memoryless", "full", *_COMPARED),
        find_roundrobin,
        draw_roundrobin,
    ),
)
