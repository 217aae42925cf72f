"""Schedule: which requests arrive and which of them make a version, one step after another."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from mmfl.errors import UserError
from mmfl.pace.requests import Request, RequestQueue

_MOST_LOST = 100_000  # requests in a row, after which nothing is expected to arrive any more


class Version(NamedTuple):
    """The requests that make a new version of a task, with its number."""

    task: int
    number: int
    requests: list[Request]


class Step(NamedTuple):
    """What happened at an arrival: the request, and the versions that are due then. They must be gone through:
    requests leave the queue one version after another."""

    request: Request
    versions: Iterator[Version]


class RequestRules(Protocol):
    """What a pace decides about requests."""

    @property
    def batches_ties(self) -> bool:
        """Whether what arrives at one time is aggregated together, and before anything is sent."""

    @property
    def over(self) -> bool:
        """Whether nothing is to be sent any more."""

    def fill(self, queue: RequestQueue) -> None:
        """Dispatches requests where there is room for more."""

    def note(self, request: Request) -> None:
        """Is told of every arrival."""

    def number_due(self, queue: RequestQueue, task: int) -> int:
        """How many requests of a task's buffer make a version now; 0 for none."""


@dataclass(frozen=True)
class Schedule:
    """Steps of a queue of requests under the rules of a pace.

    Where the rules batch ties, everything that arrives at one time is in the buffers before anything is aggregated, and
    all that is due is aggregated before the free slots are filled.
    """

    queue: RequestQueue
    rules: RequestRules

    def step(self) -> Step:
        """Fills free slots, and goes on to the next arrival."""
        queue, rules = self.queue, self.rules
        if not rules.batches_ties or queue.settled:
            rules.fill(queue)
        while not queue.in_flight and queue.wait():
            rules.fill(queue)
        if not queue.in_flight:
            raise UserError(f"no client can be asked to train any more, after {queue.time:.0f} seconds.")
        request = queue.arrive()
        rules.note(request)
        return Step(request, self._due() if not rules.batches_ties or queue.settled else iter(()))

    def until(self, arrivals: int) -> Iterator[Step]:
        """Steps until so many requests have arrived and all versions that are due then have been made."""
        arrived = lost = 0
        while arrived < arrivals and not self.rules.over:
            step = self.step()
            lost = lost + 1 if step.request.lost else 0
            arrived += not step.request.lost
            if lost > _MOST_LOST:
                raise UserError(f"the last {lost:,} requests were all lost: no client stays until it has trained.")
            yield step if arrived < arrivals else Step(step.request, self._due())

    def _due(self) -> Iterator[Version]:
        queue = self.queue
        for task in range(len(queue.buffers)):
            while number := self.rules.number_due(queue, task):
                requests = queue.take(task, number)
                yield Version(task, queue.state.version[task], requests)
