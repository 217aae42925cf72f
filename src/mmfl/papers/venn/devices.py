"""Phones that check in: what they are eligible for, how long they take, how long they stay."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from mmfl.randomness import Purpose, generator

REQUIREMENTS = ("general", "fast processor", "much memory", "both")
KINDS = {"all": 417, "general": 305, "memory": 124, "processor": 78, "none": 35}
"""How many of 959 phones meet which requirements (Venn's repository)."""
ELIGIBLE = np.array(
    [[True, True, True, True, False], [True, False, False, True, False], [True, False, True, False, False],
     [True, False, False, False, False]]
)  # fmt: skip
"""Which kinds of phones each requirement admits, [requirements, kinds]."""

_MEDIAN_MS, _SIGMA_MS = 61.0, 0.78
_MEAN_KBPS, _SIGMA_KBPS = 13736.0, 1.0
_MEAN_SESSION = 600.0  # seconds; a convention of ours
_GRACE = 80.0
_NOISE = 2.0


@dataclass(frozen=True, eq=False)
class CheckIns:
    """Phones in the order in which they check in: `time`, `kind`, how long a training takes, and when they leave, in
    seconds after they checked in."""

    time: NDArray[np.float64]
    kind: NDArray[np.int64]
    seconds: NDArray[np.float64]
    stay: NDArray[np.float64]

    @cached_property
    def comes_back(self) -> NDArray[np.bool_]:
        """Whose result arrives before its session is over."""
        return np.asarray(self.seconds <= self.stay)

    @classmethod
    def poisson(cls, rate: float, number: int, seed: int) -> "CheckIns":
        """So many check-ins, `rate` a second. T = 30 comp / 78 + 20 / (comm / 13736) + U(0, 2) seconds, with log-normal
        milliseconds comp and kilobits a second comm."""
        rng = generator(seed, Purpose.ARRIVALS, 1)
        time = np.cumsum(rng.exponential(1 / rate, number))
        kind = rng.choice(len(KINDS), number, p=np.array(list(KINDS.values())) / sum(KINDS.values()))
        compute = _MEDIAN_MS * np.exp(_SIGMA_MS * rng.normal(size=number))
        link = _MEAN_KBPS * np.exp(_SIGMA_KBPS * rng.normal(size=number) - _SIGMA_KBPS**2 / 2)
        seconds = 30 * compute / 78 + 20 * _MEAN_KBPS / link + rng.uniform(0, _NOISE, number)
        return cls(time, kind, seconds, rng.exponential(_MEAN_SESSION, number) + _GRACE)
