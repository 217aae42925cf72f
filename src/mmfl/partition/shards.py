"""What partitions share: their result, the rows of each client, and choices that are the same for all tasks."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from mmfl.checks import check, is_whole
from mmfl.data import Dataset
from mmfl.randomness import Purpose, generator


@dataclass(frozen=True, eq=False)
class Shards:
    """Rows of a data set by client: client i has `index[offset[i]:offset[i + 1]]`."""

    index: NDArray[np.int64]
    offset: NDArray[np.int64]

    @classmethod
    def by_owner(cls, owner: NDArray[np.int64], clients: int) -> "Shards":
        """From the owner of each row; rows with owner -1 are not used."""
        index = np.argsort(owner, kind="stable")
        sizes = np.bincount(owner[owner >= 0], minlength=clients)
        return cls(index[len(index) - sizes.sum() :], np.concatenate([[0], np.cumsum(sizes)]))

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Examples of each client, [clients]."""
        return np.diff(self.offset)

    def of(self, client: int) -> NDArray[np.int64]:
        """The rows of one client."""
        return self.index[self.offset[client] : self.offset[client + 1]]

    def owner(self, rows: int) -> NDArray[np.int64]:
        """The client of each row of the data set, -1 for rows that no client has."""
        owner = np.full(rows, -1, dtype=np.int64)
        owner[self.index] = np.repeat(np.arange(len(self.sizes)), self.sizes)
        return owner

    def without(self, clients: NDArray[np.bool_]) -> "Shards":
        """The same shards, with those of the marked clients empty."""
        kept = np.where(clients, 0, self.sizes)
        return Shards(self.index[np.repeat(~clients, self.sizes)], np.concatenate([[0], np.cumsum(kept)]))

    def only(self, clients: NDArray[np.int64]) -> "Shards":
        """The shards of the given clients alone, in ascending order."""
        if len(clients) == len(self.sizes):
            return self
        others = np.ones(len(self.sizes), dtype=bool)
        others[clients] = False
        return Shards(self.without(others).index, np.concatenate([[0], np.cumsum(self.sizes[~others])]))


@dataclass(frozen=True, eq=False)
class Split:
    """The result of a partition: training rows by client, and test rows by client unless the test set is shared.

    `groups` is the true cluster of each client, [clients], if the partition has clusters.
    """

    train: Shards
    test: Shards | None = None
    groups: NDArray[np.int64] | None = None


Partition = Callable[[Dataset, int, np.random.Generator], Split]
"""Divides a data set among a number of clients; the generator is the only source of randomness."""


class Choice(IntEnum):
    """What is chosen for a client. It is part of the address, so that two choices never share random numbers."""

    VOLUME = 1
    LABELS = 2
    CLUSTER = 3


def check_seed(where: str, seed: int | None) -> None:
    """Refuses a value that is neither a seed nor None."""
    check(seed is None or is_whole(seed, 0), where, "seed", seed, "a whole number from 0, or none")


def choice_generator(choice: Choice, seed: int | None, rng: np.random.Generator) -> np.random.Generator:
    """The generator for a choice: seeded, and so the same for every task, or without a seed the task's own."""
    if seed is None:
        return rng
    return generator(seed, Purpose.PARTITION, -choice)  # tasks have the addresses from 0
