"""Partitions that add no skew of their own: one pool for all, or the owners that the data came with."""

import numpy as np

from mmfl.data import Dataset
from mmfl.errors import UserError
from mmfl.partition.options import check, whole
from mmfl.partition.shards import Partition, Shards, Split
from mmfl.partition.sizes import SizesLike, wanted


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


def owners(least: int = 1, most: int | None = None) -> Partition:
    """Client = natural owner (writer, role, device); a random choice of them where there are more than clients.

    Only owners of at least `least` training examples count; of an owner of more than `most`, that many, at random,
    are kept. Test examples stay as they are.
    """
    where = "partition 'owners'"
    check(whole(least, 1), where, "least", least, "a whole number from 1")
    check(most is None or whole(most, least), where, "most", most, f"a whole number from {least} (least), or none")

    def partition(dataset: Dataset, clients: int, rng: np.random.Generator) -> Split:
        if dataset.owner is None:
            raise UserError(f"{where}: data '{dataset.name}' does not know who owns its examples.")
        able = np.flatnonzero(np.bincount(dataset.owner) >= least)
        if len(able) < clients:
            plenty = f" with at least {least} examples" if least > 1 else ""
            raise UserError(f"{where}: data '{dataset.name}' has {len(able)} owners{plenty} for {clients} clients.")
        chosen = able if len(able) == clients else np.sort(rng.permutation(able)[:clients])
        numbers = [owner.max() for owner in (dataset.owner, dataset.owner_test) if owner is not None]
        client_of = np.full(max(numbers) + 1, -1, dtype=np.int64)
        client_of[chosen] = np.arange(clients)
        test = None if dataset.owner_test is None else Shards.by_owner(client_of[dataset.owner_test], clients)
        train = Shards.by_owner(client_of[dataset.owner], clients)
        return Split(train if most is None else _capped(train, most, rng), test)

    return partition


def _capped(shards: Shards, most: int, rng: np.random.Generator) -> Shards:
    """At most so many rows of each client, chosen at random."""
    client = np.repeat(np.arange(len(shards.sizes)), shards.sizes)
    order = np.lexsort((rng.random(len(client)), client))
    kept = np.zeros(len(client), dtype=bool)
    kept[order] = np.arange(len(client)) - shards.offset[client] < most
    return Shards(shards.index[kept], np.concatenate([[0], np.cumsum(np.minimum(shards.sizes, most))]))
