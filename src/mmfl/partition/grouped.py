"""Clusters of like clients, with the truth on record."""

import numpy as np
from numpy.typing import NDArray

from mmfl.checks import check, is_number, is_whole
from mmfl.data import Dataset
from mmfl.errors import UserError
from mmfl.partition.options import Choice, check_seed, chooser
from mmfl.partition.shards import Partition, Split
from mmfl.partition.sizes import SizesLike, wanted
from mmfl.partition.supply import Supply


def clusters(
    number: int = 5, fraction: float | None = None, sizes: SizesLike = None, seed: int | None = None
) -> Partition:
    """Clusters of clients, each with its own `fraction` of the labels, over which its clients' examples are even.

    By default the labels are divided among the clusters; a larger `fraction` makes neighbours overlap, a smaller one
    leaves labels to nobody. Clusters have nearly equally many clients, and `Split.groups` says who is in which. Each
    task has its own clusters; with `seed` a client is in the same cluster in every task (the consistent setting of
    group-based sampling), and clusters have the same labels in tasks with as many of them.

    >>> from mmfl import data
    >>> split = clusters(5, sizes=20)(data.digits(), 30, np.random.default_rng(0))
    >>> np.bincount(split.groups)
    array([6, 6, 6, 6, 6])
    """
    where = "partition 'clusters'"
    check(is_whole(number, 1), where, "number", number, "a whole number from 1")
    right = fraction is None or (is_number(fraction, 0, 1) and fraction > 0)
    check(right, where, "fraction", fraction, "a number in (0, 1], or none")
    check_seed(where, seed)

    def partition(dataset: Dataset, clients: int, rng: np.random.Generator) -> Split:
        supply = Supply.of(dataset, where)
        if clients < number:
            raise UserError(f"{where}: {clients} clients for {number} clusters.")
        choices = chooser(Choice.CLUSTER, seed, rng)
        groups = choices.permutation(np.arange(clients) % number)
        holds = _label_sets(number, 1 / number if fraction is None else fraction, len(supply.classes), choices)
        if len(np.unique(holds, axis=0)) < number:
            raise UserError(
                f"{where}: {number} clusters cannot have different labels with {int(holds.sum(1).max())} of the "
                f"{len(supply.classes)} labels of data '{dataset.name}' each."
            )
        size = wanted(sizes, clients, supply.rows, rng)
        return Split(supply.hand_out(supply.spread(holds[groups], size, rng), rng), groups=groups)

    return partition


def _label_sets(number: int, fraction: float, classes: int, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Which cluster has which label, [number, classes]: the labels in a random ring, arcs that begin at even distances.

    The ends of neighbouring arcs meet when the fraction is 1 / number, also where that is no whole number of labels.
    """
    begin = np.arange(number) / number * classes
    first, end = (np.floor(place + 1e-9).astype(np.int64) for place in (begin, begin + fraction * classes))
    length = np.clip(end - first, 1, classes)
    place = rng.permutation(classes)
    holds: NDArray[np.bool_] = (place - first[:, None]) % classes < length[:, None]
    return holds
