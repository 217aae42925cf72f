"""Evidence for a claim: differences paired by seed, and the resulting verdict; how numbers and tables are written."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from mmfl.papers.reproduction import Claim, Verdict
from mmfl.report.differences import difference

Quantity = pd.Series | float
"""A number for each seed, or a constant."""

LEVEL = 0.05
"""The chance of a wrong decision that claims tested together may have."""


def greater(text: str, paper: str, ours: Quantity, theirs: Quantity, margin: float = 0.0) -> Claim:
    """The claim that one quantity exceeds another by at least a margin; open if the interval contains the margin.

    >>> low = pd.Series([0.2, 0.3, 0.25])
    >>> greater("LVR ahead of random", ".896 > .792", low + 0.1, low).verdict.value
    'holds'
    """
    gap = difference(ours, theirs)
    return Claim(text, paper, str(gap), decide(gap.mean - gap.half > margin, gap.mean + gap.half < margin))


def all_greater(pairs: Sequence[tuple[str, Quantity, Quantity]]) -> list[Claim]:
    """Claims, each with its text, that the first quantity exceeds the second.

    They are tested together: the chance that any of them is decided wrongly is 5% at most (Holm's method).
    """
    claims = []
    for (text, ours, theirs), p in zip(pairs, holm([p_value(*each[1:]) for each in pairs]), strict=True):
        gap = difference(ours, theirs)
        shown = f"{gap}, {show_p(p)}" if np.isfinite(gap.half) else str(gap)
        claims.append(Claim(text, "", shown, decide(p < LEVEL and gap.mean > 0, p < LEVEL and gap.mean < 0)))
    return claims


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


def alike(text: str, paper: str, ours: Quantity, theirs: Quantity, tolerance: float) -> Claim:
    """The claim that two quantities are about equal: the interval of their difference is within the tolerance."""
    gap = difference(ours, theirs)
    verdict = decide(abs(gap.mean) + gap.half <= tolerance, abs(gap.mean) - gap.half > tolerance)
    return Claim(text, paper, f"{gap}, within {tolerance:g}", verdict)


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
