"""Clusters of similar clients, whose true clusters are recorded."""

import numpy as np
from numpy.typing import NDArray

from mmfl.checks import check, is_number, is_whole
from mmfl.data import Dataset
from mmfl.errors import UserError
from mmfl.partition.options import Choice, check_seed, choice_generator
from mmfl.partition.shards import Partition, Split
from mmfl.partition.sizes import SizesLike, requested_sizes
from mmfl.partition.supply import Supply


def clusters(
    number: int = 5, fraction: float | None = None, sizes: SizesLike = None, seed: int | None = None
) -> Partition:
    """Clusters of clients, each with its own `fraction` of the labels; a client's examples are uniform over its labels.

    By default the labels are divided among the clusters; with a larger `fraction` neighbouring clusters overlap, with a
    smaller one some labels are unused. Clusters have nearly the same number of clients; `Split.groups` is the cluster
    of each client. Each task has its own clusters; with `seed` a client is in the same cluster in every task (the
    consistent setting of group-based sampling), and a cluster has the same labels in tasks with the same number of
    labels.

    >>> from mmfl import data
    >>> split = clusters(5, sizes=20)(data.digits(), 30, np.random.default_rng(0))
    >>> np.bincount(split.groups)
    array([6, 6, 6, 6, 6])
    """
    where = "partition 'clusters'"
    check(is_whole(number, 1), where, "number", number, "a whole number from 1")
    valid = fraction is None or (is_number(fraction, 0, 1) and fraction > 0)
    check(valid, where, "fraction", fraction, "a number in (0, 1], or none")
    check_seed(where, seed)

    def partition(dataset: Dataset, clients: int, rng: np.random.Generator) -> Split:
        supply = Supply.of(dataset, where)
        if clients < number:
            raise UserError(f"{where}: {clients} clients for {number} clusters.")
        choices = choice_generator(Choice.CLUSTER, seed, rng)
        groups = choices.permutation(np.arange(clients) % number)
        holds = _label_sets(number, 1 / number if fraction is None else fraction, len(supply.classes), choices)
        if len(np.unique(holds, axis=0)) < number:
            raise UserError(
                f"{where}: {number} clusters cannot have different labels with {int(holds.sum(1).max())} of the "
                f"{len(supply.classes)} labels of data '{dataset.name}' each."
            )
        size = requested_sizes(sizes, clients, supply.rows, rng)
        return Split(supply.assign_rows(supply.divide_evenly(holds[groups], size, rng), rng), groups=groups)

    return partition


def _label_sets(number: int, fraction: float, classes: int, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Which cluster has which label, [number, classes]: arcs of a random ring of labels that start at equal distances.

    If the fraction is 1 / number, neighbouring arcs meet exactly, even if that is not a whole number of labels.
    """
    begin = np.arange(number) / number * classes
    first, end = (np.floor(place + 1e-9).astype(np.int64) for place in (begin, begin + fraction * classes))
    length = np.clip(end - first, 1, classes)
    place = rng.permutation(classes)
    holds: NDArray[np.bool_] = (place - first[:, None]) % classes < length[:, None]
    return holds
