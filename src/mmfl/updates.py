"""Updates: what came back from the clients of one task."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmfl.allocation import Allocation
from mmfl.engine import Trained


@dataclass(frozen=True, eq=False)
class Updates:
    """The local updates G of one task, a row per client that trained it.

    `flat` [rows, parameters] is the global weights minus the locally trained ones: the step to subtract. `loss` is
    the mean loss seen during local training, in `steps` local steps. `count` and `probability` are the allocation's,
    row by row; where everyone trains before some are drawn, the others have count 0.
    """

    task: int
    client: NDArray[np.int64]
    count: NDArray[np.int64]
    probability: NDArray[np.float64]
    flat: Tensor
    loss: NDArray[np.float64]
    steps: NDArray[np.int64]

    @classmethod
    def of(cls, task: int, trained: Trained, allocation: Allocation) -> "Updates":
        """What an engine returned for a task, beside what the allocation says of those clients."""
        client, counts = trained.client, np.zeros(len(allocation.probabilities), dtype=np.int64)
        rows = allocation.rows(task)
        counts[allocation.client[rows]] = allocation.count[rows]
        probability = allocation.probabilities[client, task]
        return cls(task, client, counts[client], probability, trained.flat, trained.loss, trained.steps)

    @classmethod
    def undrawn(cls, task: int, trained: Trained) -> "Updates":
        """What an engine returned before anyone was drawn."""
        nobody = np.zeros(len(trained.client), dtype=np.int64)
        return cls(task, trained.client, nobody, nobody.astype(np.float64), trained.flat, trained.loss, trained.steps)

    def __len__(self) -> int:
        return len(self.client)

    def combine(self, coefficients: NDArray[np.float64]) -> Tensor:
        """The weighted sum of the rows: coefficients @ updates."""
        return torch.from_numpy(coefficients).to(self.flat) @ self.flat

    def norms(self) -> NDArray[np.float64]:
        """||G|| of each row."""
        norms: NDArray[np.float64] = self.flat.norm(dim=1).double().cpu().numpy()
        return norms

    def drawn(self) -> "Updates":
        """Without the rows of those that trained but were not drawn."""
        return self._where(self.count > 0)

    def valid(self) -> "Updates":
        """Without the rows that hold anything but finite numbers: such a client counts as absent."""
        finite = torch.isfinite(self.flat.sum(1))
        if not bool(finite.all()):  # a sum may overflow where no entry does
            finite[~finite] = torch.isfinite(self.flat[~finite]).all(1)
        return self._where(finite.cpu().numpy() & np.isfinite(self.loss))

    def _where(self, good: NDArray[np.bool_]) -> "Updates":
        if good.all():
            return self
        return Updates(
            self.task,
            self.client[good],
            self.count[good],
            self.probability[good],
            self.flat[torch.from_numpy(good).to(self.flat.device)],
            self.loss[good],
            self.steps[good],
        )
