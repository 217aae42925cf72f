"""Reach: which clients can be reached at a moment, asked for one client at a time."""

import numpy as np
from numpy.typing import NDArray

from mmfl.federation.sessions import Sessions


class Reach:
    """Sessions, looked up for all clients together and remembered until a client is asked for whose answer is too old.

    Times only move forward.
    """

    def __init__(self, sessions: Sessions):
        self.sessions = sessions
        self._look(0.0)

    def until(self, client: int, time: float) -> float:
        """When the session ends that a client is in; -inf if it is in none."""
        if time < self._ends[client]:
            return float(self._ends[client])
        if time >= self._starts[client]:
            self._look(time)
            return float(self._ends[client])
        return -np.inf

    def of_all(self, time: float) -> NDArray[np.float64]:
        """The same for all clients."""
        self._look(time)
        return self._ends

    def next_start(self, time: float, wanted: NDArray[np.bool_]) -> float:
        """When the next session of a wanted client begins; inf if there is none."""
        self._look(time)
        return float(self._starts[wanted].min(initial=np.inf))

    def _look(self, time: float) -> None:
        self._ends, self._starts = self.sessions.until(time), self.sessions.next_start(time)
