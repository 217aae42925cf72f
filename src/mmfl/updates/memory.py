"""Memory: a vector for every client of a task, and their sum weighted by the examples of those who are there."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmfl.tensors import to_device
from mmfl.updates.store import ClientVectorStore, StorageOptions
from mmfl.updates.world import PARTIAL

if TYPE_CHECKING:
    from mmfl.updates.updates import Updates

_BATCH = 2**23  # bytes of stored vectors to read at once


def combine(coefficients: NDArray[np.float64], rows: Tensor) -> Tensor:
    """The weighted sum of rows [rows, parameters]."""
    return to_device(coefficients, rows) @ rows


def batches(rows: int, length: int) -> Iterator[slice]:
    """Slices of rows of `length` numbers, small enough that stored vectors are never copied as a whole."""
    size = max(_BATCH // (4 * length), 1)
    return (slice(begin, begin + size) for begin in range(0, rows, size))


@dataclass
class Memory:
    """A vector of each of one task's clients, and the running sum of n times the vector over those who are there.

    `weight` is the n with which each client is in `sum`: 0 while it is absent, so that the shares d are always those
    of who is there; nan before its first vector. Sums are kept in double precision, because they are never taken
    afresh. Where several processes share a run, each has the vectors of its own clients and their part of the sum.
    """

    stored: ClientVectorStore
    weight: NDArray[np.float64]
    sum: Tensor = field(metadata=PARTIAL)

    @classmethod
    def start(cls, keep: StorageOptions, clients: int, weights: Tensor) -> "Memory":
        """Nothing remembered."""
        none = torch.zeros_like(weights, dtype=torch.float64)
        return cls(keep.start(clients, weights), np.full(clients, np.nan), none)

    def reweight(self, sizes: NDArray[np.int64]) -> None:
        """Lets those who left or came back count for the examples [clients] they have now."""
        change = np.nan_to_num(sizes - self.weight)
        moved = np.flatnonzero(change)
        owned = moved[self.stored.has(moved)]
        for rows in batches(len(owned), len(self.sum)):
            self.sum += combine(change[owned[rows]], self.stored.rows(owned[rows]).double())
        self.weight[moved] += change[moved]

    def replace(self, updates: "Updates", before: Tensor, after: Tensor, sizes: NDArray[np.int64]) -> None:
        """Puts the vectors `after` in the place of those `before`, of the clients of this process who trained."""
        here = updates.local
        stored = self.stored.put(here.client, after)
        self.sum += combine(sizes[here.client].astype(np.float64), stored.double())
        self.sum -= combine(np.nan_to_num(self.weight[here.client]), before.double())
        self.weight[updates.client] = sizes[updates.client]
