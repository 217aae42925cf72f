"""Accuracy of `forecast` relative to full participation, beside the methods that it competes with."""

from collections.abc import Sequence
from functools import partial

import numpy as np
import pandas as pd
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mmfl.papers.evidence import alike, all_greater, decide, fact, greater, markdown, spread
from mmfl.papers.forecast.runs import (
    FIVE,
    FULL,
    OURS,
    SMALL_FIVE,
    SMALL_THREE,
    THREE,
    Setting,
    costs_table,
    least,
    lowest_rounds,
    published_method,
    relative,
    tasks_of,
)
from mmfl.papers.measurements import by_round
from mmfl.papers.reproduction import NOTES, Claim, Findings, Frames, Part, reproduction
from mmfl.report.palette import style
from mmfl.report.plots import curve, legend

METHODS = (FULL, "random", "fedvarp", "mifa", "mmfl-lvr", "mmfl-stalevre", "mmfl-stalevr", OURS)
_GOAL_OF_THREE, _GOAL_OF_FIVE = 0.995, 0.99
_LOWEST, _DEVIATION = 0.985, 0.003  # goals for the lowest seed and for the standard deviation over seeds
_KINDS = {"accuracy": "current weights", "served": "averaged weights"}


def parts(full: Setting, small: Setting, quick: bool) -> list[Part]:
    """The parts of every method; in the quick form one for all methods."""
    folder = f"forecast-{full.name}"
    if quick:
        return [small.part(folder, "all", [published_method(method) for method in METHODS], range(small.seeds))]
    return [part for method in METHODS for part in full.parts(folder, method, published_method(method))]


def parts_of_methods(full: Setting, small: Setting, quick: bool, methods: Sequence[str], seeds: int) -> list[Part]:
    """Those of some methods, with the first so many seeds; in the quick form the one part."""
    found = parts(full, small, quick)
    return found if quick else [part for part in found if part.name.split("/")[1] in methods and part.seeds[0] < seeds]


def find(goal: float, frames: Frames) -> Findings:
    """Every method's share of full participation's accuracy, what a round of it costs, and if our goals are met."""
    current, served, lowest = relative(frames), relative(frames, "served"), lowest_rounds(frames)
    by_task = {task: relative(frames, column=task) for task in tasks_of(frames)}
    rows = [
        {
            "method": method,
            "seeds": current[method].count(),
            "current weights": spread(current[method]),
            "averaged weights": spread(served[method]),
            "lowest seed": least(current[method]),
            "lowest round": least(lowest[method]),
            **{task: f"{ratio[method].mean():.3f}" for task, ratio in by_task.items()},
        }
        for method in map(str, current)
    ]
    notes = [NOTES["forecast_columns"], "What a round costs:", markdown(costs_table(frames))]
    claims = [*_goals(goal, current, served), *_rivals(current, served), *_costs(frames)]
    return Findings(pd.DataFrame(rows), claims, notes)


def _goals(goal: float, current: pd.DataFrame, served: pd.DataFrame) -> list[Claim]:
    claims = []
    for weights, ratio in (("current", current[OURS]), ("averaged", served[OURS])):
        text = f"{OURS}, {weights} weights: at most {1 - goal:.1%} below full participation"
        claims.append(greater(text, f"goal: {goal - 1:+.3f}", ratio, 1.0, goal - 1))
        text, worst = f"{OURS}, {weights} weights: no seed ends below {_LOWEST:g} of full participation", ratio.min()
        claims.append(fact(text, f"goal: {_LOWEST:g}", f"{worst:.3f}", bool(worst >= _LOWEST)))
        text = f"{OURS}, {weights} weights: the standard deviation over seeds is at most {_DEVIATION:g}"
        claims.append(deviation_below(text, f"goal: {_DEVIATION:g}", ratio, _DEVIATION))
    return claims


def deviation_below(text: str, goal: str, values: pd.Series, most: float) -> Claim:
    """The claim that a standard deviation is at most so large; open if its 95% interval contains that."""
    known = values.dropna()
    if len(known) < 2:
        return Claim(text, goal, "one seed", decide(False, False))
    from scipy import stats  # takes a second to import

    free, deviation = len(known) - 1, float(known.std(ddof=1))
    low, high = (deviation * (free / stats.chi2.ppf(level, free)) ** 0.5 for level in (0.975, 0.025))
    shown = f"{deviation:.4f} ({low:.4f} to {high:.4f}, {len(known)} seeds, 95%)"
    return Claim(text, goal, shown, decide(high <= most, low > most))


def _rivals(current: pd.DataFrame, served: pd.DataFrame) -> list[Claim]:
    """Against every other method, both with current or both with averaged weights, each family tested together."""
    claims = []
    for name, ratio in zip(_KINDS.values(), (current, served), strict=True):
        rivals = [str(method) for method in ratio if method not in (FULL, OURS)]
        claims += all_greater(
            [(f"{OURS} ends above {rival}, both with {name}", ratio[OURS], ratio[rival]) for rival in rivals]
        )
    return claims


def _costs(frames: Frames) -> list[Claim]:
    """What makes the comparison a fair one: `forecast` costs clients what `random` costs them."""
    costs = frames["costs"].set_index(["method", "seed"])
    ours, random = costs.loc[OURS], costs.loc["random"]
    tolerance = 0.02 * float(random["trainings"].mean())
    asked = float(ours["forward_passes"].max())
    return [
        alike(f"{OURS} and random train equally often", "", ours["trainings"], random["trainings"], tolerance),
        fact(f"{OURS} asks nothing of clients that are not drawn", "", f"{asked:g} losses", asked == 0),
    ]


def draw(frames: Frames) -> Figure:
    """The mean accuracy of the tasks by round, of current and averaged weights, and the final one of every seed."""
    figure, axes = pyplot.subplots(1, 3, figsize=(14, 4.2), layout="constrained")
    methods = list(map(str, frames["accuracy"]["method"].unique()))
    for panel, (weights, title) in zip(axes, _KINDS.items(), strict=False):
        for n, method in enumerate(methods):
            curve(panel, by_round(frames[weights], "mean", method), method, n)
        panel.set(title=title, xlabel="round", ylabel="mean test accuracy of the tasks")
        panel.grid(alpha=0.3)
    _draw_seeds(axes[2], frames, methods[1:])
    legend(figure, axes[0])
    return figure


def _draw_seeds(panel: Axes, frames: Frames, methods: Sequence[str]) -> None:
    """A dot for every seed, filled for current and hollow for averaged weights."""
    for weights, shift in (("accuracy", 0.12), ("served", -0.12)):
        ratio = relative(frames, weights)
        for n, method in enumerate(methods):
            values, colour = ratio[method].dropna(), style(n + 1)[0]
            place = np.full(len(values), len(methods) - n + shift)
            fill = colour if weights == "accuracy" else "none"
            panel.scatter(values, place, s=14, facecolors=fill, edgecolors=colour, linewidths=0.8)
    panel.axvline(1.0, color="grey", linewidth=0.8)
    panel.set_yticks(range(len(methods), 0, -1), methods)
    panel.set(title="every seed; hollow: averaged weights", xlabel="final accuracy relative to full participation")
    panel.grid(axis="x", alpha=0.3)


REPRODUCTIONS = (
    reproduction("forecast-3tasks", partial(parts, THREE, SMALL_THREE), partial(find, _GOAL_OF_THREE), draw),
    reproduction("forecast-5tasks", partial(parts, FIVE, SMALL_FIVE), partial(find, _GOAL_OF_FIVE), draw),
)
