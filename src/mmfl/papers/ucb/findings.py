"""Findings from the runs of Bhuyan & Moharir 2022: accuracies by policy and start, claims, tables, figures."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import product

import pandas as pd
from matplotlib.figure import Figure

from mmfl.papers.evidence import alike, every, greater, spread
from mmfl.papers.measurements import by_round
from mmfl.papers.reproduction import NOTES, OWN, Claim, Findings, Frames
from mmfl.papers.ucb.training import CLIENTS, FEDAVG, FIRST, MODELS, MULTI, PARETO, RANKLIST, with_warm_up
from mmfl.report.plots import curve, legend, panels

NAMES = {
    FEDAVG: "FedAvg (K/2 clients)",
    MULTI: "Multi-FedAvg",
    RANKLIST: "Ranklist-Multi-UCB",
    PARETO: "Pareto-Multi-UCB",
}
BANDITS = (RANKLIST, PARETO)
BOTH = "mean of both"


STARTS = {False: "as published", True: "same warm-up for all"}
"""How the policies start: only the bandits with a warm-up, as in the paper, or, to be fair, all of them."""


@dataclass(frozen=True)
class Runs:
    """Test accuracies with one start. A model is one of `MODELS` or `BOTH`; all quantities are series by seed."""

    tests: pd.DataFrame
    fair: bool

    def at(self, data: str, drawn: int) -> "Runs":
        """Those on a data set with K clients per round."""
        subset = self.tests[(self.tests["data"] == data) & (self.tests["K"] == drawn)]
        return Runs(subset.assign(**{BOTH: subset[list(MODELS)].mean(axis=1)}), self.fair)

    def sweep(self, data: str) -> "dict[int, Runs]":
        """Those on a data set by K."""
        numbers = sorted(self.tests["K"][self.tests["data"] == data].unique())
        return {int(drawn): self.at(data, drawn) for drawn in numbers}

    def over(self, policy: str, model: str, first: float, last: float) -> pd.Series:
        """Mean accuracy over the tests between two rounds."""
        tests = self.by_round(policy, model)
        return tests[(tests.index >= first) & (tests.index <= last)].mean()

    def early(self, policy: str, model: str) -> pd.Series:
        """Mean accuracy in the first tenth of the rounds."""
        return self.over(policy, model, FIRST + 1, self.rounds / 10)

    def late(self, policy: str, model: str) -> pd.Series:
        """Mean accuracy in the last tenth of the rounds."""
        return self.over(policy, model, self.rounds - self.rounds // 10 + 1, self.rounds)

    def lead(self, ours: str, theirs: str, model: str) -> pd.Series:
        """The difference in final accuracy between two policies."""
        return self.late(ours, model) - self.late(theirs, model)

    def noise(self, policy: str, model: str) -> pd.Series:
        """The root mean square change of accuracy from one test to the next, in the second half of the rounds."""
        tests = self.by_round(policy, model)
        return tests[tests.index > self.rounds / 2].diff().pow(2).mean().pow(0.5)

    @property
    def rounds(self) -> int:
        """The last round."""
        return int(self.tests["round"].max())

    def by_round(self, policy: str, model: str) -> pd.DataFrame:
        """Accuracy, rounds x seeds."""
        return by_round(self.tests, model, method_of(policy, self.fair))


def method_of(policy: str, fair: bool) -> str:
    """The policy's method, with a warm-up that the paper does not give it where the start is fair."""
    return with_warm_up(policy) if fair and policy not in BANDITS else policy


@dataclass(frozen=True)
class Question:
    """Whether the first of two quantities exceeds the second, or is within a tolerance, in some respects (`pairs`)."""

    text: str
    paper: str
    pairs: Mapping[str, tuple[pd.Series, pd.Series]]
    tolerance: float | None = None

    def claim(self, fair: bool) -> Claim:
        """The claim that it is so in all respects."""
        judge = greater if self.tolerance is None else partial(alike, tolerance=self.tolerance)
        text, paper = f"{self.text} ({STARTS[fair]})", OWN if fair else self.paper
        judged = {name: judge(text, paper, ours, theirs) for name, (ours, theirs) in self.pairs.items()}
        shown = "; ".join(f"{name}: {claim.ours}" for name, claim in judged.items())
        return replace(every(text, paper, judged), ours=shown)

    def compares_as(self, other: "Question") -> bool:
        """Whether both compare the same numbers, as when all policies have the same start anyway."""
        pairs = zip(self.pairs.values(), other.pairs.values(), strict=True)
        return all(subset.equals(theirs) for pair in pairs for subset, theirs in zip(*pair, strict=True))


Questions = Callable[[Runs], Iterator[Question]]


def find_curves(data: str, drawn: int, questions: Questions, frames: Frames) -> Findings:
    """For one K: early and final accuracy of each policy, and its costs."""
    effort = frames["effort"][(frames["effort"]["data"] == data) & (frames["effort"]["K"] == drawn)]
    published, fair = (Runs(frames["accuracy"], start).at(data, drawn) for start in STARTS)
    lines = [
        {
            "policy": NAMES[policy],
            "warm-up": "yes" if results.fair or policy in BANDITS else "no",
            **{
                f"{model}, {when} tenth": spread(measure(policy, model))
                for model in MODELS
                for when, measure in (("first", results.early), ("last", results.late))
            },
            **{
                f"{what} a round": spread(effort[effort["method"] == method_of(policy, results.fair)][what], digits)
                for what, digits in (("clients", 1), ("examples", 0))
            },
        }
        for policy in NAMES
        for results in ([published] if policy in BANDITS else [published, fair])
    ]
    source = f"Data: {', '.join(effort['source'].unique())}."
    notes = [source, NOTES["curves"], _warm_up(published, fair, drawn)]
    return Findings(pd.DataFrame(lines), _claims(questions, frames), notes)


def _warm_up(published: Runs, fair: Runs, drawn: int) -> str:
    """What the warm-up costs, what it gains, and how much of a bandit's early lead remains if all policies have it."""
    leads = [results.early(RANKLIST, BOTH) - results.early(MULTI, BOTH) for results in (published, fair)]
    lifts = [fair.over(MULTI, BOTH, t, t) - published.over(MULTI, BOTH, t, t) for t in (1, FIRST)]
    early, left, first, second = (series.mean() for series in (*leads, *lifts))
    pairs = CLIENTS * len(MODELS)
    rounds = {"pairs": pairs, "rounds": pairs // drawn, "drawn": drawn}
    return NOTES["warm_up"].format(early=early, left=left, first=first, second=second, **rounds)


def find_sweep(data: str, questions: Questions, frames: Frames) -> Findings:
    """Final accuracy of each policy by K."""
    starts = [Runs(frames["accuracy"], fair).sweep(data) for fair in STARTS]
    columns = {NAMES[policy]: (False, policy) for policy in NAMES}
    columns |= {f"{name}, warm-up": (True, policy) for policy, name in NAMES.items() if policy not in BANDITS}
    lines = [
        {
            "K": drawn,
            "model": model,
            **{name: spread(starts[fair][drawn].late(policy, model)) for name, (fair, policy) in columns.items()},
        }
        for drawn in starts[False]
        for model in MODELS
    ]
    notes = ["Accuracies are means over the tests in the last tenth of the rounds."]
    for bandit in BANDITS:
        leads = {drawn: results.lead(bandit, MULTI, BOTH).mean() for drawn, results in starts[False].items()}
        shown = ", ".join(f"{lead:+.3f} with K={drawn}" for drawn, lead in leads.items())
        notes.append(f"Lead of {NAMES[bandit]} over Multi-FedAvg as published, mean of both models: {shown}.")
    return Findings(pd.DataFrame(lines), _claims(questions, frames), notes)


def _claims(questions: Questions, frames: Frames) -> list[Claim]:
    """Every question as published and then, if it compares other runs, with the same warm-up for all."""
    found: list[Claim] = []
    for published, fair in zip(*(questions(Runs(frames["accuracy"], fair)) for fair in STARTS), strict=True):
        found += [published.claim(False)]
        found += [] if fair.compares_as(published) else [fair.claim(True)]
    return found


def draw_curves(data: str, drawn: int, frames: Frames) -> Figure:
    """Test accuracy by round: a row of panels for each start, a column for each model."""
    starts = {fair: Runs(frames["accuracy"], fair).at(data, drawn) for fair in STARTS}
    return _draw(lambda fair, policy, model: starts[fair].by_round(policy, model).loc[FIRST + 1 :], "round")


def draw_sweep(data: str, frames: Frames) -> Figure:
    """Final accuracy by clients per round, in the same panels."""
    starts = {fair: Runs(frames["accuracy"], fair).sweep(data) for fair in STARTS}

    def ends(fair: bool, policy: str, model: str) -> pd.DataFrame:
        return pd.DataFrame({drawn: results.late(policy, model) for drawn, results in starts[fair].items()}).T

    figure = _draw(ends, "clients a round, K")
    for panel in figure.axes:
        panel.set_xscale("log", base=2)
        panel.set_xticks(list(starts[False]), [str(drawn) for drawn in starts[False]])
    return figure


def _draw(runs: Callable[[bool, str, str], pd.DataFrame], across: str) -> Figure:
    figure, axes = panels(len(STARTS) * len(MODELS), columns=len(MODELS), xlabel=across, ylabel="test accuracy")
    for panel, (fair, model) in zip(axes, product(STARTS, MODELS), strict=True):
        for n, policy in enumerate(NAMES):
            curve(panel, runs(fair, policy, model), NAMES[policy], n)
        panel.set_title(f"{model}, {STARTS[fair]}")
    legend(figure, axes[0])
    return figure
