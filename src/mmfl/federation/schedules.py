"""Schedules: learning rates and batch sizes that change with the round, as the convergence theorems of MFA require
(Bhuyan, Moharir & Joshi 2022), and learning rates that change with the local step."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from mmfl.checks import check, check_whole, is_number, is_positive

Schedule = Callable[[int], float]
StepSchedule = Callable[[int, int], float]
"""The factor of the learning rate at a local step, given the step, from 1 on, and the number of steps."""


@dataclass(frozen=True)
class Decay:
    """beta / (t + gamma): the learning rate of Theorem 1 (MFA-Rand).

    >>> Decay(30, 100)(20)
    0.25
    """

    beta: float
    gamma: float

    def __post_init__(self) -> None:
        where = f"schedule {type(self).__name__}"
        check(is_positive(self.beta), where, "beta", self.beta, "more than 0")
        check(is_number(self.gamma, np.nextafter(-1.0, 0.0), np.inf), where, "gamma", self.gamma, "more than -1")

    def __call__(self, round: int) -> float:
        """The learning rate of a round; the first round is 1."""
        return self.beta / (round + self.gamma)


@dataclass(frozen=True)
class FrameDecay(Decay):
    """beta / (1 + floor((t - 1) / S) + gamma): constant within a frame of S rounds, Theorem 2 (MFA-RR).

    >>> [FrameDecay(1, 0, 2)(t) for t in (1, 2, 3, 4)]
    [1.0, 1.0, 0.5, 0.5]
    """

    tasks: int

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("schedule FrameDecay", "tasks", self.tasks)

    def __call__(self, round: int) -> float:
        """The learning rate of a round; the first round is 1."""
        return super().__call__(1 + (round - 1) // self.tasks)


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
        where = "schedule GrowingShare"
        check(is_number(self.scale, 0, np.inf), where, "scale", self.scale, "at least 0")
        check(is_positive(self.least), where, "least", self.least, "more than 0")
        check(self.least <= 1, where, "least", self.least, "a share of the data, at most 1")
        check(callable(self.step), where, "step", self.step, "a schedule")

    def __call__(self, round: int) -> float:
        """The share of a client's data in each of its batches."""
        return min(1.0, max(self.least, 1 - self.scale * self.step(round)))


@dataclass(frozen=True)
class LinearWarmUp:
    """Rises in a straight line to 1 at local step `steps`, and stays there.

    >>> [LinearWarmUp(4)(step, 10) for step in (1, 2, 4, 9)]
    [0.25, 0.5, 1.0, 1.0]
    """

    steps: int

    def __post_init__(self) -> None:
        check_whole("schedule LinearWarmUp", "steps", self.steps)

    def __call__(self, step: int, steps: int) -> float:
        """The factor of a local step."""
        return min(step / self.steps, 1.0)


@dataclass(frozen=True)
class Cosine:
    """Falls along half a cosine from 1 towards `least` at the end of local training, after `warm_up` steps of rise.

    >>> [round(Cosine()(step, 4), 3) for step in (1, 2, 3, 4)]
    [1.0, 0.854, 0.5, 0.146]
    """

    least: float = 0.0
    warm_up: int = 0

    def __post_init__(self) -> None:
        check(is_number(self.least, 0, 1), "schedule Cosine", "least", self.least, "a number from 0 to 1")
        check_whole("schedule Cosine", "warm_up", self.warm_up, 0)

    def __call__(self, step: int, steps: int) -> float:
        """The factor of a local step."""
        if step <= self.warm_up:
            return step / self.warm_up
        progress = (step - 1 - self.warm_up) / max(steps - self.warm_up, 1)
        return self.least + (1 - self.least) * (1 + math.cos(math.pi * progress)) / 2


STEP_SCHEDULES: dict[str, Callable[..., StepSchedule]] = {"warm-up": LinearWarmUp, "cosine": Cosine}
SCHEDULES: dict[str, Callable[..., Schedule]] = {"decay": Decay, "frame-decay": FrameDecay, "growing": GrowingShare}
