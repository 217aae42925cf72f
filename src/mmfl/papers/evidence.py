"""Evidence for a claim: differences paired by seed, and what a test of them says; how numbers and tables are written.

A verdict made here is that of a claim by itself; `families` judges the claims of a page together.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from mmfl.papers.reproduction import Claim, StatisticalTest, Verdict
from mmfl.report.differences import difference

Quantity = pd.Series | float
"""A number for each seed, or a constant."""

LEVEL = 0.05


def greater(text: str, paper: str, ours: Quantity, theirs: Quantity, margin: float = 0.0) -> Claim:
    """The claim that one quantity exceeds another by at least a margin; open if the interval contains the margin.

    >>> low = pd.Series([0.2, 0.3, 0.25])
    >>> greater("LVR ahead of random", ".896 > .792", low + 0.1, low).verdict.value
    'holds'
    """
    gap = pd.Series(ours - theirs, dtype=float).dropna()
    return claim_with(text, paper, str(difference(ours, theirs)), [outcome(gap, margin, gap.mean() - margin)])


def greater_than_each(text: str, paper: str, ours: Quantity, rivals: Mapping[str, Quantity]) -> list[Claim]:
    """The claims that one quantity exceeds each of several others, whose names replace `{}` in the text."""
    return all_greater([(text.format(name), ours, theirs) for name, theirs in rivals.items()], paper)


def all_greater(pairs: Sequence[tuple[str, Quantity, Quantity]], paper: str = "") -> list[Claim]:
    """Claims with their texts that the first quantity exceeds the second."""
    return [greater(text, paper, ours, theirs) for text, ours, theirs in pairs]


def alike(text: str, paper: str, ours: Quantity, theirs: Quantity, tolerance: float) -> Claim:
    """The claim that two quantities are about equal: the interval of their difference is within the tolerance."""
    gap = pd.Series(ours - theirs, dtype=float).dropna()
    nearest = -tolerance if gap.mean() < 0 else tolerance
    shown = f"{difference(ours, theirs)}, within {tolerance:g}"
    return claim_with(text, paper, shown, [outcome(gap, nearest, tolerance - abs(gap.mean()))])


def choose(claims: Sequence[Claim], place: int) -> Claim:
    """One of several claims, chosen by what was measured: it counts as tested together with all of them."""
    adjusted = iter(holm([outcome.p for claim in claims for outcome in claim.outcomes]))
    outcomes = [[replace(outcome, p=next(adjusted)) for outcome in claim.outcomes] for claim in claims]
    return claim_with(claims[place].text, claims[place].paper, claims[place].ours, outcomes[place])


def every(text: str, paper: str, claims: Mapping[str, Claim]) -> Claim:
    """The claim that all of several hold: that one method is the best, say. Shown is the least certain of them."""
    outcomes = {where: claim.outcomes or (_of_fact(claim.verdict),) for where, claim in claims.items()}

    def certainty(where: str) -> tuple[float, float]:
        """From -1, surely wrong, to 1, surely right; of what is equally certain, by how much."""
        sides = [(1 if each.towards is Verdict.HOLDS else -1, each) for each in outcomes[where]]
        return min((side * (1 - each.p), side * each.distance) for side, each in sides)

    where = min(claims, key=certainty)
    others = f", the least certain of {len(claims)}" if len(claims) > 1 else ""
    together = [each for tests in outcomes.values() for each in tests]
    return claim_with(text, paper, f"{claims[where].ours}, {where}{others}", together)


def _of_fact(verdict: Verdict) -> StatisticalTest:
    return StatisticalTest(Verdict.HOLDS, 1.0) if verdict is Verdict.OPEN else StatisticalTest(verdict, 0.0)


def above_each(text: str, paper: str, ours: Quantity, rivals: Mapping[str, Quantity], margin: float = 0.0) -> Claim:
    """The claim that one quantity exceeds all of several others, by a margin."""
    return every(text, paper, {f"over {name}": greater("", "", ours, each, margin) for name, each in rivals.items()})


def outcome(gap: pd.Series, boundary: float, distance: float) -> StatisticalTest:
    """The outcome of a t test of a mean difference against a boundary, on the right side of it by a distance."""
    towards = Verdict.HOLDS if distance > 0 else Verdict.FAILS
    return StatisticalTest(towards, p_value(gap, boundary), abs(float(distance)), float(gap.std(ddof=1)))


def claim_with(text: str, paper: str, ours: str, outcomes: Sequence[StatisticalTest]) -> Claim:
    """A claim with the verdict that follows from its tests, if there were no others."""
    return Claim(text, paper, ours, verdict_of(outcomes), tuple(outcomes))


def verdict_of(outcomes: Sequence[StatisticalTest]) -> Verdict:
    """The worst verdict of all tests."""
    each = [outcome.towards if outcome.p < LEVEL else Verdict.OPEN for outcome in outcomes]
    return min(each, key=list(Verdict).index)


def p_value(ours: Quantity, theirs: Quantity) -> float:
    """The two-sided p value of a paired t test; 1 where it cannot be made."""
    gap = pd.Series(ours - theirs).dropna().to_numpy(dtype=float)
    if len(gap) < 2:
        return 1.0
    if np.ptp(gap) == 0:
        return float(gap[0] == 0)
    from scipy import stats  # takes a second to import

    return float(stats.ttest_1samp(gap, 0.0).pvalue)


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted p values of tests made together (Holm 1979): the chance of any wrong rejection stays below the level.

    >>> [round(p, 3) for p in holm([0.01, 0.04, 0.02])]
    [0.03, 0.04, 0.04]
    """
    adjusted, largest = [1.0] * len(p_values), 0.0
    for rank, n in enumerate(sorted(range(len(p_values)), key=lambda n: p_values[n])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[n]))
        adjusted[n] = largest
    return adjusted


def show_p(p: float) -> str:
    """An adjusted p value as text."""
    return "p < 0.001 (Holm)" if p < 0.001 else f"p = {p:.3f} (Holm)"


def fact(text: str, paper: str, ours: str, holds: bool) -> Claim:
    """A claim that the measurements confirm or refute directly."""
    return Claim(text, paper, ours, decide(holds, not holds))


def decide(holds: bool, fails: bool) -> Verdict:
    """The verdict on a claim that certainly holds, certainly fails, or neither."""
    return Verdict.HOLDS if holds else Verdict.FAILS if fails else Verdict.OPEN


def spread(values: pd.Series | Sequence[float], digits: int = 3) -> str:
    """Mean ± standard deviation over seeds.

    >>> spread([0.5, 0.7])
    '0.600 ± 0.141'
    """
    known = pd.Series(values, dtype=float).dropna()
    if known.empty:
        return "—"
    mean = f"{known.mean():.{digits}f}"
    return f"{mean} ± {known.std(ddof=1):.{digits}f}" if len(known) > 1 else mean


def spread_of_rounds(rounds: pd.Series, digits: int = 0) -> str:
    """Rounds until something happened: mean and deviation, or how many runs it happened in at all, and when.

    >>> spread_of_rounds(pd.Series([20, 30])), spread_of_rounds(pd.Series([20, np.nan, 34]))
    ('25 ± 7', 'in 2 of 3, after 20 to 34')
    """
    met = rounds.dropna()
    if len(met) == len(rounds):
        return spread(rounds, digits)
    when = f", after {met.min():.{digits}f} to {met.max():.{digits}f}" if len(met) else ""
    return f"in {len(met)} of {len(rounds)}{when}"


def markdown(table: pd.DataFrame) -> str:
    r"""A frame as a Markdown table, without its index; a bar within a cell is escaped.

    >>> print(markdown(pd.DataFrame({"method": ["full"], "||H||": ["1|2"]})))
    | method | \|\|H\|\| |
    |---|---|
    | full | 1\|2 |
    """
    lines = [list(map(str, table.columns)), ["---"] * len(table.columns), *table.astype(object).to_numpy().tolist()]
    body = ["| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines]
    return "\n".join([body[0], body[1].replace(" ", ""), *body[2:]])
