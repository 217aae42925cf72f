"""ClientMemory: a vector for every client of a task, and the sum over present clients weighted by their examples."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmfl.tensors import to_device
from mmfl.updates.partial_sum import PartialSum
from mmfl.updates.rows import ClientRows, batches
from mmfl.updates.store import ClientVectorStore, StorageOptions
from mmfl.updates.world import PARTIAL

if TYPE_CHECKING:
    from mmfl.updates.updates import Updates


@dataclass
class ClientMemory:
    """A vector of each client of a task, and the running sum of n times the vector over the clients that are present.

    `weight` is the n with which each client is in the sum: 0 while it is absent, so that the shares d are always those
    of who is there; nan before its first vector. Sums are kept in double precision, because they are never taken
    afresh; each process holds the part of its own clients, and `total` is that of all.
    """

    stored: ClientVectorStore
    weight: NDArray[np.float64]
    sum: Tensor = field(metadata=PARTIAL)

    def __post_init__(self) -> None:
        self._weighted: NDArray[np.int64] | None = None  # the examples that the weights are of

    @classmethod
    def start(cls, keep: StorageOptions, clients: int, weights: Tensor) -> "ClientMemory":
        """Nothing remembered."""
        none = torch.zeros_like(weights, dtype=torch.float64)
        return cls(keep.start(clients, weights), np.full(clients, np.nan), none)

    @property
    def total(self) -> Tensor:
        """sum n h over the clients that are present, [parameters]."""
        return PartialSum.of(self.sum, self.stored.world)

    def mean(self, examples: int) -> Tensor:
        """sum n h / `examples`, added up over all processes."""
        return self.stored.world.sum(self.sum / examples)

    def reweight(self, sizes: NDArray[np.int64]) -> None:
        """Updates the weights of clients that left or came back to the examples [clients] they have now.

        Rounds with the same clients have the same array: then there is nothing to do.
        """
        if sizes is self._weighted:
            return
        change = np.nan_to_num(sizes - self.weight)
        moved = np.flatnonzero(change)
        held = moved[self.stored.holds(moved)]
        for rows in batches(len(held), self.sum):
            self.sum += weighted_sum(change[held[rows]], self.stored.held_rows(held[rows]))
        self.weight[moved] += change[moved]
        self._weighted = None if sizes.flags.writeable else sizes

    def replace(self, updates: "Updates", before: ClientRows, after: ClientRows, sizes: NDArray[np.int64]) -> None:
        """Replaces the vectors `before` of the clients that trained by `after`."""
        stored, client = self.stored.put(updates.client, after), after.take_held(updates.client)
        self.sum += weighted_sum(sizes[client].astype(np.float64), stored)
        self.sum -= weighted_sum(np.nan_to_num(self.weight[client]), before.matrix)
        self.weight[updates.client] = sizes[updates.client]
        if sizes is not self._weighted:
            self._weighted = None


def weighted_sum(coefficients: NDArray[np.float64], rows: Tensor) -> Tensor:
    """The weighted sum of rows [rows, parameters], in double precision."""
    rows = rows.double()
    return to_device(coefficients, rows) @ rows
