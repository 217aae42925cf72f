"""Schedules: learning rates and batch sizes that change with the round, as the convergence theorems of MFA require.

(Bhuyan, Moharir & Joshi 2022.)
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from mmfl.checks import check, check_whole, is_number
from mmfl.errors import UserError

Schedule = Callable[[int], float]


def _check(schedule: object, **limits: tuple[float, str]) -> None:
    """Refuses settings that are not finite numbers or lie below their minimum."""
    for name, (minimum, expected) in limits.items():
        value = getattr(schedule, name)
        check(is_number(value, minimum, np.inf), f"schedule {type(schedule).__name__}", name, value, expected)


_POSITIVE = (np.nextafter(0.0, 1.0), "more than 0")
_ABOVE_MINUS_ONE = (np.nextafter(-1.0, 0.0), "more than -1")


@dataclass(frozen=True)
class Decay:
    """beta / (t + gamma): the learning rate of Theorem 1 (MFA-Rand).

    >>> Decay(30, 100)(20)
    0.25
    """

    beta: float
    gamma: float

    def __post_init__(self) -> None:
        _check(self, beta=_POSITIVE, gamma=_ABOVE_MINUS_ONE)

    def __call__(self, round: int) -> float:
        """The learning rate of a round; the first round is 1."""
        return self.beta / (round + self.gamma)


@dataclass(frozen=True)
class FrameDecay:
    """beta / (1 + floor((t - 1) / S) + gamma): constant within a frame of S rounds, Theorem 2 (MFA-RR).

    >>> [FrameDecay(1, 0, 2)(t) for t in (1, 2, 3, 4)]
    [1.0, 1.0, 0.5, 0.5]
    """

    beta: float
    gamma: float
    tasks: int

    def __post_init__(self) -> None:
        _check(self, beta=_POSITIVE, gamma=_ABOVE_MINUS_ONE)
        check_whole("schedule FrameDecay", "tasks", self.tasks)

    def __call__(self, round: int) -> float:
        """The learning rate of a round; the first round is 1."""
        return self.beta / (1 + (round - 1) // self.tasks + self.gamma)


@dataclass(frozen=True)
class GrowingShare:
    """A batch that grows towards all of a client's data: the share left out is `scale` times a decaying learning rate.

    Theorem 2 requires this. A batch always has at least the share `least` of the data.

    >>> [GrowingShare(1, FrameDecay(1, 0, 1))(t) for t in (1, 2, 4)]
    [0.1, 0.5, 0.75]
    """

    scale: float
    step: Schedule
    least: float = 0.1

    def __post_init__(self) -> None:
        _check(self, scale=(0.0, "at least 0"), least=_POSITIVE)
        if self.least > 1:
            raise UserError(f"schedule GrowingShare: least is {self.least}; expected a share of the data, at most 1.")
        if not callable(self.step):
            raise UserError(f"schedule GrowingShare: step is {self.step!r}; expected a schedule.")

    def __call__(self, round: int) -> float:
        """The share of a client's data in each of its batches."""
        return min(1.0, max(self.least, 1 - self.scale * self.step(round)))


SCHEDULES: dict[str, Callable[..., Schedule]] = {"decay": Decay, "frame-decay": FrameDecay, "growing": GrowingShare}
