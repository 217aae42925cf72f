"""Evidence for a claim: differences paired by seed, and the resulting verdict; how numbers and tables are written."""

from collections.abc import Sequence

import pandas as pd

from mmfl.papers.reproduction import Claim, Verdict
from mmfl.report.differences import difference

Quantity = pd.Series | float
"""A number for each seed, or a constant."""


def greater(text: str, paper: str, ours: Quantity, theirs: Quantity, margin: float = 0.0) -> Claim:
    """The claim that one quantity exceeds another by at least a margin; open if the interval contains the margin.

    >>> low = pd.Series([0.2, 0.3, 0.25])
    >>> greater("LVR ahead of random", ".896 > .792", low + 0.1, low).verdict.value
    'holds'
    """
    gap = difference(ours, theirs)
    return Claim(text, paper, str(gap), decide(gap.mean - gap.half > margin, gap.mean + gap.half < margin))


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
