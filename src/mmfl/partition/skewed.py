"""Label skew: every client, or every cluster of clients, has the labels in different proportions."""

from math import gcd

import numpy as np
from numpy.typing import NDArray

from mmfl.checks import check, is_number, is_positive, is_whole
from mmfl.data import Dataset
from mmfl.errors import UserError
from mmfl.partition.shards import Choice, Partition, Split, check_seed, choice_generator
from mmfl.partition.sizes import SizesLike, requested_sizes
from mmfl.partition.supply import Supply, ration


def labels(fraction: float = 0.3, sizes: SizesLike = None, seed: int | None = None) -> Partition:
    """Each client has only a `fraction` of the labels, and its examples are uniform over them.

    Every label is held by nearly the same number of clients. If the clients together request more examples of a label
    than there are, each gets one, and the rest in proportion to its request; if there are fewer examples than clients,
    clients with the most other labels get none. With `seed` a client has the same labels in every task with the same
    number of labels.
    """
    where = "partition 'labels'"
    check(is_number(fraction, 0, 1) and fraction > 0, where, "fraction", fraction, "a number in (0, 1]")
    check_seed(where, seed)

    def partition(dataset: Dataset, clients: int, rng: np.random.Generator) -> Split:
        supply = Supply.of(dataset, where)
        classes = len(supply.classes)
        holds = _assign_labels(
            clients, max(1, round(fraction * classes)), classes, choice_generator(Choice.LABELS, seed, rng)
        )
        number = supply.divide_evenly(holds, requested_sizes(sizes, clients, supply.rows, rng), rng)
        return Split(supply.assign_rows(number, rng))

    return partition


def _assign_labels(clients: int, each: int, classes: int, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Which client has which label, [clients, classes]: each gets `each` labels that the fewest clients have so far.

    Ties are broken at random. After every classes / gcd(each, classes) clients all labels are held equally often, so
    blocks of that many clients ("tables" of "seats") are independent and computed together.
    """
    seats = min(clients, classes // gcd(each, classes))
    tables = -(-clients // seats)
    holds = np.zeros((tables, seats, classes), dtype=bool)
    held = np.zeros((tables, classes))
    for seat in range(seats):
        chosen = np.argsort(held + rng.random((tables, classes)), axis=1)[:, :each]
        np.put_along_axis(holds[:, seat], chosen, True, axis=1)
        held += holds[:, seat]
    return holds.reshape(-1, classes)[:clients]


def dirichlet(alpha: float = 0.5, sizes: SizesLike = None, seed: int | None = None) -> Partition:
    """Each client has its own label distribution, drawn from a Dirichlet distribution (Hsu et al. 2019).

    Its mean is the label distribution of the data, and its concentration is `alpha` for a label of average frequency:
    with equally frequent labels it is Dirichlet(alpha, ..., alpha). With a small `alpha` clients have a single label,
    with a large one the data is IID. With `seed` a client has the same distribution in every task with the same number
    of labels.

    Sizes are exact unless they add up to more than there is; then each client gets one example, and the rest is divided
    in proportion. If a label runs out, all requests for it have the same chance, and requests that are not fulfilled
    are drawn again from the client's distribution over the remaining labels.
    """
    where = "partition 'dirichlet'"
    check(is_positive(alpha), where, "alpha", alpha, "a number above 0")
    check_seed(where, seed)

    def partition(dataset: Dataset, clients: int, rng: np.random.Generator) -> Split:
        supply = Supply.of(dataset, where)
        size = requested_sizes(sizes, clients, supply.rows, rng)
        if clients > supply.rows:
            raise UserError(f"{where}: {clients} clients, but data '{dataset.name}' has {supply.rows} examples.")
        frequency = supply.pool / supply.pool.mean()
        distribution = choice_generator(Choice.LABELS, seed, rng).dirichlet(alpha * frequency, clients)
        number = _draw_labels(distribution, ration(size, supply.rows, rng), supply.pool, rng)
        return Split(supply.assign_rows(number, rng))

    return partition


def _draw_labels(
    distribution: NDArray[np.float64], size: NDArray[np.int64], pool: NDArray[np.int64], rng: np.random.Generator
) -> NDArray[np.int64]:
    """How many examples of each label each client gets, [clients, classes]; the sizes add up to at most the pool."""
    number = np.zeros(distribution.shape, dtype=np.int64)
    left, missing = pool.copy(), size.copy()
    while len(unserved := np.flatnonzero(missing)):
        chance = distribution[unserved] * (left > 0)
        total = chance.sum(1, keepdims=True)
        chance = np.where(total > 0, chance / np.where(total > 0, total, 1), left / left.sum())
        got = rng.multinomial(missing[unserved], chance)
        for scarce in np.flatnonzero(got.sum(0) > left):
            got[:, scarce] = rng.multivariate_hypergeometric(got[:, scarce], left[scarce], method="marginals")
        number[unserved] += got
        left -= got.sum(0)
        missing[unserved] -= got.sum(1)
    return number


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
    return np.asarray((place - first[:, None]) % classes < length[:, None])
