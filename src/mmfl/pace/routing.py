"""Routes: which client each request of a task goes to, drawn a block at a time."""

from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from mmfl.randomness import Purpose, uniform

_BLOCK = 512  # draws that are made together


Candidate = tuple[int, float, int, float]
"""A client that was drawn, its probability, the ordinal of its next request for the task, and the seconds it takes."""


class RequestDurations(Protocol):
    """How long requests take."""

    def sample(
        self, client: NDArray[np.int64], task: int, ordinal: NDArray[np.int64], seed: int
    ) -> NDArray[np.float64]:
        """Seconds of the given requests: each client's request for the task with this ordinal, from 0."""


class Routes:
    """The draws of one task: numbers of clients, with replacement, in proportion to `weight` [clients].

    Draw n is a function of seed, task, n and the weights. `sent` [clients] counts each client's requests for the task
    and belongs to the caller; durations are drawn for the ordinals that it implies.
    """

    def __init__(
        self,
        weight: NDArray[np.float64],
        task: int,
        seed: int,
        durations: RequestDurations,
        sent: NDArray[np.int32],
        drawn: int,
    ):
        self.weight, self.task, self.seed, self.durations, self.sent = weight, task, seed, durations, sent
        self.drawn = drawn
        self._ends = np.cumsum(weight)
        self.total = float(self._ends[-1]) if len(weight) else 0.0
        self._last = int(np.flatnonzero(weight)[-1]) if self.total > 0 else -1
        self._block: list[Candidate] = []

    def draw(self) -> Candidate:
        """The next client; the task must have some client with a positive weight."""
        if not self._block:
            self._block = self._make(self._clients_at(self._numbers(_BLOCK) * self.total))[::-1]
        self.drawn += 1
        candidate = self._block.pop()
        client, _, ordinal, _ = candidate
        return candidate if ordinal == self.sent[client] else self._make(np.array([client]))[0]

    def draw_among(self, free: NDArray[np.bool_]) -> Candidate | None:
        """The next client, of those that are free; None where there is none."""
        ends = np.cumsum(np.where(free, self.weight, 0.0))
        if not ends[-1] > 0:
            return None
        number = self._numbers(1)[0] * ends[-1]
        self.drawn += 1
        self._block = []
        last = int(np.flatnonzero(free & (self.weight > 0))[-1])
        client = min(int(np.searchsorted(ends, number, side="right")), last)
        return self._make(np.array([client]))[0]

    def _numbers(self, count: int) -> NDArray[np.float64]:
        numbers = torch.arange(self.drawn, self.drawn + count)
        return np.asarray(uniform(self.seed, Purpose.ROUTE, self.task, numbers).numpy())

    def _clients_at(self, place: NDArray[np.float64]) -> NDArray[np.int64]:
        return np.minimum(np.searchsorted(self._ends, place, side="right"), self._last)

    def _make(self, client: NDArray[np.int64]) -> list[Candidate]:
        """Candidates, each with the ordinal that its request has if all before it are sent."""
        ordinal = self.sent[client] + repetition(client)
        seconds = self.durations.sample(client, self.task, ordinal, self.seed)
        chance = self.weight[client] / self.total
        columns = client.tolist(), chance.tolist(), ordinal.tolist(), np.asarray(seconds, dtype=np.float64).tolist()
        return list(zip(*columns, strict=True))


def repetition(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """How often each value has occurred before.

    >>> repetition(np.array([4, 2, 4, 4, 2])).tolist()
    [0, 0, 1, 2, 1]
    """
    order = np.argsort(values, kind="stable")
    ordered, place = values[order], np.arange(len(values))
    first = np.maximum.accumulate(np.where(np.append(True, ordered[1:] != ordered[:-1]), place, 0))
    repetition = np.empty_like(order)
    repetition[order] = place - first
    return repetition
