"""LateUpdates: updates of a task that came too late for their round, until they join a later one."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmfl.tensors import to_device
from mmfl.updates.rows import ClientRows
from mmfl.updates.updates import Updates


@dataclass
class LateUpdates:
    """Updates that are under way, a row each, the first that was sent out first: what `Updates` says of them, and when
    each is `due` on the clock. Where several processes share the run, all of them have all rows `flat`."""

    client: NDArray[np.int64]
    count: NDArray[np.int64]
    probability: NDArray[np.float64]
    completion: NDArray[np.float64]
    loss: NDArray[np.float64]
    steps: NDArray[np.int64]
    due: NDArray[np.float64]
    flat: Tensor

    @classmethod
    def start(cls, weights: Tensor) -> "LateUpdates":
        """None yet, of a task with these weights."""
        whole, real = np.zeros(0, dtype=np.int64), np.zeros(0)
        return cls(whole, whole, real, real, real, whole, real, weights.new_zeros(0, len(weights)))

    def __len__(self) -> int:
        return len(self.client)

    def add(self, updates: Updates, due: NDArray[np.float64]) -> "LateUpdates":
        """With further updates."""
        if not len(updates):
            return self
        names = ("client", "count", "probability", "completion", "loss", "steps")
        columns = {name: np.concatenate([getattr(self, name), getattr(updates, name)]) for name in names}
        return LateUpdates(**columns, due=np.append(self.due, due), flat=torch.cat([self.flat, updates.rows.all()]))

    def where(self, wanted: NDArray[np.bool_]) -> "LateUpdates":
        """The wanted rows alone."""
        columns = {name: each[wanted] for name, each in vars(self).items() if name != "flat"}
        return LateUpdates(**columns, flat=self.flat[to_device(np.flatnonzero(wanted), self.flat.device)])

    def ready(self, time: float, others: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of them can join an aggregation: those that are due, the earliest of each client, and none of a client
        of which it has an update already."""
        due = np.flatnonzero((self.due <= time) & ~np.isin(self.client, others))
        order = due[np.argsort(self.due[due], kind="stable")]
        ready = np.zeros(len(self), dtype=bool)
        ready[order[np.unique(self.client[order], return_index=True)[1]]] = True
        return ready


def joined(updates: Updates, late: LateUpdates) -> Updates:
    """Updates of a round with late ones after them. Of batch norm and optimisers late ones bring nothing."""
    if not len(late):
        return updates
    names = ("client", "count", "probability", "completion", "loss", "steps")
    columns: dict[str, Any] = {n: np.concatenate([getattr(updates, n), getattr(late, n)]) for n in names}
    rows, number = updates.rows, len(updates) + len(late)
    if rows.places is None:
        both = ClientRows(torch.cat([rows.matrix, late.flat]), world=rows.world)
    else:  # each process has the rows of its own clients, beside what it remembers of them
        own = np.flatnonzero(rows.world.owns(late.client))
        matrix = torch.cat([rows.matrix, late.flat[to_device(own, late.flat.device)]])
        both = ClientRows(matrix, np.append(rows.places, len(updates) + own), number, rows.world)
    return replace(updates, **columns, rows=both, batch_norm=None, optimiser_state=None)
