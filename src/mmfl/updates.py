"""Updates: what came back from the clients of one task."""

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmfl.allocation import Allocation
from mmfl.engine import Trained
from mmfl.world import ALONE, World


@dataclass(frozen=True, eq=False)
class Updates:
    """The local updates G of one task, a row per client that trained it.

    `flat` [rows, parameters] is the global weights minus the locally trained ones: the step to subtract. `loss` is
    the mean loss seen during local training, in `steps` local steps. `count` and `probability` are the allocation's,
    row by row; where everyone trains before some are drawn, the others have count 0.

    Where several processes share a run, all columns are complete but `flat`, which has the rows `here` of this process.
    `combine` and `norms` see to that. A rule that looks at `flat` itself works on the rows that are `local`, and lets
    `total` add up the steps of all processes, and `whole` put together what was found out about rows.
    """

    task: int
    client: NDArray[np.int64]
    count: NDArray[np.int64]
    probability: NDArray[np.float64]
    flat: Tensor
    loss: NDArray[np.float64]
    steps: NDArray[np.int64]
    here: NDArray[np.int64] | None = None
    world: World = ALONE

    @classmethod
    def of(cls, task: int, trained: Trained, allocation: Allocation) -> "Updates":
        """What an engine returned for a task, beside what the allocation says of those clients."""
        client, counts = trained.client, np.zeros(len(allocation.probabilities), dtype=np.int64)
        rows = allocation.rows(task)
        counts[allocation.client[rows]] = allocation.count[rows]
        return cls._of(task, trained, counts[client], allocation.probabilities[client, task])

    @classmethod
    def undrawn(cls, task: int, trained: Trained) -> "Updates":
        """What an engine returned before anyone was drawn."""
        nobody = np.zeros(len(trained.client), dtype=np.int64)
        return cls._of(task, trained, nobody, nobody.astype(np.float64))

    @classmethod
    def _of(cls, task: int, trained: Trained, count: NDArray[np.int64], probability: NDArray[np.float64]) -> "Updates":
        known = trained.flat, trained.loss, trained.steps, trained.here, trained.world
        return cls(task, trained.client, count, probability, *known)

    def __len__(self) -> int:
        return len(self.client)

    def combine(self, coefficients: NDArray[np.float64]) -> Tensor:
        """The weighted sum of the rows: coefficients @ updates."""
        mine = coefficients if self.here is None else coefficients[self.here]
        return self.total(torch.from_numpy(mine).to(self.flat) @ self.flat)

    def norms(self) -> NDArray[np.float64]:
        """||G|| of each row."""
        return self.whole(self.flat.norm(dim=1).double().cpu().numpy())

    @property
    def local(self) -> "Updates":
        """The rows of this process's clients, as if there were no others."""
        if self.here is None:
            return self
        columns = {name: getattr(self, name)[self.here] for name in ("client", "count", "probability", "loss", "steps")}
        return replace(self, **columns, here=None, world=ALONE)

    def total(self, step: Tensor) -> Tensor:
        """The sum of what every process made of its rows."""
        return self.world.sum(step)

    def whole(self, numbers: NDArray[np.float64]) -> NDArray[np.float64]:
        """A number for every row, given those of the rows here."""
        if self.here is None:
            return numbers
        rows = np.zeros(len(self))
        rows[self.here] = numbers
        return self.world.sums(rows)

    def drawn(self) -> "Updates":
        """Without the rows of those that trained but were not drawn."""
        return self._where(self.count > 0)

    def valid(self) -> "Updates":
        """Without the rows that hold anything but finite numbers: such a client counts as absent."""
        finite = torch.isfinite(self.flat.sum(1))
        if not bool(finite.all()):  # a sum may overflow where no entry does
            finite[~finite] = torch.isfinite(self.flat[~finite]).all(1)
        return self._where((self.whole(finite.double().cpu().numpy()) > 0) & np.isfinite(self.loss))

    def without_rows(self) -> "Updates":
        """What is known of them, without `flat`, which is large."""
        return replace(self, flat=self.flat[:0].clone(), here=np.zeros(0, dtype=np.int64))

    def _where(self, good: NDArray[np.bool_]) -> "Updates":
        if good.all():
            return self
        mine = good if self.here is None else good[self.here]
        return Updates(
            self.task,
            self.client[good],
            self.count[good],
            self.probability[good],
            self.flat[torch.from_numpy(mine).to(self.flat.device)],
            self.loss[good],
            self.steps[good],
            None if self.here is None else (np.cumsum(good) - 1)[self.here[mine]],
            self.world,
        )
