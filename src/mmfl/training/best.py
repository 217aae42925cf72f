"""BestWeights: the weights of each task in the tested round in which its metric was best."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from mmfl.engine import Evaluation
from mmfl.federation.task import Task
from mmfl.updates.batch_norm import BatchNorm


@dataclass
class BestWeights:
    """What a replica keeps of its best rounds: round and metric [tasks], weights and statistics of batch norm by task.

    Before a task's first test it has round 0, metric nan and the initial weights.
    """

    round: NDArray[np.int64]
    metric: NDArray[np.float64]
    weights: list[Tensor]
    batch_norm: list[Tensor | None]

    @classmethod
    def start(cls, weights: Sequence[Tensor], batch_norm: Sequence[BatchNorm | None]) -> "BestWeights":
        """Before the first round."""
        tasks = len(weights)
        none_yet = np.zeros(tasks, dtype=np.int64), np.full(tasks, np.nan)
        return cls(*none_yet, [each.clone() for each in weights], [_mean(norm) for norm in batch_norm])

    def observe(
        self,
        round: int,
        tested: Mapping[int, Evaluation],
        tasks: Sequence[Task],
        weights: Sequence[Tensor],
        batch_norm: Sequence[BatchNorm | None],
    ) -> None:
        """Keeps the weights of the tasks whose test was better than every one before."""
        for s, found in tested.items():
            lower = tasks[s].main_metric.lower_is_better
            better = found.metric < self.metric[s] if lower else found.metric > self.metric[s]
            if better or (np.isnan(self.metric[s]) and not np.isnan(found.metric)):
                self.round[s], self.metric[s] = round, found.metric
                self.weights[s], self.batch_norm[s] = weights[s].clone(), _mean(batch_norm[s])


def _mean(batch_norm: BatchNorm | None) -> Tensor | None:
    return None if batch_norm is None else batch_norm.mean().clone()
