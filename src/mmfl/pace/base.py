"""Pace: when updates are aggregated, and whose. RoundPace: when a round ends, and whose updates are there by then."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from mmfl.aggregation import AggregationRule
from mmfl.allocation import AllocationRule
from mmfl.errors import UserError
from mmfl.federation import Federation, RoundView
from mmfl.federation.durations import Durations

Numbers = NDArray[np.float64]

CAUSES = ("deadline", "surplus", "cancelled", "lost", "failed")
"""Why the work of a device can be wasted: the round ended before it was done, enough others were faster, the server
cancelled the request, the device's session ended, or its update could not be used."""


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

    def last(self) -> float:
        """When the server has heard of all: the last training is done, or the last session is over."""
        return float(np.minimum(self.finish, self.reachable).max(initial=0.0))


@dataclass(frozen=True, eq=False)
class Ending:
    """How a round ended: after how many `seconds`, whose updates are `used`, and the probability `completion` with
    which they would be. `cause` says of each row why it was dropped (empty: it was not)."""

    seconds: float
    used: NDArray[np.bool_]
    completion: Numbers
    cause: NDArray[np.str_]

    def busy(self, requests: Requests) -> Numbers:
        """How long the devices worked on each row until the round ended or their session did."""
        end = np.minimum(np.minimum(requests.finish, requests.reachable), self.seconds)
        return np.maximum(end - requests.start, 0.0)


class Pace:
    """When updates are aggregated, and whose; a method's fourth part."""

    name: ClassVar[str] = "pace"
    needs_devices: ClassVar[bool] = True

    def check(
        self, method: str, allocation: AllocationRule, aggregation: AggregationRule, federation: Federation
    ) -> None:
        """Refuses a federation, or parts of a method, that the pace does not go with, and says why."""
        if self.needs_devices and federation.devices is None:
            raise UserError(
                f"method '{method}': pace '{self.name}' needs devices, and the federation has none; expected "
                "devices=mmfl.devices.phones(), for example."
            )


@dataclass(frozen=True)
class RoundPace(Pace):
    """A pace of rounds: the server sends out trainings, waits, and aggregates what is there when the round ends.

    A client trains its tasks of a round in parallel, as many as its capacity; with `serial` one after another.
    """

    serial: bool = False

    def start(self, clients: int, tasks: int) -> Any:
        """What the pace remembers before the first round; None for nothing."""
        return None

    def begin(self, view: RoundView, durations: Durations, reachable: Numbers, state: Any) -> RoundView:
        """The view that the allocation gets, with the probabilities that trainings are completed: here, before clients
        get out of `reachable` [clients], in seconds from now."""
        return with_completion(view, self.completion(durations, reachable))

    def completion(self, durations: Durations, reachable: Numbers) -> Numbers:
        """The probability that a training is done before the client's session is over, [clients, tasks]."""
        if np.isinf(reachable).all():
            return np.ones(durations.mean().shape)
        return durations.completion(reachable[:, None])

    def end(self, requests: Requests, view: RoundView, durations: Durations, state: Any) -> Ending:
        """How the round ends, given how long everything would take."""
        raise TypeError(f"{type(self).__name__} does not say when a round ends.")

    def observe(self, requests: Requests, ending: Ending, state: Any) -> Any:
        """What the pace remembers after the round."""
        return state

    def queue(
        self, client: NDArray[np.int64], task: NDArray[np.int64], seconds: Numbers, capacity: NDArray[np.int64]
    ) -> Numbers:
        """When each training begins: on the first of its client's processors that is free, in the order of the tasks.
        Only clients that train more tasks than they have processors make any wait."""
        drawn, place = np.unique(client, return_inverse=True)
        lanes = np.ones(len(drawn), dtype=np.int64) if self.serial else np.maximum(capacity[drawn], 1)
        start = np.zeros(len(client))
        if (np.bincount(place, minlength=len(drawn)) <= lanes).all():
            return start
        free = np.where(np.arange(lanes.max(initial=1)) < lanes[:, None], 0.0, np.inf)
        for s in np.unique(task):
            rows = np.flatnonzero(task == s)
            lane = free[place[rows]].argmin(1)
            start[rows] = free[place[rows], lane]
            free[place[rows], lane] += seconds[rows]
        return start


def with_completion(view: RoundView, completion: Numbers) -> RoundView:
    """The view without the pairs that can never be completed, and with the probabilities of the others."""
    never = view.able & (completion <= 0)
    left = view.without_pairs(never) if never.any() else view
    assert left.time is not None
    assert left.seconds is not None
    return left.timed(left.time, left.seconds, completion)


def causes(requests: Requests, used: NDArray[np.bool_], cause: str) -> NDArray[np.str_]:
    """Why rows were dropped: their session was over first, or else the given cause."""
    lost = requests.finish > requests.reachable
    return np.where(used, "", np.where(lost, "lost", cause))
