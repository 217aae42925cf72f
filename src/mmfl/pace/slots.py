"""AsynchronousPace: requests are sent and aggregated one by one, with no rounds that anyone waits for."""

from dataclasses import dataclass
from typing import Any, ClassVar

from mmfl.aggregation import AggregationRule
from mmfl.allocation import AllocationRule
from mmfl.errors import UserError
from mmfl.federation import Federation, RoundView
from mmfl.pace.base import Pace
from mmfl.pace.requests import QueueOptions, RequestQueue
from mmfl.pace.schedule import RequestRules


@dataclass
class SlotState:
    """How many requests may be in flight: in all, and of each task, where tasks have slots of their own."""

    total: int
    of_task: list[int] | None


class AsynchronousPace(Pace):
    """A pace that sends a request whenever a slot is free, and makes a version whenever a buffer is full.

    A round of the run is as many arrivals as a synchronous round has trainings, so that both can be compared; nobody
    waits for its end. At its beginning the allocation says, by its probabilities, who is asked from now on.
    """

    batches_ties: ClassVar[bool] = True
    observes_updates: ClassVar[bool] = False

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

    @property
    def keeps_memory(self) -> bool:
        """Whether what the aggregation's memory stood for is kept for every version that clients began with."""
        return False

    def start(self, tasks: int, trainings: int) -> SlotState:
        """The slots before the first request, given how many trainings a synchronous round has."""
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


def check_view(method: str, pace: str, view: RoundView, beyond_capacity: bool) -> None:
    """Refuses full participation, in which everyone trains at once."""
    if beyond_capacity:
        raise UserError(
            f"method '{method}': full participation asks all clients at once in round {view.round}, and pace '{pace}' "
            "a few at a time; expected an allocation with a budget, such as 'random-processors'."
        )
