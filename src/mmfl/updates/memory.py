"""Memories: a vector for every client of a task, and a sum over present clients weighted by their examples."""

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


@dataclass
class FadingMemory:
    """A vector h of each client of a task whose factor beta falls while the client is idle, and the sum of n beta h.

    A client's beta is 1 in the round after it was last active and falls by `slope` each idle round until it is 0 in
    round `ends`. So sum n beta h is a straight line in the round, `constant` + `linear` * t, as long as nobody is
    active, reaches 0, leaves or comes back; `weight` is the n with which each client is in it.
    """

    stored: ClientVectorStore
    weight: NDArray[np.float64]
    last: NDArray[np.int64]
    slope: NDArray[np.float64]
    constant: Tensor = field(metadata=PARTIAL)
    linear: Tensor = field(metadata=PARTIAL)

    @classmethod
    def start(cls, keep: StorageOptions, clients: int, weights: Tensor) -> "FadingMemory":
        """Nothing remembered."""
        none, line = np.zeros(clients), torch.zeros_like(weights, dtype=torch.float64)
        return cls(keep.start(clients, weights), none, none.astype(np.int64), none.copy(), line, line.clone())

    @property
    def ends(self) -> NDArray[np.float64]:
        """The round in which each beta reaches 0."""
        with np.errstate(divide="ignore"):
            return self.last + 1 + 1 / self.slope

    def beta(self, round: int) -> NDArray[np.float64]:
        """The betas of a round, [clients]; 0 before the first activity."""
        fallen = 1 - self.slope * (round - self.last - 1)
        return np.where(self.last > 0, np.clip(fallen, 0, 1), 0.0)

    def reweight(self, round: int, sizes: NDArray[np.int64]) -> None:
        """Removes clients whose beta has reached 0 or that have left, and adds those that came back."""
        wanted = np.where((self.last > 0) & (round < self.ends), sizes, 0)
        moved = np.flatnonzero(wanted != self.weight)
        held = moved[self.stored.holds(moved)]
        for rows in batches(len(held), self.linear):
            client = held[rows]
            self._add(client, (wanted - self.weight)[client], self.stored.held_rows(client))
        self.weight[moved] = wanted[moved]

    def stale(self, round: int) -> Tensor:
        """sum n beta h of a round, over the clients that are present, [parameters]."""
        return PartialSum.of(self.constant + round * self.linear, self.stored.world)

    def replace(
        self, updates: "Updates", before: ClientRows, slope: NDArray[np.float64], round: int, sizes: NDArray[np.int64]
    ) -> None:
        """Active clients start again at 1, with new vectors in place of those `before`, and new slopes."""
        client, held = updates.client, before.take_held(updates.client)
        self._add(held, -self.weight[held], before.matrix)
        self.slope[client], self.last[client], self.weight[client] = slope, round, sizes[client]
        self._add(held, self.weight[held], self.stored.put(client, updates.rows))

    def _add(self, client: NDArray[np.int64], weight: NDArray[np.float64], rows: Tensor) -> None:
        """Adds weight * h * beta(t), as a function of t, to the line."""
        slope = self.slope[client]
        self.constant += weighted_sum(weight * (1 + slope * (self.last[client] + 1)), rows)
        self.linear += weighted_sum(-weight * slope, rows)


def weighted_sum(coefficients: NDArray[np.float64], rows: Tensor) -> Tensor:
    """The weighted sum of rows [rows, parameters], in double precision."""
    rows = rows.double()
    return to_device(coefficients, rows) @ rows
