"""AveragedWeights: an average of each task's weights over rounds, to be served in place of the last ones."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mmfl.checks import check, is_number, is_positive, is_whole
from mmfl.updates.batch_norm import BatchNorm, SharedBatchNorm


def check_average(average: object, where: str = "") -> None:
    """Refuses what is neither the rate of an exponential average nor a number of rounds; `where` may be empty."""
    rate = is_positive(average) and is_number(average, 0, 1) and average != 1
    expected = "a rate between 0 and 1, or a whole number of rounds from 2"
    check(average is None or rate or is_whole(average, 2), where, "average", average, expected)


@dataclass
class ExponentialAverage:
    """m + max(rate, 1/t) (w - m) after t rounds: at first the plain mean, later it forgets the beginning."""

    rate: float
    rounds: int
    mean: Tensor

    def observe(self, values: Tensor) -> None:
        """Adds a round."""
        self.rounds += 1
        self.mean.lerp_(values, max(self.rate, 1 / self.rounds))

    def value(self) -> Tensor:
        """The average so far."""
        return self.mean


@dataclass
class WindowAverage:
    """The mean of the last rounds, which are kept in a ring: `last` [rounds in the window, values]."""

    rounds: int
    last: Tensor

    def observe(self, values: Tensor) -> None:
        """Adds a round in the place of the oldest."""
        self.last[self.rounds % len(self.last)] = values
        self.rounds += 1

    def value(self) -> Tensor:
        """The mean of the rounds in the window, or of all while they are fewer."""
        return self.last[: self.rounds].mean(0)


VectorAverage = ExponentialAverage | WindowAverage


def start_average(average: float, values: Tensor) -> VectorAverage:
    """An average before its first round: over a window where `average` is a whole number, exponential otherwise."""
    if is_whole(average, 2):
        return WindowAverage(0, torch.zeros(int(average), *values.shape, dtype=values.dtype, device=values.device))
    return ExponentialAverage(float(average), 0, values.clone())


@dataclass
class AveragedWeights:
    """The averages of a replica by task: of its weights, and of the statistics of batch norm where all clients share
    them. `setting` says how: a rate or a number of rounds. The rounds of a task count from its arrival."""

    setting: float
    weights: list[VectorAverage]
    batch_norm: list[VectorAverage | None]

    @classmethod
    def start(
        cls, average: float, weights: Sequence[Tensor], batch_norm: Sequence[BatchNorm | None]
    ) -> "AveragedWeights":
        """Before the first round."""
        shared = [norm.values if isinstance(norm, SharedBatchNorm) else None for norm in batch_norm]
        return cls(
            average,
            [start_average(average, each) for each in weights],
            [None if values is None else start_average(average, values) for values in shared],
        )

    def observe(self, tasks: Sequence[int], weights: Sequence[Tensor], batch_norm: Sequence[BatchNorm | None]) -> None:
        """Adds a round of the tasks that have arrived."""
        for s in tasks:
            self.weights[s].observe(weights[s])
            norm, average = batch_norm[s], self.batch_norm[s]
            if average is not None and isinstance(norm, SharedBatchNorm):
                average.observe(norm.values)

    def statistics(self, task: int) -> Tensor | None:
        """The averaged statistics of batch norm; None where clients have their own, or there are none."""
        average = self.batch_norm[task]
        return None if average is None else average.value()
