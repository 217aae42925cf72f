"""Buffered: FedBuff's pace, and FedAsync's with a buffer of one."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from mmfl.aggregation import AggregationRule
from mmfl.allocation import AllocationRule
from mmfl.checks import check, check_whole
from mmfl.errors import UserError, nearest
from mmfl.federation import Federation
from mmfl.pace.requests import QueueOptions, Request, RequestQueue
from mmfl.pace.schedule import RequestRules
from mmfl.pace.slots import AsynchronousPace, SlotState, fill_slots

_BUSY = ("pass", "wait")
_MEMORY = ("current", "sent")


@dataclass(frozen=True)
class Buffered(AsynchronousPace):
    """`concurrency` requests are in flight at any time; `buffer` updates of a task make its next version.

    The server draws who is asked, with replacement, in proportion to capacity times the allocation's probabilities, so
    that each client's share of the updates is the one that it was drawn with, however slow it is. Without
    `concurrency` as many requests are in flight as a synchronous round has trainings.

    A drawn client that is `busy` is passed over, and another one drawn; with "wait" its request waits there, which
    keeps the shares exact. Rules that remember updates compare a new one with the `memory` that is "current" when it
    is aggregated, or with what it stood for when the request was "sent", which is unbiased and keeps one more vector
    for each version that clients still train from.
    """

    name: ClassVar[str] = "buffered"

    concurrency: int | None = None
    buffer: int = 10
    busy: str = "pass"
    memory: str = "current"

    def __post_init__(self) -> None:
        where = f"pace '{self.name}'"
        if self.concurrency is not None:
            check_whole(where, "concurrency", self.concurrency)
        check_whole(where, "buffer", self.buffer)
        for name, known in (("busy", _BUSY), ("memory", _MEMORY)):
            if (value := getattr(self, name)) not in known:
                raise UserError(f"{where}: unknown {name} '{value}': {nearest(str(value), known)}")

    def check(
        self, method: str, allocation: AllocationRule, aggregation: AggregationRule, federation: Federation
    ) -> None:
        """Also refuses buffers and memories that the aggregation does not go with."""
        super().check(method, allocation, aggregation, federation)
        where, rule = f"method '{method}': pace '{self.name}'", type(aggregation).__name__
        expected = f"1 for {rule}, which takes every update for itself"
        check(not aggregation.needs_starts or self.buffer == 1, where, "buffer", self.buffer, expected)
        expected = f"'current' for {rule}, of which no earlier memory can be kept"
        check(aggregation.has_stale_mean or not self.keeps_memory, where, "memory", self.memory, expected)

    @property
    def keeps_memory(self) -> bool:
        """Whether updates are compared with the memory of the time when they were asked for."""
        return self.memory == "sent"

    def start_slots(self, federation: Federation, weights: Sequence[Tensor], trainings: int) -> SlotState:
        """Slots that all tasks share."""
        return SlotState(self.concurrency or trainings, None, [None] * len(weights))

    def options(self, one_each: bool) -> QueueOptions:
        """Busy clients are passed over, or have requests wait."""
        return QueueOptions(waits=self.busy == "wait", one_each=one_each)

    def rules(self, state: Any) -> RequestRules:
        """Slots are filled at once; a buffer is aggregated when it is full."""
        return _BufferedRules(state, self.buffer)


@dataclass(frozen=True)
class _BufferedRules:
    """The rules of `Buffered`."""

    state: SlotState
    buffer: int
    batches_ties: bool = True

    @property
    def over(self) -> bool:
        """Never."""
        return False

    def fill(self, queue: RequestQueue) -> None:
        """All slots."""
        fill_slots(queue, self.state)

    def note(self, request: Request) -> None:
        """Nothing to remember."""

    def number_due(self, queue: RequestQueue, task: int) -> int:
        """A full buffer, and no more than that."""
        return self.buffer if len(queue.buffers[task]) >= self.buffer else 0
