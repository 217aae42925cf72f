"""Partitions that add no skew of their own: one pool for all, or the owners that the data came with."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmfl.checks import check, is_whole
from mmfl.data import Dataset
from mmfl.data.owners import place_owners
from mmfl.errors import UserError
from mmfl.partition.shards import Partition, Shards, Split
from mmfl.partition.sizes import SizesLike, wanted

_OWNERS = "partition 'owners'"


def iid(sizes: SizesLike = None) -> Partition:
    """Every client draws from the same pool; `sizes` gives their numbers of examples (default: equal shares)."""

    def partition(dataset: Dataset, clients: int, rng: np.random.Generator) -> Split:
        size = wanted(sizes, clients, len(dataset.x), rng)
        if size.sum() > len(dataset.x):
            raise UserError(
                f"partition 'iid': {size.sum()} examples asked for by {clients} clients, but data '{dataset.name}' "
                f"has {len(dataset.x)}."
            )
        rows = rng.permutation(len(dataset.x))[: size.sum()]
        return Split(Shards(rows, np.concatenate([[0], np.cumsum(size)])))

    return partition


def owners(least: int = 1, most: int | None = None) -> "Owners":
    """Client = natural owner (writer, role, device); a random choice of them where there are more than clients.

    Only owners of at least `least` training examples count; of an owner of more than `most`, that many, at random,
    are kept. Test examples stay as they are. In a federation an owner is the same client in every task that is
    divided so; who does not count in a task lacks it.
    """
    return Owners(least, most)


@dataclass(frozen=True)
class Owners:
    """The partition `owners`. A federation asks it who counts, and says which client each owner is."""

    least: int = 1
    most: int | None = None

    def __post_init__(self) -> None:
        check(is_whole(self.least, 1), _OWNERS, "least", self.least, "a whole number from 1")
        right = self.most is None or is_whole(self.most, self.least)
        check(right, _OWNERS, "most", self.most, f"a whole number from {self.least} (least), or none")

    def __call__(self, dataset: Dataset, clients: int, rng: np.random.Generator) -> Split:
        """The split of this data set alone: its owners are the clients."""
        chosen = choose_owners(self.able(dataset), clients, f"data '{dataset.name}' has", rng, self.least)
        return self.split(dataset, self.names(dataset)[chosen], rng)

    def able(self, dataset: Dataset) -> NDArray[np.bool_]:
        """Which of the data set's owners have enough training examples, [owners]."""
        owners = len(self.names(dataset))
        able: NDArray[np.bool_] = np.bincount(dataset.owner, minlength=owners) >= self.least  # type: ignore[arg-type]
        return able

    def split(self, dataset: Dataset, clients: NDArray[Any], rng: np.random.Generator) -> Split:
        """The rows of each client; `clients` [clients] are the names of the owners that they are, sorted."""
        client_of = np.where(self.able(dataset), place_owners(clients, self.names(dataset)), -1)
        test = None if dataset.owner_test is None else Shards.by_owner(client_of[dataset.owner_test], len(clients))
        train = Shards.by_owner(client_of[dataset.owner], len(clients))
        return Split(train if self.most is None else _capped(train, self.most, rng), test)

    def names(self, dataset: Dataset) -> NDArray[Any]:
        """What the data set's owners are known by, [owners]."""
        if dataset.owner is None or dataset.owner_names is None:
            raise UserError(f"{_OWNERS}: data '{dataset.name}' does not know who owns its examples.")
        return dataset.owner_names


def choose_owners(
    able: NDArray[np.bool_], clients: int, who_has: str, rng: np.random.Generator, least: int = 1
) -> NDArray[np.int64]:
    """So many of the able owners, in ascending order: all, or a random choice of them."""
    found = np.flatnonzero(able)
    if len(found) < clients:
        plenty = f" with at least {least} examples" if least > 1 else ""
        raise UserError(f"{_OWNERS}: {who_has} {len(found)} owners{plenty} for {clients} clients.")
    return found if len(found) == clients else np.sort(rng.permutation(found)[:clients])


def _capped(shards: Shards, most: int, rng: np.random.Generator) -> Shards:
    """At most so many rows of each client, chosen at random."""
    client = np.repeat(np.arange(len(shards.sizes)), shards.sizes)
    order = np.lexsort((rng.random(len(client)), client))
    kept = np.zeros(len(client), dtype=bool)
    kept[order] = np.arange(len(client)) - shards.offset[client] < most
    return Shards(shards.index[kept], np.concatenate([[0], np.cumsum(np.minimum(shards.sizes, most))]))
