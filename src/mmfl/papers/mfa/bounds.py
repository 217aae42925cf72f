"""Theorems 1 to 3 of Bhuyan, Moharir & Joshi 2022 compared with our runs: predicted and measured bounds and gains."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mmfl.papers.evidence import fact, greater, markdown, spread
from mmfl.papers.mfa.chain import Chain
from mmfl.papers.mfa.quadratic_findings import RAND, ROTATE, draw_gain, with_gain
from mmfl.papers.reproduction import NOTES, OWN, Claim, Findings, Frames
from mmfl.report.plots import COLOURS, panels
from mmfl.theory import ErrorBound, RandomSplitBound, RotatingSplitBound, gain

SLOWER, COUNTED = "mfa-rr, lr / M", "mfa-rr, update / N"
READINGS = [RAND, ROTATE, SLOWER, COUNTED]
"""MFA-Rand under Theorem 1, and three ways to run MFA-RR under Theorem 2.

The theorem assumes that each update has weight 1 / N. A server that averages its N / M clients takes M times that step;
it may train with the theorem's learning rate anyway, or with 1 / M of it.
"""

STEPS = 5
_THEOREM_1, _THEOREM_2, _MIXED = "by Theorem 1", "by Theorem 2", "by Theorem 2 over 1"


def bound_of(reading: str, chain: Chain, models: int, gradient_bound: float, steps: int = STEPS) -> ErrorBound:
    """The bound for a way to train, with twice the smallest beta and the smallest gamma."""
    kind = RandomSplitBound if reading == RAND else RotatingSplitBound
    problem = chain.problem(steps, models, gradient_bound)
    beta = 2 / problem.strong_convexity
    return kind(problem=problem, beta=beta, gamma=kind.caution * problem.smoothness * beta, start=chain.start)


@dataclass(frozen=True, eq=False)
class Case:
    """A way to train on a chain: bound and distances [rounds, seeds] in first rounds of frames; how close they came."""

    reading: str
    curvature: float
    bound: pd.Series
    measured: pd.DataFrame
    closest: float
    closest_round: int

    @property
    def theorem(self) -> str:
        """Its theorem, and the order that it states."""
        return "Theorem 1, 1 / sqrt(t)" if self.reading == RAND else "Theorem 2, 1 / t"

    @property
    def slopes(self) -> pd.Series:
        """The slope of the distance, by seed."""
        return self.measured.apply(slope)

    @property
    def decays(self) -> bool:
        """Whether the run is long enough for the bound to fall to less than half."""
        return bool(2 * self.bound.iloc[-1] < self.bound.iloc[0])


def slope(values: pd.Series) -> float:
    """The slope of a quantity by round in a log-log plot, fitted to the last decade of rounds.

    >>> rounds = np.arange(1, 1001)
    >>> round(slope(pd.Series(3.0 / rounds**2, rounds)), 6)
    -2.0
    """
    late = values[values.index >= values.index.max() / 10]
    return float(np.polyfit(np.log(late.index.to_numpy(dtype=float)), np.log(late.to_numpy()), 1)[0])


def cases_of(frames: Frames) -> Iterator[Case]:
    """Every chain and way to train that was measured, with its bound."""
    for case in frames["cases"].to_dict("records"):
        reading, curvature = case["reading"], case["curvature"]
        subset = frames["distances"].query("reading == @reading and curvature == @curvature")
        measured = subset.pivot_table(index="round", columns="seed", values="distance")
        bound = bound_of(reading, Chain(case["clients"], case["block"], curvature), case["models"], case["steepest"])
        by_round = pd.Series(bound.error(measured.index.to_numpy()), measured.index)
        yield Case(reading, curvature, by_round, measured, case["closest"], case["closest_round"])


def find(frames: Frames) -> Findings:
    """Bounds and distances; predicted and measured gains."""
    cases = list(cases_of(frames))
    lines = [
        [
            f"{case.curvature:g}",
            case.reading,
            case.measured.index.max(),
            f"{case.bound.iloc[-1]:.3g}",
            spread(case.measured.iloc[-1], 5),
            f"{case.closest:,.0f} (round {case.closest_round})",
            f"{slope(case.bound):.2f}",
            spread(case.slopes, 2),
        ]
        for case in cases
    ]
    columns = ["mu", "method", "round", "bound", "distance", "least bound / distance", "slope of bound", "of distance"]
    claims = [claim for case in cases for claim in bound_claims(case)]
    gains = gains_of(frames)
    claims += [*order_claims(cases), gain_claim(gains)]
    shown = gains.set_index(["steps", "models"]).map("{:.3g}".format).rename_axis(["E", "M"])
    notes = [NOTES["bounds"], NOTES["predicted_gains"], markdown(shown.reset_index())]
    return Findings(pd.DataFrame(lines, columns=columns), claims, notes)


def bound_claims(case: Case) -> Iterator[Claim]:
    """The claims that the bound holds and, if it falls during the run, that the distance falls as fast."""
    setting = f"mu = {case.curvature:g}, {case.reading}"
    seen = f"at least {case.closest:,.1f} times the mean distance"
    paper = OWN if case.reading in (SLOWER, COUNTED) else case.theorem
    yield fact(f"{setting}: the bound holds in every round", paper, seen, case.closest >= 1)
    if case.decays:
        theirs = slope(case.bound)
        text = f"{setting}: the distance falls as fast as the bound (log-log slope {theirs:.2f}, within 0.1)"
        yield greater(text, paper, theirs, case.slopes, margin=-0.1)


def order_claims(cases: Sequence[Case]) -> Iterator[Claim]:
    """The claims that MFA-RR ends closer to the optimum than MFA-Rand, where the bounds fall."""
    ends = {(case.curvature, case.reading): case.measured.iloc[-1].apply(np.log10) for case in cases if case.decays}
    for (curvature, reading), end in ends.items():
        if reading != RAND and (curvature, RAND) in ends:
            text = f"mu = {curvature:g}: {reading} ends nearer to the optimum than mfa-rand (log10 of the distances)"
            paper = "1 / t against 1 / sqrt(t)" if reading == ROTATE else OWN
            yield greater(text, paper, ends[curvature, RAND], end)


def gains_of(frames: Frames) -> pd.DataFrame:
    """Measured and predicted gain by local steps and models.

    The bounds are asked for the rounds until the distance that FedAvg has when it meets the target of Figure 2.
    """
    gains = with_gain(frames["gains"]).pivot_table(index=["steps", "models"], columns="method", values="gain")
    targets = {target["steps"]: target for target in frames["targets"].to_dict("records")}
    promised = pd.DataFrame([predicted_gains(targets[steps], models) for steps, models in gains.index.to_list()])
    return pd.concat([gains.reset_index(), promised], axis=1)


def predicted_gains(target: Any, models: int) -> dict[str, float]:
    """The gain by Theorem 1, by Theorem 2 relative to itself with one model, and relative to FedAvg by Theorem 1."""
    chain, epsilon = Chain(target["clients"], target["block"], target["curvature"]), target["distance"]
    random, rotating = (
        bound_of(method, chain, models, target["steepest"], target["steps"]) for method in (RAND, ROTATE)
    )
    return {
        _THEOREM_1: gain(random, epsilon),
        _THEOREM_2: gain(rotating, epsilon),
        _MIXED: gain(rotating, epsilon, single=random.with_models(1)),
    }


def gain_claim(gains: pd.DataFrame) -> Claim:
    """Theorem 3: the gain of MFA-Rand exceeds 1 and grows with M, by its bound and as measured."""
    grows = all(
        (np.diff([1.0, *group.sort_values("models")[column]]) > 0).all()
        for _, group in gains.groupby("steps")
        for column in (_THEOREM_1, RAND)
    )
    many = gains[gains["models"] == gains["models"].max()]
    bound, measured = (f"{many[column].min():.1f} to {many[column].max():.1f}" for column in (_THEOREM_1, RAND))
    text = "mfa-rand: gain exceeds 1 and grows with M, both by Theorem 1 and as measured"
    return fact(text, "Theorem 3", f"M = {gains['models'].max()}: {bound} by the bound, {measured} measured", grows)


def draw(frames: Frames) -> Figure:
    """A panel of bounds and distances for each chain, and one of gains for each method."""
    cases = list(cases_of(frames))
    chains = list(dict.fromkeys(case.curvature for case in cases))
    methods = [(RAND, _THEOREM_1), (ROTATE, _THEOREM_2)]
    figure, axes = panels(len(chains) + len(methods), columns=2, height=3.6)
    for panel, curvature in zip(axes, chains, strict=False):
        draw_bounds(panel, [case for case in cases if case.curvature == curvature])
        panel.set_title(f"mu = {curvature:g}")
    for panel, (method, theorem) in zip(axes[len(chains) :], methods, strict=True):
        draw_gains(panel, frames, method, theorem)
    lines = axes[0].get_legend_handles_labels()
    figure.legend(*lines, loc="outside upper center", ncols=3, frameon=False, fontsize=8)
    return figure


def draw_bounds(axes: Axes, cases: Sequence[Case]) -> None:
    """Bounds dashed, distances solid; the readings of Theorem 2 share theirs."""
    for case in cases:
        colour = COLOURS[READINGS.index(case.reading)]
        if case.reading in (RAND, ROTATE):
            axes.loglog(case.bound, "--", color=colour, label=f"bound: {case.theorem}")
        axes.loglog(case.measured.mean(axis=1), color=colour, linewidth=1.2, label=case.reading)
    axes.set(xlabel="round t", ylabel="distance to the optimum")


def draw_gains(axes: Axes, frames: Frames, method: str, theorem: str) -> None:
    """Measured gain over the number of models, and dotted what the theorem says."""
    measured = with_gain(frames["gains"])
    for k, (steps, group) in enumerate(gains_of(frames).groupby("steps")):
        draw_gain(axes, measured.query("steps == @steps and method == @method"), f"E = {steps}, measured", k)
        line = [1, *group["models"]], [1.0, *group[theorem]]
        axes.plot(*line, ":", marker="x", color=COLOURS[k], label=f"E = {steps}, {theorem}")
    axes.set(xlabel="models M", ylabel="gain", title=method)
    axes.legend(fontsize=7)
