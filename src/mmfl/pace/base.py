"""Pace: when updates are aggregated, and whose. RoundPace: when a round ends, and whose updates are there by then."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from mmfl.aggregation import AggregationRule
from mmfl.allocation import AllocationRule
from mmfl.checks import check, is_number
from mmfl.errors import UserError
from mmfl.federation import Durations, Federation, RoundView
from mmfl.federation.sessions import AlwaysOn

Numbers = NDArray[np.float64]

CAUSES = ("deadline", "surplus", "cancelled", "lost", "failed")
"""Why the work of a device can be wasted: the round ended before it was done, enough others were faster, the server
cancelled the request, the device's session ended, or its update could not be used."""

_log = logging.getLogger("mmfl")
_NAMED = 5  # clients that a warning names


@dataclass(frozen=True, eq=False)
class Requests:
    """The trainings of a round, a row for each of the allocation's, in seconds since they were sent out.

    A training begins at `start`, when one of its client's processors is free, and takes `seconds`; after `reachable`
    the client's session is over.
    """

    client: NDArray[np.int64]
    task: NDArray[np.int64]
    start: Numbers
    seconds: Numbers
    reachable: Numbers

    def __len__(self) -> int:
        return len(self.client)

    @property
    def finish(self) -> Numbers:
        """When each would be done."""
        return self.start + self.seconds

    @property
    def heard(self) -> Numbers:
        """When the server has heard of each: it is done, or its client's session is over."""
        return np.minimum(self.finish, self.reachable)

    @property
    def lost(self) -> NDArray[np.bool_]:
        """Whose session is over before they are done."""
        return np.asarray(self.finish > self.reachable)


@dataclass(frozen=True, eq=False)
class Ending:
    """How a round ended: after how many `seconds`, whose updates are `used`, and the probability `completion` with
    which they would be.

    `cause` says of each row why it was dropped (empty: it was not), and `stop` when its client was told to stop. Those
    of the used that are `late` join a later round, since they are done after this one.
    """

    seconds: float
    used: NDArray[np.bool_]
    completion: Numbers
    cause: NDArray[np.str_]
    stop: Numbers
    late: NDArray[np.bool_] | None = None

    @classmethod
    def of(
        cls, requests: Requests, used: NDArray[np.bool_], completion: Numbers, cause: str, stop: Numbers
    ) -> "Ending":
        """The end of a round once the server has heard of all clients, or told them to stop. Rows are dropped for this
        cause, unless their clients were lost before."""
        seconds = float(np.minimum(requests.heard, stop).max(initial=0.0))
        lost = requests.lost & (requests.reachable <= stop)
        why = np.where(used, "", np.where(lost, "lost", cause))
        return cls(seconds, used, np.where(used, completion, 1.0), why, np.minimum(stop, seconds))

    def busy(self, requests: Requests) -> Numbers:
        """How long the devices worked on each row."""
        return np.maximum(np.minimum(requests.heard, self.stop) - requests.start, 0.0)


class Pace:
    """When updates are aggregated, and whose; a method's fourth part."""

    name: ClassVar[str] = "pace"
    needs_devices: ClassVar[bool] = True
    keeps_late: ClassVar[bool] = False

    def start(self, clients: int, tasks: int) -> Any:
        """What the pace remembers before the run; None for nothing."""
        return None

    def check(
        self, method: str, allocation: AllocationRule, aggregation: AggregationRule, federation: Federation
    ) -> None:
        """Refuses a federation, or parts of a method, that the pace does not go with, and says why."""
        if self.needs_devices and federation.devices is None:
            raise UserError(
                f"method '{method}': pace '{self.name}' needs devices, and the federation has none; expected "
                "devices=mmfl.devices.phones(), for example."
            )


@dataclass(frozen=True, kw_only=True)
class RoundPace(Pace):
    """A pace of rounds: the server sends out trainings, waits, and aggregates what is there when the round ends.

    A client trains its tasks of a round in parallel, as many as its capacity; with `serial` one after another. Pairs
    that are completed with a probability below `least` are left out: a single update would weigh too much.
    """

    serial: bool = False
    least: float = 0.01

    def __post_init__(self) -> None:
        where = f"pace '{self.name}'"
        check(isinstance(self.serial, bool), where, "serial", self.serial, "True or False")
        valid = is_number(self.least, 0, 1) and 0 < self.least < 1
        check(valid, where, "least", self.least, "a probability between 0 and 1")

    def check(
        self, method: str, allocation: AllocationRule, aggregation: AggregationRule, federation: Federation
    ) -> None:
        """Sessions that end go with no rule that waits for the updates of everyone."""
        super().check(method, allocation, aggregation, federation)
        if federation.devices is not None and not isinstance(federation.devices.sessions, AlwaysOn):
            self.check_needs_everyone(method, allocation, aggregation, "clients can be lost before their session ends")

    def check_needs_everyone(
        self, method: str, allocation: AllocationRule, aggregation: AggregationRule, reason: str
    ) -> None:
        """Refuses rules that need the update of every client, which some do not deliver for this reason."""
        for rule, needs in (
            (aggregation, aggregation.needs_everyone),
            (allocation, bool(allocation.needs & {"norms", "residuals", "updates"})),
        ):
            if needs:
                raise UserError(
                    f"method '{method}': {type(rule).__name__} needs the update of every client in every round, but "
                    f"{reason} (pace '{self.name}'); expected a rule that goes by the updates of drawn clients."
                )

    def begin(self, view: RoundView, durations: Durations, reachable: Numbers, state: Any) -> RoundView:
        """The view that the allocation gets, with the probabilities that trainings are completed: here, before clients
        get out of reach in `reachable` [clients] seconds."""
        return self.with_completion(view, self.chance(durations, reachable))

    def chance(self, durations: Durations, reachable: Numbers, deadline: float = np.inf) -> Numbers:
        """The probability that a training is done before a deadline and the end of the client's session, [clients,
        tasks]."""
        if np.isinf(deadline) and np.isinf(reachable).all():
            return np.ones(durations.mean().shape)
        return durations.completion(np.minimum(reachable, deadline)[:, None])

    def with_completion(self, view: RoundView, completion: Numbers, seconds: Numbers | None = None) -> RoundView:
        """The view with these probabilities, and without the pairs that are as good as never completed; `seconds` is
        how long a training keeps a device on average, where it is not to its end."""
        rare = view.able & (completion < self.least)
        left = view.without_pairs(rare) if rare.any() else view
        assert left.time is not None
        assert left.seconds is not None
        return left.timed(left.time, left.seconds if seconds is None else seconds, completion)

    def end(self, requests: Requests, view: RoundView, durations: Durations, state: Any) -> Ending:
        """How the round ends, given how long everything would take."""
        raise TypeError(f"{type(self).__name__} does not say when a round ends.")

    def observe(self, requests: Requests, ending: Ending, state: Any) -> Any:
        """What the pace remembers after the round."""
        return state

    def queue(
        self,
        client: NDArray[np.int64],
        task: NDArray[np.int64],
        seconds: Numbers,
        capacity: NDArray[np.int64],
        busy: tuple[NDArray[np.int64], Numbers] | None = None,
    ) -> Numbers:
        """When each training begins: on the first of its client's processors that is free, in the order of the tasks.

        Only clients that train more tasks than they have processors make any wait, and those that are `busy` with
        earlier trainings: their numbers, and in how many seconds each of these is done."""
        drawn, place = np.unique(client, return_inverse=True)
        lanes = np.ones(len(drawn), dtype=np.int64) if self.serial else np.maximum(capacity[drawn], 1)
        start = np.zeros(len(client))
        if busy is None and (np.bincount(place, minlength=len(drawn)) <= lanes).all():
            return start
        free = np.where(np.arange(lanes.max(initial=1)) < lanes[:, None], 0.0, np.inf)
        for number, done in sorted(zip(*(column.tolist() for column in busy), strict=True)) if busy else ():
            at = np.searchsorted(drawn, number)
            if at < len(drawn) and drawn[at] == number:
                free[at, free[at].argmin()] = done
        for s in np.unique(task):
            rows = np.flatnonzero(task == s)
            lane = free[place[rows]].argmin(1)
            start[rows] = free[place[rows], lane]
            free[place[rows], lane] += seconds[rows]
        return start


def row_completion(requests: Requests, view: RoundView) -> Numbers:
    """The completion probability of each row."""
    assert view.completion is not None
    completion: Numbers = view.completion[requests.client, requests.task]
    return completion


def warn_of_excluded(method: str, pace: str, federation: Federation, never: NDArray[np.bool_]) -> None:
    """Says which clients can never complete a task [clients, tasks], and how much of its data nobody covers."""
    sizes = federation.sizes
    for s, task in enumerate(federation.tasks):
        clients = np.flatnonzero(never[:, s] & (sizes[:, s] > 0))
        if len(clients):
            share = sizes[clients, s].sum() / sizes[:, s].sum()
            _log.warning(
                f"method '{method}': with pace '{pace}' {len(clients)} of {int((sizes[:, s] > 0).sum())} clients "
                f"({_names(clients.tolist())}) never train task '{task.name}'; {share:.1%} of its data is uncovered."
            )


def _names(clients: Sequence[int]) -> str:
    named = ", ".join(map(str, clients[:_NAMED]))
    return f"{named}, ..." if len(clients) > _NAMED else named
