"""Sessions: when devices can be reached, as a function of time."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mmfl.checks import check, check_positive
from mmfl.errors import UserError

Numbers = NDArray[np.float64]


class Sessions(Protocol):
    """When each device can be reached: from the start of a session to its end."""

    def until(self, time: float) -> Numbers:
        """When the sessions end that devices are in at a time, [clients]; -inf for those that cannot be reached, inf
        for those that always can."""
        ...

    def next_start(self, time: float) -> Numbers:
        """When the next session of each device begins after a time, [clients]; inf where there is none."""
        ...


@dataclass(frozen=True)
class AlwaysOn:
    """All devices, all the time."""

    clients: int

    def until(self, time: float) -> Numbers:
        """No session ends."""
        return np.full(self.clients, np.inf)

    def next_start(self, time: float) -> Numbers:
        """No session begins."""
        return np.full(self.clients, np.inf)


@dataclass(frozen=True, eq=False)
class Cycles:
    """Devices that are `on` and `off` in turn for so many seconds each, [clients], from a `phase` of their own."""

    on: Numbers
    off: Numbers
    phase: Numbers

    def until(self, time: float) -> Numbers:
        """The end of the part of the cycle that a device is in, where it is on."""
        place = (time + self.phase) % (self.on + self.off)
        return np.where(place < self.on, time + (self.on - place), -np.inf)

    def next_start(self, time: float) -> Numbers:
        """The end of the cycle."""
        cycle = self.on + self.off
        return time + (cycle - (time + self.phase) % cycle)


class SessionTrace:
    """Recorded sessions [begin, end) of clients, in seconds. After `period` seconds the trace begins again; without a
    period it ends, and nobody can be reached after its last session.

    >>> trace = SessionTrace([0, 1], [0.0, 30.0], [60.0, 90.0], clients=2, period=100.0)
    >>> trace.until(140.0), trace.next_start(70.0)
    (array([160., 190.]), array([100., 130.]))
    """

    def __init__(
        self, client: ArrayLike, begin: ArrayLike, end: ArrayLike, *, clients: int, period: float | None = None
    ):
        where = "devices: sessions"
        self.clients, self.period = clients, np.inf if period is None else float(period)
        columns = [np.asarray(each) for each in (client, begin, end)]
        if len({each.shape for each in columns}) > 1 or columns[0].ndim != 1 or not len(columns[0]):
            raise UserError(f"{where} have columns of shapes {[each.shape for each in columns]}; expected equal ones.")
        if period is not None:
            check_positive(where, "period", period)
        number, first, last = columns
        whole = number.dtype.kind in "iu" and bool((number >= 0).all() and (number < clients).all())
        check(whole, where, "client", number, f"clients' numbers from 0 to {clients - 1}")
        wrong = ~((first >= 0) & (last > first) & (last <= self.period))
        if wrong.any():
            n = int(np.argmax(wrong))
            within = "" if period is None else f" within the period of {self.period:g} s"
            expected = f"a begin of at least 0 and a later end{within}"
            raise UserError(f"{where}: client {number[n]} has [{first[n]:g}, {last[n]:g}); expected {expected}.")
        order = np.lexsort((first, number))
        self.client: NDArray[np.int64] = number[order].astype(np.int64)
        self.begin, self.end = first[order].astype(np.float64), last[order].astype(np.float64)
        overlap = (self.client[1:] == self.client[:-1]) & (self.begin[1:] < self.end[:-1])
        if overlap.any():
            raise UserError(f"{where} of client {self.client[int(np.argmax(overlap))]} overlap.")
        self._first_end = self._joined()

    @property
    def ends(self) -> float:
        """When nobody can be reached any more: inf where the trace begins again."""
        return float(self.end.max()) if np.isinf(self.period) else np.inf

    def until(self, time: float) -> Numbers:
        """The ends of the sessions under way; one that lasts to the end of the period goes on in the next."""
        start, place = self._place(time)
        ends = np.full(self.clients, -np.inf)
        active = (self.begin <= place) & (place < self.end)
        client, end = self.client[active], self.end[active]
        goes_on = (end == self.period) & (self._first_end[client] > 0)
        ends[client] = start + end + np.where(goes_on, self._first_end[client], 0.0)
        return ends

    def next_start(self, time: float) -> Numbers:
        """The first begin after a time, in this period or in the next."""
        start, place = self._place(time)
        found = np.full(self.clients, np.inf)
        later = self.begin > place
        np.minimum.at(found, self.client[later], start + self.begin[later])
        if np.isfinite(self.period):
            np.minimum.at(found, self.client, start + self.period + self.begin)
        return found

    def _place(self, time: float) -> tuple[float, float]:
        """The start of the period that a time is in, and the time since."""
        if np.isinf(self.period):
            return 0.0, time
        start = np.floor(time / self.period) * self.period
        return float(start), float(time - start)

    def _joined(self) -> Numbers:
        """How long a session goes on that lasts over the end of a period, [clients]; inf if it never ends."""
        joined = np.zeros(self.clients)
        at_start = self.begin == 0
        whole = at_start & (self.end == self.period)
        joined[self.client[at_start]] = self.end[at_start]
        joined[self.client[whole]] = np.inf
        return joined


def cycles(on: float, off: float, clients: int, rng: np.random.Generator, spread: float = 0.2) -> Cycles:
    """Cycles whose parts last `on` and `off` seconds, give or take a share `spread` by device, from random phases."""
    factor = rng.uniform(1 - spread, 1 + spread, (2, clients))
    lengths = on * factor[0], off * factor[1]
    return Cycles(*lengths, rng.uniform(0, 1, clients) * (lengths[0] + lengths[1]))


def check_cycle(where: str, sessions: Sequence[float] | None) -> None:
    """Refuses what are not the seconds that a device is on and off."""
    if sessions is None:
        return
    valid = isinstance(sessions, Sequence) and not isinstance(sessions, str) and len(sessions) == 2
    check(valid, where, "sessions", sessions, "two numbers of seconds, on and off")
    for each in sessions:
        check_positive(where, "sessions", each)
