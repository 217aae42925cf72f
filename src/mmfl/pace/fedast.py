"""FedAST: asynchronous training of several models, whose requests go where updates differ most (Askin et al. 2024)."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from mmfl.aggregation import AggregationRule
from mmfl.aggregation.asynchronous import FedBuff
from mmfl.allocation import AllocationRule
from mmfl.checks import check, check_whole, is_number, is_whole
from mmfl.errors import UserError, nearest
from mmfl.federation import Federation
from mmfl.pace.requests import QueueOptions, Request, RequestQueue
from mmfl.pace.schedule import RequestRules
from mmfl.pace.slots import AsynchronousPace, SlotState

UNIT = 32
"""Slots that move from task to task together, and requests in flight for each update of a dynamic buffer."""

_WINDOW = 7  # updates of a task that are compared
_MIN_VERSIONS = 8  # of every task, after which requests are reallocated
_DUE = 0.75  # of all slots: arrivals for each unfinished task, after which they are again
_NOBODY, _EVERYONE = -1, -2


@dataclass
class FedASTState(SlotState):
    """Slots, the task of the last arrival, arrivals since the last reallocation, and of each task the last updates
    [updates, parameters] and the sum and number of its statistics since then."""

    last: int
    arrivals: int
    window: list[Tensor]
    total_spread: list[float]
    spreads: list[int]


@dataclass(frozen=True)
class FedAST(AsynchronousPace):
    """`requests` of each task are in flight at first, to clients drawn with replacement; a busy client lets them wait.

    With a "dynamic" `buffer` as many updates make a version as the task has requests in flight, divided by 32; a number
    is fixed. At every arrival at most two requests are sent for its task. No more than `active` clients are busy: where
    a drawn one would be one more, the slot stays free until something else arrives.

    With `reallocate` slots move, 32 at a time, to tasks whose updates differ most in proportion to their mean; with
    `root` in proportion to the square root of that, which the published code probably means but does not take.

    A task ends when it reaches its target in `targets`, which is tested every `check_every` versions: its requests are
    cancelled and its slots divided among the others.
    """

    name: ClassVar[str] = "fedast"
    batches_ties: ClassVar[bool] = False

    requests: int | Sequence[int] = 96
    buffer: int | str = "dynamic"
    active: int | None = 300
    reallocate: bool = True
    root: bool = False
    targets: Mapping[str, float] | None = None
    check_every: int = 4

    def __post_init__(self) -> None:
        where = f"pace '{self.name}'"
        given = self.requests if isinstance(self.requests, Sequence) else [self.requests]
        valid = len(given) > 0 and all(is_whole(each, 1) for each in given)
        check(valid, where, "requests", self.requests, "a whole number of at least 1, or one for each task")
        if isinstance(self.buffer, str) and self.buffer != "dynamic":
            raise UserError(f"{where}: unknown buffer '{self.buffer}': {nearest(self.buffer, ['dynamic'])}")
        if not isinstance(self.buffer, str):
            check_whole(where, "buffer", self.buffer)
        if self.active is not None:
            check_whole(where, "active", self.active)
        check_whole(where, "check_every", self.check_every)
        for task, target in (self.targets or {}).items():
            check(is_number(target, -math.inf, math.inf), where, f"target of task '{task}'", target, "a finite number")
        for name in ("reallocate", "root"):
            check(isinstance(getattr(self, name), bool), where, name, getattr(self, name), "True or False")

    def check(
        self, method: str, allocation: AllocationRule, aggregation: AggregationRule, federation: Federation
    ) -> None:
        """Also refuses slots of another number of tasks, and rules for which a client may not be asked twice."""
        super().check(method, allocation, aggregation, federation)
        where, tasks = f"method '{method}': pace '{self.name}'", len(federation.tasks)
        right = not isinstance(self.requests, Sequence) or len(self.requests) == tasks
        check(right, where, "requests", self.requests, f"one number for each of {tasks} tasks")
        expected = f"'buffered' for {type(aggregation).__name__}, which takes every update for itself"
        check(not aggregation.needs_starts, where, "pace", self.name, expected)
        known = [task.name for task in federation.tasks]
        unknown = next((task for task in self.targets or {} if task not in known), None)
        if unknown is not None:
            raise UserError(f"{where}: target of unknown task '{unknown}': {nearest(unknown, known)}")

    def target_of(self, task: str) -> float | None:
        """The metric at which a task ends."""
        return (self.targets or {}).get(task)

    @property
    def observes_updates(self) -> bool:
        """Reallocation compares updates."""
        return self.reallocate

    def start_slots(self, federation: Federation, weights: Sequence[Tensor], trainings: int) -> FedASTState:
        """Slots of each task."""
        tasks = len(weights)
        slots = [self.requests] * tasks if isinstance(self.requests, int) else list(self.requests)
        window = [each.new_empty(0, len(each)) for each in weights]
        return FedASTState(sum(slots), slots, [None] * tasks, _EVERYONE, 0, window, [0.0] * tasks, [0] * tasks)

    def options(self, one_each: bool) -> QueueOptions:
        """Requests wait at busy clients, unless a client's updates are remembered."""
        return QueueOptions(waits=True, one_each=one_each, most_busy=self.active, draws_again=False)

    def rules(self, state: Any) -> RequestRules:
        """What it decides about requests."""
        return _FedASTRules(state, self.buffer)

    def observe(
        self, queue: RequestQueue, state: FedASTState, task: int, update: Tensor, rate: float, steps: int, server: float
    ) -> None:
        """Looks at an update that has arrived, and moves slots where it is time for that."""
        assert state.of_task is not None
        window = state.window[task] = torch.cat([state.window[task][1 - _WINDOW :], update[None]])
        if len(window) == _WINDOW:
            state.total_spread[task] += spread(window, rate, steps, server, self.root)
            state.spreads[task] += 1
        state.arrivals += 1
        unfinished = [s for s, slots in enumerate(state.of_task) if slots]
        due = state.arrivals >= int(_DUE * state.total) * len(unfinished)
        if not due or min(queue.state.version) <= _MIN_VERSIONS or not all(state.spreads[s] for s in unfinished):
            return
        means = {s: state.total_spread[s] / state.spreads[s] for s in unfinished}
        for s, slots in divide_slots(means, state.total).items():
            state.of_task[s] = slots
        tasks = len(state.spreads)
        state.arrivals, state.total_spread, state.spreads = 0, [0.0] * tasks, [0] * tasks


@dataclass(frozen=True)
class _FedASTRules:
    """The rules of `FedAST`."""

    state: FedASTState
    buffer: int | str
    batches_ties: bool = False

    @property
    def over(self) -> bool:
        """Once all tasks have reached their targets."""
        return self.state.total == 0

    def fill(self, queue: RequestQueue) -> None:
        """All requests of all tasks at first; later at most two of the task whose request has arrived, and one of a
        task that would never have another arrival."""
        state, slots = self.state, self.state.of_task
        assert slots is not None
        last, state.last = state.last, _NOBODY
        if last == _EVERYONE:
            for task, number in enumerate(slots):
                for _ in range(number):
                    queue.send(task)
        elif last != _NOBODY:
            room = min(slots[last] - queue.in_flight_of(last), state.total - queue.in_flight, 2)
            for _ in range(room):
                queue.send(last)
            for task, number in enumerate(slots):
                if number and not queue.in_flight_of(task):
                    queue.send(task)

    def note(self, request: Request) -> None:
        """Whose slot is free."""
        self.state.last = request.task

    def number_due(self, queue: RequestQueue, task: int) -> int:
        """All of a buffer that is full."""
        size = math.ceil(queue.in_flight_of(task) / UNIT) if self.buffer == "dynamic" else int(self.buffer)
        held = len(queue.buffers[task])
        return held if held >= max(size, 1) else 0


def spread(updates: Tensor, rate: float, steps: int, server: float, root: bool) -> float:
    """v = (eta_g / (eta_l K^2)) [mean ||u - u_mean||^2] / ||u_mean||^2 of the last updates u of K local steps, with
    learning rates eta_l of clients and eta_g of the server; half of that, or its square root."""
    mean = updates.mean(0)
    square = float(mean.square().sum())
    if not square > 0 or not rate > 0:
        return 0.0
    found = server / (rate * steps**2) * float((updates - mean).square().sum(1).mean()) / square
    return math.sqrt(found) if root else found / 2


def divide_slots(spreads: Mapping[int, float], total: int) -> dict[int, int]:
    """The slots of each unfinished task: 32 each, and the rest 32 at a time to the task that has least of the part that
    its spread stands for.

    >>> divide_slots({0: 1.0, 1: 1.0, 2: 1.0}, 288), divide_slots({0: 9e9, 1: 1.0, 2: 1.0}, 288)
    ({0: 96, 1: 96, 2: 96}, {0: 224, 1: 32, 2: 32})
    """
    least = min(UNIT, total // len(spreads))
    slots, left, sums = dict.fromkeys(spreads, least), total - least * len(spreads), sum(spreads.values())
    part = {s: int(total * each / sums) if sums > 0 else total // len(spreads) for s, each in spreads.items()}
    while left > 0:
        neediest = max(slots, key=lambda s: (part[s] - slots[s], -s))
        slots[neediest] += min(UNIT, left)
        left -= UNIT
    return slots


def server_rate(aggregation: AggregationRule) -> float:
    """The learning rate of the server, 1 where the aggregation has none."""
    return aggregation.lr if isinstance(aggregation, FedBuff) else 1.0
