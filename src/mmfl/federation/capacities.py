"""What each client can train: its capacity, and the tasks that it lacks."""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mmfl.checks import check, is_number, is_whole
from mmfl.errors import UserError, nearest
from mmfl.randomness import Purpose, generator

Capacity = int | Sequence[int] | Literal["all", "mixed"]


def client_capacities(
    capacity: Capacity, sizes: NDArray[np.int64], seed: int, describe: Callable[[int], str]
) -> NDArray[np.int64]:
    """B_i: how many tasks each client can train in a round, [clients].

    `sizes` [clients, tasks] are the clients' examples; `describe` names a client in an error message.
    """
    clients = len(sizes)
    tasks_of: NDArray[np.int64] = np.count_nonzero(sizes, axis=1)
    if isinstance(capacity, str):
        if capacity == "all":
            return tasks_of
        if capacity == "mixed":
            place = generator(seed, Purpose.CAPACITY).permutation(clients) / clients
            return np.where(place < 0.25, tasks_of, np.where(place < 0.75, -(-tasks_of // 2), 1))
        raise UserError(f"federation: capacity '{capacity}': {nearest(capacity, ['all', 'mixed'])}")
    pattern = np.atleast_1d(np.asarray(capacity))
    valid = pattern.ndim == 1 and are_whole_numbers(capacity)
    check(valid, "federation", "capacity", capacity, "whole numbers, 'all' or 'mixed'")
    if len(pattern) > clients:
        raise UserError(f"federation: {len(pattern)} capacities for {clients} clients.")
    per_client = np.resize(pattern, clients)
    wrong = (per_client < 1) | (per_client > tasks_of)
    if wrong.any():
        client = int(np.argmax(wrong))
        raise UserError(
            f"federation: {describe(client)} has capacity {per_client[client]}; expected 1 to "
            f"{tasks_of[client]}, the number of its tasks."
        )
    return per_client


def missing_tasks(lacks: float | ArrayLike, clients: int, tasks: int, seed: int) -> NDArray[np.bool_]:
    """Which clients lack which tasks, [clients, tasks]: a given table, or one random task for a share of clients."""
    shape = (clients, tasks)
    if np.ndim(lacks) > 0:
        table = np.asarray(lacks)
        if table.shape != shape:
            raise UserError(f"federation: lacks has shape {table.shape}; expected [clients, tasks] = {shape}.")
        if table.dtype.kind not in "biuf" or not ((table == 0) | (table == 1)).all():
            raise UserError("federation: lacks is a table with values other than 0 and 1, or true and false.")
        return table.astype(bool)
    expected = "a share of the clients in [0, 1], or a table [clients, tasks]"
    check(is_number(lacks, 0, 1), "federation", "lacks", lacks, expected)
    share = float(lacks)  # type: ignore[arg-type]
    if share > 0 and tasks < 2:
        raise UserError("federation: lacks needs at least two tasks: a client must keep one.")
    rng = generator(seed, Purpose.MISSING)
    lacking = np.zeros(shape, dtype=bool)
    chosen = rng.permutation(clients)[: round(share * clients)]
    lacking[chosen, rng.integers(0, tasks, len(chosen))] = True
    return lacking


def are_whole_numbers(values: Any) -> bool:
    """Whether it is a whole number or a list of them; True and False are not numbers."""
    if isinstance(values, np.ndarray):
        return values.dtype.kind in "iu"
    return all(is_whole(value, -(2**63)) for value in values) if np.ndim(values) == 1 else is_whole(values, -(2**63))
