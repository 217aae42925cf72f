"""AsynchronousPace: requests are sent and aggregated one by one, with no rounds that anyone waits for."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from mmfl.aggregation import AggregationRule
from mmfl.allocation import AllocationRule
from mmfl.errors import UserError
from mmfl.federation import Federation, RoundView
from mmfl.pace.base import Pace
from mmfl.pace.requests import QueueOptions, RequestQueue
from mmfl.pace.schedule import RequestRules


@dataclass
class SlotState:
    """How many requests may be in flight: in all, and of each task, where tasks have slots of their own; and when each
    task reached its target, in seconds, where there are any."""

    total: int
    of_task: list[int] | None
    ended: list[float | None]


class AsynchronousPace(Pace):
    """A pace that sends a request whenever a slot is free, and makes a version whenever a buffer is full.

    A round of the run is as many arrivals as a synchronous round has trainings, so that both can be compared; nobody
    waits for its end. At its beginning the allocation says, by its probabilities, who is asked from now on.
    """

    check_every: int = 1
    batches_ties: ClassVar[bool] = True

    def check(
        self, method: str, allocation: AllocationRule, aggregation: AggregationRule, federation: Federation
    ) -> None:
        """Also refuses rules for which everyone would have to train or evaluate at once."""
        super().check(method, allocation, aggregation, federation)
        start = f"method '{method}': pace '{self.name}' has no moment at which all clients"
        measured = sorted(allocation.needs - {"expected_residuals"})
        if measured:
            name, work = type(allocation).__name__, "evaluate" if measured[0] == "losses" else "train"
            raise UserError(f"{start} {work}, but allocation {name} needs their {measured[0]}; expected another one.")
        if aggregation.needs_everyone:
            raise UserError(f"{start} train, but aggregation {type(aggregation).__name__} needs their updates.")

    def target_of(self, task: str) -> float | None:
        """The metric at which a task ends; None if it has no target."""
        return None

    def observe(
        self, queue: RequestQueue, state: Any, task: int, update: Tensor, rate: float, steps: int, server: float
    ) -> None:
        """Looks at an update that has arrived, where it `observes_updates`: of so many local steps with learning rate
        `rate`, to be aggregated with that of the `server`."""

    @property
    def observes_updates(self) -> bool:
        """Whether it looks at every update that arrives."""
        return False

    @property
    def keeps_memory(self) -> bool:
        """Whether what the aggregation's memory stood for is kept for every version that clients began with."""
        return False

    def start_slots(self, federation: Federation, weights: Sequence[Tensor], trainings: int) -> SlotState:
        """The slots before the first request, given the weights of each task and how many trainings a synchronous round
        has."""
        raise TypeError(f"{type(self).__name__} does not say how many requests are in flight.")

    def options(self, one_each: bool) -> QueueOptions:
        """How requests meet clients."""
        return QueueOptions(one_each=one_each)

    def rules(self, state: Any) -> RequestRules:
        """What it decides about requests, given its state."""
        raise TypeError(f"{type(self).__name__} does not say when requests are sent.")


def fill_slots(queue: RequestQueue, state: SlotState) -> None:
    """Sends requests until all slots are taken, or no client can take any.

    Slots that all tasks share go to the task that is owed most.
    """
    open_tasks = list(queue.routed_tasks)
    while open_tasks and queue.in_flight < state.total:
        if state.of_task is not None:
            open_tasks = [s for s in open_tasks if queue.in_flight_of(s) < state.of_task[s]]
            if not open_tasks:
                return
        task = queue.next_task(open_tasks)
        if not queue.send(task):
            open_tasks = [s for s in open_tasks if s != task]


def finish(queue: RequestQueue, state: SlotState, task: int) -> None:
    """Ends a task: its requests are cancelled, and its slots are divided among the others in proportion to theirs, what
    is left over by the largest remainders."""
    queue.cancel(task)
    state.ended[task] = queue.time
    if state.of_task is None:
        return
    slots = state.of_task
    freed, slots[task] = slots[task], 0
    if not (others := sum(slots)):
        state.total = 0
        return
    exact = [freed * each / others for each in slots]
    whole = [int(each) for each in exact]
    by_remainder = sorted(range(len(slots)), key=lambda s: (whole[s] - exact[s], s))
    for s in by_remainder[: freed - sum(whole)]:
        whole[s] += 1
    state.of_task = [each + more for each, more in zip(slots, whole, strict=True)]


def check_view(method: str, pace: str, view: RoundView, beyond_capacity: bool) -> None:
    """Refuses full participation, in which everyone trains at once."""
    if beyond_capacity:
        raise UserError(
            f"method '{method}': full participation asks all clients at once in round {view.round}, and pace '{pace}' "
            "a few at a time; expected an allocation with a budget, such as 'random-processors'."
        )
