"""Updates: what came back from the clients of one task."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmfl.allocation import Allocation
from mmfl.tensors import to_device
from mmfl.updates.trained import Trained
from mmfl.updates.world import SINGLE_PROCESS, World


@dataclass(frozen=True, eq=False)
class Updates:
    """The local updates G of one task, a row per client that trained it.

    `flat` [rows, parameters] is the global weights minus the locally trained ones: the step to subtract. `loss` is
    the mean loss seen during local training, in `steps` local steps. `count` and `probability` are the allocation's,
    row by row; where everyone trains before some are drawn, the others have count 0.

    Where several processes share a run, all columns are complete but `flat`, which has the rows `here` of this process.
    `combine` and `norms` see to that. A rule that looks at `flat` itself works on the rows that are `local`, and lets
    `total` add up the steps of all processes, and `whole` put together what was found out about rows.

    Where clients keep updates that were not drawn to themselves, `flat` has only the others, and `norm` and `inner` are
    what they say of all: ||G|| and `<G, h>`, with h the client's last update.
    """

    task: int
    client: NDArray[np.int64]
    count: NDArray[np.int64]
    probability: NDArray[np.float64]
    flat: Tensor
    loss: NDArray[np.float64]
    steps: NDArray[np.int64]
    here: NDArray[np.int64] | None = None
    world: World = SINGLE_PROCESS
    norm: NDArray[np.float64] | None = None
    inner: NDArray[np.float64] | None = None

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
        known = trained.flat, trained.loss, trained.steps, trained.here, trained.world, trained.norm, trained.inner
        return cls(task, trained.client, count, probability, *known)

    def __len__(self) -> int:
        return len(self.client)

    def combine(self, coefficients: NDArray[np.float64]) -> Tensor:
        """The weighted sum of the rows: coefficients @ updates."""
        mine = coefficients if self.here is None else coefficients[self.here]
        return self.total(to_device(mine, self.flat) @ self.flat)

    def norms(self) -> NDArray[np.float64]:
        """||G|| of each row."""
        return self.norm if self.norm is not None else self.whole(self.flat.norm(dim=1).double().cpu().numpy())

    def products(self, before: Tensor, rows: slice) -> NDArray[np.float64]:
        """`<G, h>` of some rows, with their last updates `before`."""
        if self.inner is not None:
            return self.inner[rows]
        products: NDArray[np.float64] = (self.flat[rows] * before).sum(1).double().cpu().numpy()
        return products

    def distances(self, beta: NDArray[np.float64], before: Tensor, rows: slice) -> NDArray[np.float64]:
        """||G - beta h|| of some rows."""
        if self.norm is not None and self.inner is not None:
            squares = before.square().sum(1).double().cpu().numpy()
            left = self.norm[rows] ** 2 - 2 * beta * self.inner[rows] + beta**2 * squares
            distance: NDArray[np.float64] = np.sqrt(np.maximum(left, 0))
        else:
            scaled = to_device(beta, before)[:, None] * before
            distance = (self.flat[rows] - scaled).norm(dim=1).double().cpu().numpy()
        return distance

    @property
    def mine(self) -> "Updates":
        """The rows of the clients that this process remembers, wherever their updates are."""
        return self.local if self.world.size > 1 else self

    @property
    def local(self) -> "Updates":
        """The rows of this process's clients, as if there were no others."""
        if self.here is None:
            return self
        return replace(self, **self._columns(self.here), here=None, world=SINGLE_PROCESS)

    def total(self, step: Tensor) -> Tensor:
        """The sum of what every process made of its rows."""
        return self.world.sum(step)

    def whole(self, numbers: NDArray[np.float64]) -> NDArray[np.float64]:
        """A number for every row, given those of the rows that are `mine`."""
        if self.here is None or self.world.size == 1:
            return numbers
        rows = np.zeros(len(self))
        rows[self.here] = numbers
        return self.world.sums(rows)

    def drawn(self) -> "Updates":
        """Without the rows of those that trained but were not drawn."""
        return self._where(self.count > 0)

    def valid(self, finite: NDArray[np.bool_] | None = None) -> "Updates":
        """Without the rows that hold anything but finite numbers: such a client counts as absent. Which rows of `flat`
        are finite is found out here, if it is not known."""
        if finite is None:
            (finite,) = finite_rows([self.flat], row_sums([self.flat]))
        if self.norm is None:
            good = self.whole(finite.astype(np.float64)) > 0
        else:
            good = np.isfinite(self.norm)
            good[slice(None) if self.here is None else self.here] &= finite
        return self._where(good & np.isfinite(self.loss))

    def without_rows(self) -> "Updates":
        """What is known of them, without `flat`, which is large."""
        return replace(self, flat=self.flat.new_empty(0, self.flat.shape[1]), here=np.zeros(0, dtype=np.int64))

    def _where(self, good: NDArray[np.bool_]) -> "Updates":
        if good.all():
            return self
        mine = good if self.here is None else good[self.here]
        flat = self.flat[to_device(np.flatnonzero(mine), self.flat.device)]
        here = None if self.here is None else (np.cumsum(good) - 1)[self.here[mine]]
        if here is not None and self.world.size == 1 and len(here) == good.sum():
            here = None
        return replace(self, **self._columns(good), flat=flat, here=here)

    def _columns(self, rows: NDArray[Any]) -> dict[str, Any]:
        """What there is of each of some rows."""
        names = ("client", "count", "probability", "loss", "steps", "norm", "inner")
        columns = {name: getattr(self, name) for name in names}
        return {name: None if column is None else column[rows] for name, column in columns.items()}


def row_sums(updates: Sequence[Tensor]) -> list[NDArray[np.float32]]:
    """The sums of the rows of each of some matrices on one device, which is waited for once."""
    sums = torch.cat([flat.sum(1) for flat in updates]).cpu().numpy()
    return np.split(sums, np.cumsum([len(flat) for flat in updates])[:-1])


def finite_rows(updates: Sequence[Tensor], sums: Sequence[NDArray[np.float32]]) -> list[NDArray[np.bool_]]:
    """Which rows of each of some matrices, of which the row sums are given, hold nothing but finite numbers."""
    finite = [np.isfinite(each) for each in sums]
    for flat, good in zip(updates, finite, strict=True):
        if not good.all():  # a sum may overflow where no entry does
            good[~good] = torch.isfinite(flat[to_device(~good, flat.device)]).all(1).cpu().numpy()
    return finite
