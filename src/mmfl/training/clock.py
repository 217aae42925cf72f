"""Clock: time in a run whose clients have devices. TimedRound: a round on it, from the draw to the last update."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from mmfl.allocation import Allocation
from mmfl.errors import UserError
from mmfl.federation import Devices, Federation, RoundView
from mmfl.pace import Ending, Pace, Requests, RoundPace
from mmfl.pace.base import Numbers
from mmfl.record import MAX_SPANS, Span, Timing
from mmfl.updates import Updates
from mmfl.updates.late import LateUpdates, joined

_MOST_WAITS = 10_000  # starts of sessions that are waited for until somebody can train
_DIGITS = 4  # of seconds in records


@dataclass
class Clock:
    """The time in seconds since the run began, what the pace remembers, and `late` updates of each task, if it takes
    any."""

    time: float
    pace: Any
    late: list[LateUpdates] = field(default_factory=list)

    @classmethod
    def start(cls, pace: Pace, clients: int, weights: Sequence[Tensor]) -> "Clock":
        """Before the first round."""
        late = [LateUpdates.start(each) for each in weights] if pace.keeps_late else []
        return cls(0.0, pace.start(clients, len(weights)), late)


@dataclass(eq=False)
class TimedRound:
    """A round on the clock. `wait` is how long measurements take before the draw; the rest is known after it."""

    federation: Federation
    pace: RoundPace
    clock: Clock
    seed: int
    begin: float
    known: RoundView
    wait: float = 0.0
    measured: Numbers = field(default_factory=lambda: np.zeros(0))
    requests: Requests | None = None
    ending: Ending | None = None
    joined: int = 0

    @classmethod
    def start(
        cls, federation: Federation, pace: RoundPace, clock: Clock, round: int, rate: float, seed: int
    ) -> tuple["TimedRound", RoundView]:
        """A round that begins as soon as somebody can train, and the view of those who can."""
        time = clock.time
        for _ in range(_MOST_WAITS):
            known = federation.view(round, rate=rate, seed=seed, time=time)
            timed = cls(federation, pace, clock, seed, time, known)
            view = timed.view_of(known)
            if view.present.any() or not (waiting := federation.present_clients(round)).any():
                return timed, view
            starts = timed.devices.sessions.next_start(time)[waiting]
            if np.isinf(starts).all():
                break
            time = float(starts.min())
        raise UserError(
            f"devices: after {time:,.0f} s nobody can be reached long enough to train, in round {round}; expected "
            "sessions that begin again (period=...), or fewer rounds."
        )

    @property
    def devices(self) -> Devices:
        """The clients' devices."""
        assert self.federation.devices is not None
        return self.federation.devices

    def view_of(self, view: RoundView) -> RoundView:
        """The view with completion probabilities, as the pace gives them."""
        return self.pace.begin(view, self.federation.durations(), self._reachable(), self.clock.pace)

    def measure(self, view: RoundView, asked: NDArray[np.bool_] | None) -> RoundView:
        """Adds the time in which clients measure losses of the pairs that were `asked` for; the view after it."""
        if asked is None or not asked.any():
            return view
        client, task = np.nonzero(asked)
        jitter = self._sample(client, task, view) / self.federation.durations().mean()[client, task]
        self.measured = self.devices.measuring(self.federation.work)[client, task] * jitter
        start = self.pace.queue(client, task, self.measured, view.capacity)
        self.wait = float((start + self.measured).max())
        return view if np.isinf(self._reachable()).all() else self.view_of(view)

    def end(self, allocation: Allocation, trained_anyway: NDArray[np.bool_] | None, view: RoundView) -> Allocation:
        """The part of the allocation whose updates are used, once it is known how long all trainings take."""
        client, task = allocation.client, allocation.task
        if trained_anyway is not None:
            marks = trained_anyway.copy()
            marks[client, task] = False
            others = np.nonzero(marks)
            client, task = np.concatenate([client, others[0]]), np.concatenate([task, others[1]])
        seconds = self._sample(client, task, view)
        start = self.pace.queue(client, task, seconds, view.capacity, self._busy())
        requests = Requests(client, task, start, seconds, self._reachable()[client])
        self.requests = requests
        self.ending = self.pace.end(requests, view, self.federation.durations(), self.clock.pace)
        return allocation.where(self.ending.used[: len(allocation)])

    def completion(self, allocation: Allocation, client: NDArray[np.int64], task: int) -> Numbers:
        """The completion probabilities of the updates of some clients of a task, given the allocation of the round."""
        assert self.ending is not None
        return allocation.column_of(self.ending.completion[: len(allocation)], client, task, 1.0)

    def join(self, task: int, updates: Updates) -> Updates:
        """The updates of a round that are aggregated now: without those that are late, and with earlier ones that are
        there by its end."""
        if not self.clock.late:
            return updates
        assert self.requests is not None
        assert self.ending is not None
        assert self.ending.late is not None
        rows = np.flatnonzero(self.ending.late & (self.requests.task == task))
        known, finish = self.requests.client[rows], self.requests.finish[rows]
        is_late = np.isin(updates.client, known)
        fresh, waiting = updates.where(~is_late), self.clock.late[task]
        ready = waiting.ready(self.begin + self.wait + self.ending.seconds, fresh.client)
        order = np.argsort(known)
        late = updates.where(is_late)
        due = self.begin + self.wait + finish[order][np.searchsorted(known[order], late.client)]
        self.joined += int(ready.sum())
        self.clock.late[task] = waiting.where(~ready).add(late, due)
        return joined(fresh, waiting.where(ready))

    def finish(self) -> None:
        """Sets the clock to the end of the round."""
        assert self.requests is not None
        assert self.ending is not None
        self.clock.time = self.begin + self.wait + self.ending.seconds
        self.clock.pace = self.pace.observe(self.requests, self.ending, self.clock.pace)

    def record(self, view: RoundView) -> Timing:
        """What the round's record says about time."""
        requests, ending = self.requests, self.ending
        assert requests is not None
        assert ending is not None
        busy = ending.busy(requests)
        causes = [str(cause) for cause in np.unique(ending.cause) if cause]
        return Timing(
            begin=rounded(self.begin),
            end=rounded(self.clock.time),
            busy=rounded(busy.sum() + self.measured.sum()),
            offered=rounded(np.maximum(ending.stop, ending.seconds).sum() + len(self.measured) * self.wait),
            wasted={cause: rounded(busy[ending.cause == cause].sum()) for cause in causes},
            dropped={cause: int((ending.cause == cause).sum()) for cause in causes},
            joules=self._joules(requests, ending, busy),
            uncovered=self._uncovered(view),
            spans=self._spans(requests, ending, busy),
            extras=self._late(),
        )

    def _busy(self) -> tuple[NDArray[np.int64], Numbers] | None:
        """Clients that are busy with trainings that are late, and for how long each."""
        if not any(map(len, self.clock.late)):
            return None
        client = np.concatenate([each.client for each in self.clock.late])
        left = np.concatenate([each.due for each in self.clock.late]) - self.begin - self.wait
        return client[left > 0], left[left > 0]

    def _late(self) -> Mapping[str, float]:
        """How many late updates joined this round, and how many wait for a later one."""
        return {"late": self.joined, "waiting": sum(map(len, self.clock.late))} if self.clock.late else {}

    def _sample(self, client: NDArray[np.int64], task: NDArray[np.int64], view: RoundView) -> Numbers:
        """How long trainings take: a client's request of a round is numbered by the round, so that all methods see the
        same durations."""
        return self.federation.durations().sample(client, task, view.round, self.seed)

    def _reachable(self) -> Numbers:
        """How much longer each client can be reached, from the time that trainings are sent out."""
        now = self.begin + self.wait
        return self.devices.sessions.until(now) - now

    def _joules(self, requests: Requests, ending: Ending, busy: Numbers) -> float | None:
        """The energy of training and of what was sent and received, where it is known."""
        training, sending = self.devices.joules_per_second, self.devices.joules_per_byte
        if training is None and sending is None:
            return None
        total = 0.0
        if training is not None:
            total += float(busy @ training[requests.client])
        if sending is not None:
            sent = self.federation.work.bytes[requests.task] * (1 + ending.used)
            total += float(sent @ sending[requests.client])
        return rounded(total)

    def _uncovered(self, view: RoundView) -> Mapping[str, float]:
        """The share of each task's data whose clients have no room for the model, or no chance to be in time."""
        sizes, fitting = self.federation.sizes, self.federation.trainable_sizes
        if fitting is sizes and view.sizes is self.known.sizes:
            return {}
        no_room = (sizes - fitting).sum(0)
        no_chance = np.where(view.sizes == 0, self.known.sizes, 0).sum(0)
        shares = (no_room + no_chance) / np.maximum(self.known.sizes.sum(0) + no_room, 1)
        names = self.federation.task_names
        return {name: round(float(share), 6) for name, share in zip(names, shares, strict=True) if share}

    def _spans(self, requests: Requests, ending: Ending, busy: Numbers) -> tuple[Span, ...]:
        rows = np.lexsort((requests.task, requests.client))
        if len(rows) > MAX_SPANS:
            rows = rows[np.linspace(0, len(rows) - 1, MAX_SPANS).round().astype(int)]
        sent = self.begin + self.wait + requests.start[rows]
        columns = (
            requests.client[rows].tolist(),
            requests.task[rows].tolist(),
            map(rounded, sent.tolist()),
            map(rounded, (sent + busy[rows]).tolist()),
            ending.cause[rows].tolist(),
        )
        return tuple(Span(*each) for each in zip(*columns, strict=True))


def rounded(seconds: float) -> float:
    """Seconds as they are recorded."""
    return round(float(seconds), _DIGITS)
