"""Accuracy against what is paid for it, from the runs that compare `forecast` with other methods."""

from functools import partial

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from mmfl.papers.evidence import LEVEL, decide, holm, markdown, show_p, spread
from mmfl.papers.forecast.accuracy import parts
from mmfl.papers.forecast.runs import FIVE, FULL, OURS, SMALL_FIVE, SMALL_THREE, THREE
from mmfl.papers.measurements import final
from mmfl.papers.reproduction import NOTES, Claim, Findings, Frames, reproduction
from mmfl.report.plots import curve, legend, panels

TARGETS = (0.95, 0.98, 0.99)
"""Shares of full participation's final accuracy."""

_SMOOTH = 3  # accuracy is averaged over so many tests before it is compared with a target
_PRICES = {
    "rounds": "rounds",
    "trainings": "trainings",
    "down": "MB down",
    "up": "MB up",
    "bytes": "MB down and up",
}


def prices(frames: Frames) -> pd.DataFrame:
    """What a round costs on average, by method and seed; sizes in MB."""
    costs = frames["costs"].set_index(["method", "seed"])
    down, up = costs["bytes_down"] / 1e6, costs["bytes_up"] / 1e6
    return pd.DataFrame({"rounds": 1.0, "trainings": costs["trainings"], "down": down, "up": up, "bytes": down + up})


def smooth_ratios(frames: Frames) -> pd.DataFrame:
    """Mean accuracy of the current weights relative to full participation's final one of the same seed, averaged over
    three tests: columns method, seed, round and `ratio`."""
    tests = frames["accuracy"].sort_values("round", kind="stable")
    full = final(frames["accuracy"])["mean"].loc[FULL]
    ratio = tests["mean"] / tests["seed"].map(full)
    mean = ratio.groupby([tests["method"], tests["seed"]]).transform(lambda run: run.rolling(_SMOOTH, 1).mean())
    return tests[["method", "seed", "round"]].assign(ratio=mean)


def rounds_to(frames: Frames) -> pd.DataFrame:
    """The first tested round with each target, [(method, seed), targets]; nan where a run never has it."""
    runs = smooth_ratios(frames).groupby(["method", "seed"], sort=False)
    first = {target: runs.apply(partial(_first, target), include_groups=False) for target in TARGETS}
    return pd.DataFrame(first)


def _first(target: float, run: pd.DataFrame) -> float:
    met = run["round"][run["ratio"] >= target]
    return float(met.iloc[0]) if len(met) else np.nan


def find(frames: Frames) -> Findings:
    """Rounds to each target, and what they cost; whether `forecast` gets there with less."""
    reached, price, last = rounds_to(frames), prices(frames), int(frames["accuracy"]["round"].max())
    tables = {name: _table(reached.mul(price[name], axis=0), last) for name in ("rounds", "bytes", "trainings")}
    notes = [NOTES["forecast_cost"]]
    for name in ("bytes", "trainings"):
        notes += [f"{_PRICES[name]} to each target:", markdown(tables[name])]
    claims = [claim for name in ("bytes", "trainings") for claim in _claims(reached, price, name, last)]
    return Findings(tables["rounds"], claims, notes)


def _table(costs: pd.DataFrame, last: int) -> pd.DataFrame:
    """A row per method: mean and deviation where every seed got there, otherwise how many did not."""
    rows = []
    for method in costs.index.get_level_values("method").unique():
        found = costs.loc[method]
        rows.append([method, *(_describe(found[target].dropna(), len(found), last) for target in TARGETS)])
    return pd.DataFrame(rows, columns=["method", *(f"{target:.0%} of full participation" for target in TARGETS)])


def _describe(met: pd.Series, seeds: int, last: int) -> str:
    if len(met) == seeds:
        return spread(met, 0)
    others = f", in the others {met.min():.0f} to {met.max():.0f}" if len(met) else ""
    return f"not within {last} rounds in {seeds - len(met)} of {seeds} runs{others}"


def _claims(reached: pd.DataFrame, price: pd.DataFrame, name: str, last: int) -> list[Claim]:
    """That `forecast` gets to the middle target with less than each other method: sign tests, made together."""
    target = TARGETS[1]
    paid = reached[target] * price[name]
    others = [str(method) for method in paid.index.get_level_values("method").unique() if method != OURS]
    counts = {other: _wins(paid, price[name] * last, other) for other in others}
    chances = holm([_sign_test(won, lost) for won, lost in counts.values()])
    claims = []
    for (other, (won, lost)), p in zip(counts.items(), chances, strict=True):
        text = f"{OURS} reaches {target:.0%} of full participation with fewer {_PRICES[name]} than {other}"
        shown = f"fewer in {won} of {won + lost} decided pairs, {show_p(p)}"
        claims.append(Claim(text, "", shown, decide(p < LEVEL and won > lost, p < LEVEL and won < lost)))
    return claims


def _wins(paid: pd.Series, most: pd.Series, other: str) -> tuple[int, int]:
    """In how many seeds ours paid less than another method, and in how many more.

    A run that never got there paid more than what all its rounds cost; seeds that this does not decide are left out.
    """
    seeds = paid.loc[OURS].index.intersection(paid.loc[other].index)
    ours, theirs = paid.loc[OURS][seeds], paid.loc[other][seeds]
    our_least, their_least = ours.fillna(most.loc[OURS]), theirs.fillna(most.loc[other])
    won = ours.notna() & (ours < their_least)
    lost = theirs.notna() & (theirs < our_least)
    return int(won.sum()), int(lost.sum())


def _sign_test(won: int, lost: int) -> float:
    from scipy import stats  # takes a second to import

    return float(stats.binomtest(won, won + lost).pvalue) if won + lost else 1.0


def draw(frames: Frames) -> Figure:
    """Relative accuracy against rounds, trainings and megabytes, a curve for each method."""
    table, price = smooth_ratios(frames), prices(frames).groupby("method").mean()
    kinds = ["rounds", "trainings", "down", "up"]
    figure, axes = panels(len(kinds), columns=2, ylabel="relative accuracy")
    for panel, kind in zip(axes, kinds, strict=True):
        for n, method in enumerate(map(str, frames["accuracy"]["method"].unique())):
            runs = table[table["method"] == method].pivot(index="round", columns="seed", values="ratio")
            runs.index = pd.Index(runs.index.to_numpy(dtype=float) * float(price[kind][method]))
            curve(panel, runs, method, n)
        panel.set(xlabel=_PRICES[kind], ylim=(0.5, 1.02))
        if kind != "rounds":
            panel.set_xscale("log")
        for target in TARGETS:
            panel.axhline(target, color="grey", linewidth=0.5, linestyle=":")
    legend(figure, axes[0])
    return figure


REPRODUCTIONS = (
    reproduction("forecast-cost-3tasks", partial(parts, THREE, SMALL_THREE), find, draw),
    reproduction("forecast-cost-5tasks", partial(parts, FIVE, SMALL_FIVE), find, draw),
)
