"""Updates: what the drawn clients of one task sent back."""

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmfl.allocation import Allocation
from mmfl.engine import Trained


@dataclass(frozen=True, eq=False)
class Updates:
    """The local updates G of one task, a row per drawn client.

    `flat` [rows, parameters] is the global weights minus the locally trained ones: the step to subtract. `loss` is
    the mean loss seen during local training. `count` and `probability` are the allocation's, row by row.
    """

    task: int
    client: NDArray[np.int64]
    count: NDArray[np.int64]
    probability: NDArray[np.float64]
    flat: Tensor
    loss: NDArray[np.float64]

    @classmethod
    def of(cls, task: int, trained: Trained, allocation: Allocation) -> "Updates":
        """What an engine returned for a task, beside what the allocation says of those clients."""
        client, counts = trained.client, np.zeros(len(allocation.probabilities), dtype=np.int64)
        rows = allocation.rows(task)
        counts[allocation.client[rows]] = allocation.count[rows]
        probability = allocation.probabilities[client, task]
        return cls(task, client, counts[client], probability, trained.flat, trained.loss)

    def __len__(self) -> int:
        return len(self.client)

    def combine(self, coefficients: NDArray[np.float64]) -> Tensor:
        """The weighted sum of the rows: coefficients @ updates."""
        return torch.from_numpy(coefficients).to(self.flat) @ self.flat

    def valid(self) -> "Updates":
        """Without the rows that hold anything but finite numbers: such a client counts as absent."""
        finite = torch.isfinite(self.flat.sum(1))
        if not bool(finite.all()):  # a sum may overflow where no entry does
            finite[~finite] = torch.isfinite(self.flat[~finite]).all(1)
        good = finite.cpu().numpy() & np.isfinite(self.loss)
        if good.all():
            return self
        return replace(
            self,
            client=self.client[good],
            count=self.count[good],
            probability=self.probability[good],
            flat=self.flat[torch.from_numpy(good).to(self.flat.device)],
            loss=self.loss[good],
        )
