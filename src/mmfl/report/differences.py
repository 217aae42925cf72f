"""Differences paired over seeds, with their uncertainty."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

_CONFIDENCE = 0.95


@dataclass(frozen=True)
class Difference:
    """Mean difference over pairs, and half the width of its 95% interval (Student's t; infinite for a single pair)."""

    mean: float
    half: float
    pairs: int

    def __str__(self) -> str:
        if not self.pairs:
            return "not measured"
        return self.interval() + (f" ({self.pairs} seeds, 95%)" if np.isfinite(self.half) else "")

    def interval(self) -> str:
        """The mean with its interval, where there are seeds enough for one; nothing where there are none."""
        if not self.pairs:
            return ""
        return f"{self.mean:+.3f} ± {self.half:.3f}" if np.isfinite(self.half) else f"{self.mean:+.3f} (one seed)"


def difference(ours: pd.Series | float, theirs: pd.Series | float) -> Difference:
    """The difference of two quantities measured with the same seeds (the index), of which one may be a constant.

    >>> print(difference(pd.Series([0.5, 0.7, 0.6]), pd.Series([0.4, 0.5, 0.5])))
    +0.133 ± 0.143 (3 seeds, 95%)
    """
    gap = pd.Series(ours - theirs).dropna().to_numpy(dtype=float)
    if len(gap) < 2:
        return Difference(float(gap.mean()) if len(gap) else np.nan, np.inf, len(gap))
    from scipy import stats  # takes a second to import

    quantile = float(stats.t.ppf((1 + _CONFIDENCE) / 2, len(gap) - 1))
    return Difference(float(gap.mean()), quantile * float(gap.std(ddof=1)) / len(gap) ** 0.5, len(gap))
