"""Arrivals: random processes that give each client the round from which it takes part."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from mmfl.checks import check, is_positive, is_whole
from mmfl.errors import UserError

Arrivals = Callable[[int, np.random.Generator], NDArray[np.int64]]


def exponential(first: int, gap: float = 2.0) -> Arrivals:
    """The first `first` clients take part from the start; the others arrive one by one, `gap` rounds apart on average.

    >>> exponential(first=2, gap=3.0)(4, np.random.default_rng(0))
    array([1, 1, 4, 7])
    """
    where = "arrivals 'exponential'"
    check(is_whole(first, 1), where, "first", first, "at least 1 client at the start")
    check(is_positive(gap), where, "gap", gap, "a positive number of rounds")

    def arrivals(clients: int, rng: np.random.Generator) -> NDArray[np.int64]:
        if first > clients:
            raise UserError(f"arrivals 'exponential': first is {first}, but there are {clients} clients.")
        later = 1 + np.ceil(np.cumsum(rng.exponential(gap, clients - first))).astype(np.int64)
        return np.concatenate([np.ones(first, dtype=np.int64), later])

    return arrivals


ARRIVALS: dict[str, Callable[..., Arrivals]] = {"exponential": exponential}
