"""RequestQueue: the event queue of asynchronous training, whose events belong to requests and not to devices.

A request asks one client to train one task from the weights of one version. It is dispatched, arrives a while later,
waits in its task's buffer and is aggregated with others, which makes the next version. Nothing here knows weights.
"""

from bisect import insort
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from heapq import heapify, heappop, heappush
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mmfl.pace.reach import Reach
from mmfl.pace.routing import RequestDurations, Routes


class Request(NamedTuple):
    """A request, in the order in which requests arrive: by time, then by serial number.

    It was sent at time `sent`, when the task had this `version`, to a client drawn with probability `chance`, which
    begins with it at time `begun`, at once unless it has others to do before. What is `lost` is given up at `arrival`.
    """

    arrival: float
    serial: int
    task: int
    client: int
    version: int
    sent: float
    begun: float
    chance: float
    lost: bool = False


@dataclass(frozen=True)
class QueueOptions:
    """How requests meet clients.

    A client works on as many requests at a time as its capacity. With `waits` further ones wait there, in their order;
    without, a busy client is passed over and another one drawn. With `one_each` no client has two requests for a task
    that are not aggregated yet. No more than `most_busy` clients are busy at a time.
    Unless it `draws_again`, a slot stays free until something else arrives where the drawn client can take no request.
    """

    waits: bool = False
    one_each: bool = False
    most_busy: int | None = None
    draws_again: bool = True


@dataclass
class Tallies:
    """What became of the requests of each task, and the seconds that clients spent on them.

    `passed_over` counts clients that were drawn while they could take no request.
    """

    sent: list[int]
    aggregated: list[int]
    lost: list[int]
    cancelled: list[int]
    passed_over: list[int]
    seconds_done: list[float]
    seconds_lost: list[float]
    seconds_cancelled: list[float]

    @classmethod
    def start(cls, tasks: int) -> "Tallies":
        """Nothing yet."""
        empty: dict[str, Any] = {
            each.name: [0.0 if each.name.startswith("seconds") else 0] * tasks for each in fields(cls)
        }
        return cls(**empty)


@dataclass
class QueueState:
    """All that a queue of requests remembers: what a checkpoint holds.

    By task, `version` counts aggregations, `drawn` draws of clients, and `credit` is what the task is owed of the
    requests that are divided by shares. `asked` [clients, tasks] counts requests; `in_flight` and `buffered` have a row
    for each.
    """

    time: float
    serial: int
    version: list[int]
    drawn: list[int]
    credit: list[float]
    asked: NDArray[np.int32]
    tallies: Tallies
    in_flight: NDArray[np.float64] = field(default_factory=lambda: _table([]))
    buffered: NDArray[np.float64] = field(default_factory=lambda: _table([]))

    @classmethod
    def start(cls, clients: int, tasks: int) -> "QueueState":
        """Before the first request."""
        asked = np.zeros((clients, tasks), dtype=np.int32)
        return cls(0.0, 0, [0] * tasks, [0] * tasks, [0.0] * tasks, asked, Tallies.start(tasks))


class RequestQueue:
    """Requests in flight, ordered by arrival, and the buffers of those that have arrived.

    At equal times all arrivals come first, then aggregations, then dispatches, each by serial number. A schedule is a
    function of seed, devices and routes, and of nothing else.
    """

    def __init__(
        self,
        state: QueueState,
        capacity: NDArray[np.int64],
        durations: RequestDurations,
        seed: int,
        options: QueueOptions | None = None,
        reach: Reach | None = None,
    ):
        self.state, self.capacity, self.durations, self.seed = state, capacity, durations, seed
        self.options = options or QueueOptions()
        self.reach = reach
        tasks = len(state.version)
        self.buffers: list[list[Request]] = [[] for _ in range(tasks)]
        for request in _requests(state.buffered):
            self.buffers[request.task].append(request)
        self._heap = _requests(state.in_flight)
        heapify(self._heap)
        self._flying = [0] * tasks
        self._arrivals: dict[int, list[float]] = {}  # of the requests in flight of each client, in ascending order
        known = list(self.requests())
        self._pairs = {(each.client, each.task) for each in known} if self.options.one_each else set()
        self._unused = Counter((each.task, each.version) for each in known)
        for each in sorted(self._heap):
            self._flying[each.task] += 1
            self._arrivals.setdefault(each.client, []).append(each.arrival)
        self.routes: list[Routes | None] = [None] * tasks
        self.routed_tasks: list[int] = []  # tasks that some client can be asked for
        self._shares = [0.0] * tasks

    @property
    def time(self) -> float:
        """Seconds since the beginning."""
        return self.state.time

    @property
    def in_flight(self) -> int:
        """Requests that have not arrived."""
        return len(self._heap)

    def in_flight_of(self, task: int) -> int:
        """Those of a task."""
        return self._flying[task]

    @property
    def busy_clients(self) -> int:
        """Clients that have something to do."""
        return len(self._arrivals)

    def requests(self) -> Iterator[Request]:
        """All requests that are not aggregated, in the order in which they arrive."""
        yield from sorted([*self._heap, *(each for buffer in self.buffers for each in buffer)])

    def has_unused(self, task: int, version: int) -> bool:
        """Whether a request of this version of a task has not been aggregated yet."""
        return self._unused[task, version] > 0

    def route(self, weight: NDArray[np.float64]) -> None:
        """Sends requests from now on in proportion to `weight` [clients, tasks]: those of a task to clients in
        proportion to its column, and to tasks in proportion to the sums of columns."""
        for task, column in enumerate(weight.T):
            known = self.routes[task]
            if known is None or not np.array_equal(known.weight, column):
                asked, drawn = self.state.asked[:, task], self.state.drawn[task]
                self.routes[task] = Routes(np.ascontiguousarray(column), task, self.seed, self.durations, asked, drawn)
        totals = [each.total for each in self.routes if each is not None]
        self._shares = [total / (sum(totals) or 1.0) for total in totals]
        self.routed_tasks = [task for task, total in enumerate(totals) if total > 0]

    @property
    def settled(self) -> bool:
        """Whether nothing else arrives at this time, so that free slots are filled."""
        return not self._heap or self._heap[0].arrival > self.state.time

    def next_task(self, tasks: list[int]) -> int:
        """Of these tasks, the one that is owed most, given the shares of all requests that each should get."""
        owed = [self.state.credit[s] + self._shares[s] for s in tasks]
        return tasks[owed.index(max(owed))]

    def send(self, task: int) -> bool:
        """Dispatches a request for a task, if a client can take it."""
        routes, state = self.routes[task], self.state
        found = None
        if routes is not None and routes.total > 0:
            for _ in range(_TRIES + len(self.capacity) // 256 if self.options.draws_again else 1):
                found = routes.draw()
                if self._takes(found[0], task):
                    break
                state.tallies.passed_over[task] += 1
            else:
                free = self._free(task, routes.weight) if self.options.draws_again else None
                found = None if free is None else routes.draw_among(free)
            state.drawn[task] = routes.drawn
        if found is None:
            return False
        client, chance, _, seconds = found
        now = state.time
        own = self._arrivals.setdefault(client, [])
        processors = int(self.capacity[client])
        begun = now if len(own) < processors else max(now, own[-processors])
        arrival = begun + seconds
        end = np.inf if self.reach is None else self.reach.until(client, now)
        lost = arrival > end
        if lost:
            begun, arrival = min(begun, end), end
        state.serial += 1
        request = Request(arrival, state.serial, task, client, state.version[task], now, begun, chance, lost)
        heappush(self._heap, request)
        insort(own, arrival)
        self._flying[task] += 1
        self._unused[task, request.version] += 1
        if self.options.one_each:
            self._pairs.add((client, task))
        state.asked[client, task] += 1
        state.credit = [credit + share for credit, share in zip(state.credit, self._shares, strict=True)]
        state.credit[task] -= 1.0
        state.tallies.sent[task] += 1
        return True

    def wait(self) -> bool:
        """Moves the clock to when the next client can be reached; False where there will be none."""
        if self.reach is None:
            return False
        weight = sum(routes.weight for routes in self.routes if routes is not None)
        start = self.reach.next_start(self.state.time, np.asarray(weight) > 0)
        if np.isfinite(start):
            self.state.time = start
        return bool(np.isfinite(start))

    def arrive(self) -> Request:
        """Moves the clock to the next arrival, and that request into its buffer unless it is lost."""
        request = heappop(self._heap)
        self.state.time = request.arrival
        self._release(request)
        tallies, task = self.state.tallies, request.task
        if request.lost:
            tallies.lost[task] += 1
            tallies.seconds_lost[task] += request.arrival - request.begun
            self._forget(request)
            return request
        tallies.seconds_done[task] += request.arrival - request.begun
        self.buffers[task].append(request)
        return request

    def take(self, task: int, number: int) -> list[Request]:
        """The first requests of a task's buffer, which make its next version."""
        taken, self.buffers[task] = self.buffers[task][:number], self.buffers[task][number:]
        for request in taken:
            self._forget(request)
        self.state.tallies.aggregated[task] += len(taken)
        self.state.version[task] += 1
        return taken

    def cancel(self, task: int) -> None:
        """Ends all requests of a task, in flight and in its buffer."""
        ended = [each for each in self._heap if each.task == task]
        self._heap = [each for each in self._heap if each.task != task]
        heapify(self._heap)
        tallies = self.state.tallies
        for request in ended:
            self._release(request)
            self._forget(request)
            tallies.seconds_cancelled[task] += max(self.state.time - request.begun, 0.0)
        for request in self.buffers[task]:
            self._forget(request)
            spent = request.arrival - request.begun
            tallies.seconds_done[task] -= spent
            tallies.seconds_cancelled[task] += spent
        tallies.cancelled[task] += len(ended) + len(self.buffers[task])
        self.buffers[task] = []

    def seconds_in_flight(self) -> float:
        """Seconds that clients have spent on requests that have not arrived."""
        return sum(max(self.state.time - each.begun, 0.0) for each in self._heap)

    def saved(self) -> QueueState:
        """The state, with all requests."""
        self.state.in_flight = _table(sorted(self._heap))
        self.state.buffered = _table([each for buffer in self.buffers for each in buffer])
        return self.state

    def _takes(self, client: int, task: int) -> bool:
        """Whether a client can be sent a request for a task now."""
        options, own = self.options, self._arrivals.get(client)
        if self.reach is not None and self.reach.until(client, self.state.time) <= self.state.time:
            return False
        if options.most_busy is not None and own is None and len(self._arrivals) >= options.most_busy:
            return False
        if own is not None and not options.waits and len(own) >= self.capacity[client]:
            return False
        return not (options.one_each and (client, task) in self._pairs)

    def _free(self, task: int, weight: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Who can be sent a request for a task now, [clients]."""
        full = self.options.most_busy is not None and len(self._arrivals) >= self.options.most_busy
        free = np.full(len(weight), not full)
        if self.reach is not None:
            free &= self.reach.of_all(self.state.time) > self.state.time
        busy = {*self._arrivals, *(client for client, s in self._pairs if s == task)}
        for client in busy:
            free[client] = self._takes(client, task)  # also where only new clients are not taken
        return free

    def _release(self, request: Request) -> None:
        own = self._arrivals[request.client]
        own.remove(request.arrival)
        if not own:
            del self._arrivals[request.client]
        self._flying[request.task] -= 1

    def _forget(self, request: Request) -> None:
        self._pairs.discard((request.client, request.task))
        self._unused[request.task, request.version] -= 1


_TRIES = 64  # draws before it is looked who is free


def _table(requests: list[Request]) -> NDArray[np.float64]:
    """A row per request; double precision holds their whole numbers exactly."""
    return np.array(requests, dtype=np.float64).reshape(-1, len(Request._fields))


def _requests(table: NDArray[np.float64]) -> list[Request]:
    """The requests again."""
    return [
        Request(arrival, int(serial), int(task), int(client), int(version), sent, begun, chance, bool(lost))
        for arrival, serial, task, client, version, sent, begun, chance, lost in table.tolist()
    ]
