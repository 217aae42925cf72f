"""Rules for the number of examples that each client requests."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from mmfl.checks import check, is_number, is_positive, is_whole
from mmfl.errors import UserError
from mmfl.partition.shards import Choice, check_seed, choice_generator
from mmfl.partition.supply import apportion

Sizes = Callable[[int, np.random.Generator, int], NDArray[np.int64]]
"""A rule `(clients, rng, available)`: how many of the available examples each client requests, [clients]."""

SizesLike = Sizes | int | Sequence[int] | None


def high_low(
    share: float = 0.1, high: Sequence[int] = (90, 150), low: Sequence[int] = (9, 15), seed: int | None = None
) -> Sizes:
    """Sizes of the papers: a random `share` of the clients has many examples, the others a tenth of that.

    `high` and `low` are (least, most), both included. Each task chooses its own clients with much data; with `seed`
    they are the same for every task.

    >>> sizes = high_low()(1000, np.random.default_rng(0), 60_000)
    >>> int((sizes >= 90).sum()), int(sizes.min()), int(sizes.max())
    (100, 9, 149)
    """
    where = "partition sizes 'high-low'"
    check(is_number(share, 0, 1), where, "share", share, "a number in [0, 1]")
    _check_range(where, "high", high)
    _check_range(where, "low", low)
    check_seed(where, seed)

    def sizes(clients: int, rng: np.random.Generator, available: int) -> NDArray[np.int64]:
        few, many = rng.integers(low[0], low[1] + 1, clients), rng.integers(high[0], high[1] + 1, clients)
        place = choice_generator(Choice.VOLUME, seed, rng).permutation(clients)
        return np.where(place < round(share * clients), many, few)

    return sizes


def uniform(least: int = 30, most: int = 40) -> Sizes:
    """Sizes are uniform in `least`..`most`, both included."""
    where = "partition sizes 'uniform'"
    check(is_whole(least, 1), where, "least", least, "a whole number from 1")
    check(is_whole(most, least), where, "most", most, f"a whole number from {least} (least)")

    def sizes(clients: int, rng: np.random.Generator, available: int) -> NDArray[np.int64]:
        return rng.integers(least, most + 1, clients)

    return sizes


def lognormal(mean: float = 4.0, sigma: float = 2.0, least: int = 1, most: int | None = None) -> Sizes:
    """Heavy-tailed sizes: `least` plus the integer part of a lognormal number, at most `most` (or all examples).

    `mean` and `sigma` are those of the logarithm. With `least=50` these are the sizes of the synthetic data sets.
    """
    where = "partition sizes 'lognormal'"
    check(is_number(mean, -np.inf, np.inf), where, "mean", mean, "a number")
    check(is_number(sigma, 0, np.inf), where, "sigma", sigma, "a number of at least 0")
    check(is_whole(least, 1), where, "least", least, "a whole number from 1")
    check(most is None or is_whole(most, least), where, "most", most, f"a whole number from {least} (least), or none")

    def sizes(clients: int, rng: np.random.Generator, available: int) -> NDArray[np.int64]:
        cap = max(least, available if most is None else min(most, available))
        with np.errstate(over="ignore"):
            drawn = np.minimum(np.floor(rng.lognormal(mean, sigma, clients)), cap - least)
        return least + drawn.astype(np.int64)

    return sizes


def dirichlet_sizes(alpha: float = 1.0, least: int = 1) -> Sizes:
    """Each client gets `least` examples, and a share of all others from a Dirichlet distribution.

    With a small `alpha` few clients get nearly everything, with a large one shares are equal. Its name in `SIZES` is
    "dirichlet".
    """
    where = "partition sizes 'dirichlet'"
    check(is_positive(alpha), where, "alpha", alpha, "a number above 0")
    check(is_whole(least, 1), where, "least", least, "a whole number from 1")

    def sizes(clients: int, rng: np.random.Generator, available: int) -> NDArray[np.int64]:
        if clients * least > available:
            raise UserError(
                f"{where}: at least {least} examples for each of {clients} clients, but there are {available}."
            )
        return least + apportion(rng.dirichlet(np.full(clients, alpha)), available - clients * least, rng)

    return sizes


def equal() -> Sizes:
    """All examples in equal shares, which differ by at most one; the default of partitions."""

    def sizes(clients: int, rng: np.random.Generator, available: int) -> NDArray[np.int64]:
        return available // clients + (np.arange(clients) < available % clients)

    return sizes


def requested_sizes(sizes: SizesLike, clients: int, available: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """The number of examples that each client requests, [clients], at least 1: from a rule, or as numbers."""
    if sizes is None:
        sizes = equal()
    values = np.asarray(sizes(clients, rng, available) if callable(sizes) else sizes)
    if values.dtype.kind not in "iu":
        raise UserError(f"partition: sizes is {sizes!r}; expected whole numbers or the name of a rule.")
    if values.ndim > 1 or values.size not in (1, clients):
        raise UserError(f"partition: {values.size} sizes for {clients} clients.")
    numbers = np.broadcast_to(values.astype(np.int64), clients)
    if (numbers < 1).any():
        raise UserError(
            f"partition: client {int(np.argmax(numbers < 1))} would get no example ({available} for {clients} clients)."
        )
    return numbers


def _check_range(where: str, name: str, value: Sequence[int]) -> None:
    valid = isinstance(value, Sequence) and len(value) == 2 and is_whole(value[0], 1) and is_whole(value[1], value[0])
    check(valid, where, name, value, "two whole numbers from 1: (least, most)")


SIZES: dict[str, Callable[..., Sizes]] = {
    "high-low": high_low,
    "uniform": uniform,
    "lognormal": lognormal,
    "dirichlet": dirichlet_sizes,
    "equal": equal,
}
