"""Label skew: every client sees the labels in its own proportions."""

from math import gcd

import numpy as np
from numpy.typing import NDArray

from mmfl.checks import check, is_number, is_positive
from mmfl.data import Dataset
from mmfl.errors import UserError
from mmfl.partition.options import Choice, check_seed, chooser
from mmfl.partition.shards import Partition, Split
from mmfl.partition.sizes import SizesLike, wanted
from mmfl.partition.supply import Supply, ration


def labels(fraction: float = 0.3, sizes: SizesLike = None, seed: int | None = None) -> Partition:
    """Each client sees only a `fraction` of the labels, its examples spread evenly over them.

    Labels are dealt like cards, so each is held by nearly as many clients as any other. Where the clients together
    ask for more of a label than there is, each gets one example and its proportional part of the rest; where there
    are not even as many examples as clients, those with the most other labels go without. With `seed` a client holds
    the same labels in every task that has as many of them.
    """
    where = "partition 'labels'"
    check(is_number(fraction, 0, 1) and fraction > 0, where, "fraction", fraction, "a number in (0, 1]")
    check_seed(where, seed)

    def partition(dataset: Dataset, clients: int, rng: np.random.Generator) -> Split:
        supply = Supply.of(dataset, where)
        classes = len(supply.classes)
        holds = _deal(clients, max(1, round(fraction * classes)), classes, chooser(Choice.LABELS, seed, rng))
        number = supply.spread(holds, wanted(sizes, clients, supply.rows, rng), rng)
        return Split(supply.hand_out(number, rng))

    return partition


def _deal(clients: int, each: int, classes: int, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Which client holds which label, [clients, classes]: each is dealt labels that the fewest have, ties by lot.

    After classes / gcd(each, classes) hands all labels are held equally often and dealing begins anew, so the tables
    of that many clients are independent, and dealt at once.
    """
    seats = min(clients, classes // gcd(each, classes))
    tables = -(-clients // seats)
    holds = np.zeros((tables, seats, classes), dtype=bool)
    held = np.zeros((tables, classes))
    for seat in range(seats):
        dealt = np.argsort(held + rng.random((tables, classes)), axis=1)[:, :each]
        np.put_along_axis(holds[:, seat], dealt, True, axis=1)
        held += holds[:, seat]
    return holds.reshape(-1, classes)[:clients]


def dirichlet(alpha: float = 0.5, sizes: SizesLike = None, seed: int | None = None) -> Partition:
    """Each client has its own label distribution, drawn from a Dirichlet distribution (Hsu et al. 2019).

    Its mean is the label distribution of the data and its concentration `alpha` for a label of average frequency: with
    equally frequent labels it is Dirichlet(alpha, ..., alpha). A small `alpha` gives clients of a single label, a large
    one IID data. With `seed` a client has the same distribution in every task that has as many labels.

    Sizes are kept exactly; only where they add up to more than there is, each client gets one example and the rest is
    divided in proportion. Labels that run out are settled by lot: all requests for one have the same chance, and
    who goes away empty-handed asks again, by its own distribution over the labels that are left.
    """
    where = "partition 'dirichlet'"
    check(is_positive(alpha), where, "alpha", alpha, "a number above 0")
    check_seed(where, seed)

    def partition(dataset: Dataset, clients: int, rng: np.random.Generator) -> Split:
        supply = Supply.of(dataset, where)
        size = wanted(sizes, clients, supply.rows, rng)
        if clients > supply.rows:
            raise UserError(f"{where}: {clients} clients, but data '{dataset.name}' has {supply.rows} examples.")
        frequency = supply.pool / supply.pool.mean()
        distribution = chooser(Choice.LABELS, seed, rng).dirichlet(alpha * frequency, clients)
        number = _ask(distribution, ration(size, supply.rows, rng), supply.pool, rng)
        return Split(supply.hand_out(number, rng))

    return partition


def _ask(
    distribution: NDArray[np.float64], size: NDArray[np.int64], pool: NDArray[np.int64], rng: np.random.Generator
) -> NDArray[np.int64]:
    """How many of each label each client gets, [clients, classes]; the sizes together are at most the pool."""
    number = np.zeros(distribution.shape, dtype=np.int64)
    left, lacking = pool.copy(), size.copy()
    while len(asking := np.flatnonzero(lacking)):
        chance = distribution[asking] * (left > 0)
        total = chance.sum(1, keepdims=True)
        chance = np.where(total > 0, chance / np.where(total > 0, total, 1), left / left.sum())
        got = rng.multinomial(lacking[asking], chance)
        for scarce in np.flatnonzero(got.sum(0) > left):
            got[:, scarce] = rng.multivariate_hypergeometric(got[:, scarce], left[scarce], method="marginals")
        number[asking] += got
        left -= got.sum(0)
        lacking[asking] -= got.sum(1)
    return number
