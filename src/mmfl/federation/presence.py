"""Who takes part in a round: its view, computed again only when someone arrives or leaves."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from mmfl.federation.availability import Always, Availability
from mmfl.federation.task import Task
from mmfl.federation.view import RoundView

_NEVER = 2**62


@dataclass(frozen=True, eq=False)
class Presence:
    """What decides who takes part in a round, and with what: examples [clients, tasks], capacity [clients], the rounds
    in which clients [clients] and tasks [tasks] arrive and clients leave, and who can be reached."""

    tasks: Sequence[Task]
    sizes: NDArray[np.int64]
    capacity: NDArray[np.int64]
    arrivals: NDArray[np.int64]
    departures: NDArray[np.int64]
    task_arrivals: NDArray[np.int64]
    availability: Availability

    def view(self, round: int, seed: int) -> RoundView:
        """The view of a round, with a budget of 0."""
        not_departed = (self.departures == 0) | (round < self.departures)
        present = self.availability.available(round, len(self.sizes), seed)
        present = (self.arrivals <= round) & not_departed & present
        here = present[:, None] & (self.task_arrivals <= round)
        sizes = self.sizes if here.all() else np.where(here, self.sizes, 0)
        share = sizes / np.maximum(sizes.sum(0), 1)
        capacity = np.minimum(self.capacity, np.count_nonzero(sizes, axis=1))
        if np.array_equal(capacity, self.capacity):
            capacity = self.capacity
        priority = np.array([task.priority for task in self.tasks], dtype=np.float64)
        model_bytes = np.array([task.model_bytes for task in self.tasks], dtype=np.float64)
        return RoundView(round, seed, sizes, share, capacity, 0.0, priority=priority, model_bytes=model_bytes)

    def last_change(self, round: int) -> int:
        """The last round until this one in which anyone arrived or left."""
        return max(int(np.max(each, where=each <= round, initial=0)) for each in self._changes)

    def next_change(self, round: int) -> int:
        """The first round after this one in which anyone arrives or leaves."""
        return min(int(np.min(each, where=each > round, initial=_NEVER)) for each in self._changes)

    @property
    def _changes(self) -> tuple[NDArray[np.int64], ...]:
        return self.arrivals, self.departures, self.task_arrivals

    def has_arrays_of(self, other: "Presence") -> bool:
        """Whether both have the same arrays, not only equal ones."""
        return all(getattr(self, each.name) is getattr(other, each.name) for each in fields(self))


@dataclass(frozen=True, eq=False)
class KnownView:
    """A view that holds from round `first` to the round before `end`. The arrays that it was made from become
    read-only."""

    presence: Presence
    view: RoundView
    first: int
    end: int

    @classmethod
    def of(cls, presence: Presence, round: int, seed: int) -> "KnownView":
        """The view of a round, and how long it holds: where chance decides who can be reached, for no other round."""
        view, lasts = presence.view(round, seed), isinstance(presence.availability, Always)
        for each in (*vars(presence).values(), view.sizes, view.share, view.capacity):
            if isinstance(each, np.ndarray):
                each.setflags(write=False)
        if not lasts:
            return cls(presence, view, 0, 0)
        return cls(presence, view, presence.last_change(round), presence.next_change(round))

    def holds(self, presence: Presence, round: int) -> bool:
        """Whether it is the view of this round too."""
        return self.first <= round < self.end and self.presence.has_arrays_of(presence)
