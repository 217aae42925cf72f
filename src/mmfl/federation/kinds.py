"""Kinds of clients: those who can train the same tasks with the same capacity."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Kinds:
    """The clients of a round by what they can train: a rule that treats all clients of a kind alike decides for a few
    kinds instead of for every client.

    - `of` [clients]: the kind of each client.
    - `first` and `count` [kinds]: the first client of a kind (0 if it has none), and how many there are.
    - `able` [kinds, tasks] and `capacity` [kinds]: what clients of a kind can train, and how many tasks in a round.
    """

    of: NDArray[Any]
    first: NDArray[np.int64]
    count: NDArray[np.int64]
    able: NDArray[np.bool_]
    capacity: NDArray[np.int64]

    @classmethod
    def among(cls, able: NDArray[np.bool_], capacity: NDArray[np.int64]) -> "Kinds":
        """The kinds among clients, given which tasks each can train [clients, tasks] and its capacity [clients].

        >>> Kinds.among(np.array([[True, True], [True, False], [True, True]]), np.array([1, 1, 1])).of.tolist()
        [1, 0, 1]
        """
        kind = _renumber(np.asarray(capacity))
        for column in able.T:
            kind = _renumber(2 * kind + column)
        first, count = _first_and_count(kind, int(kind.max(initial=-1)) + 1)
        compact = kind.astype(np.min_scalar_type(max(len(first) - 1, 0)))
        return cls(compact, first, count, able[first], np.asarray(capacity)[first])

    def only(self, tasks: NDArray[np.bool_]) -> "Kinds":
        """The same kinds, with the marked tasks [tasks] alone."""
        able = self.able & tasks
        return replace(self, able=able, capacity=np.minimum(self.capacity, able.sum(1)))

    def split(self, clients: NDArray[np.bool_]) -> "Kinds":
        """Twice as many kinds: the marked clients [clients] of each are a kind of their own, in the second half."""
        number = len(self.first)
        kind = self.of.astype(np.min_scalar_type(2 * number)) + number * clients
        able, capacity = np.tile(self.able, (2, 1)), np.tile(self.capacity, 2)
        return Kinds(kind, *_first_and_count(kind, 2 * number), able, capacity)


def _renumber(kind: NDArray[Any]) -> NDArray[np.int64]:
    """Whole numbers from 0 on in the same order, without gaps."""
    place: NDArray[np.int64] = np.cumsum(np.bincount(kind) > 0) - 1
    renumbered: NDArray[np.int64] = place[kind]
    return renumbered


def _first_and_count(kind: NDArray[Any], number: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    first = np.zeros(number, dtype=np.int64)
    first[kind[::-1]] = np.arange(len(kind))[::-1]
    return first, np.bincount(kind, minlength=number)
