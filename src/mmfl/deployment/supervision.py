"""Child processes that are started again when they end, after pauses that grow."""

import random
import time
from collections.abc import Callable

from mmfl.deployment.child_processes import Child, ChildProcesses

_FIRST_SECONDS, _LONGEST_SECONDS = 1.0, 60.0  # of the pauses
_STABLE_SECONDS = 120.0  # after which earlier ends of a process no longer count


class GrowingPauses:
    """Pauses before attempts, each up to twice as long as the one before it; of random length, so that many machines
    do not try at the same moment."""

    def __init__(self, first: float = _FIRST_SECONDS, longest: float = _LONGEST_SECONDS):
        self._first, self._longest, self._next = first, longest, first

    def next(self) -> float:
        """Seconds until the next attempt."""
        seconds = self._next * random.uniform(0.5, 1.0)
        self._next = min(2 * self._next, self._longest)
        return seconds

    def reset(self) -> None:
        """Begins with the shortest pause again."""
        self._next = self._first


class Supervised:
    """A child process that `check`, which must be called regularly, starts again whenever it has ended.

    `say` is told why it ended.
    """

    def __init__(self, processes: ChildProcesses, start: Callable[[], Child], say: Callable[[str], None]):
        self._processes, self._start, self._say = processes, start, say
        self._pauses = GrowingPauses()
        self._due: float | None = None  # when it is started again
        self.child, self._started = start(), time.monotonic()

    def check(self) -> None:
        """Starts the process again if it has ended and the pause is over."""
        now = time.monotonic()
        if self.child.alive:
            if now - self._started > _STABLE_SECONDS:
                self._pauses.reset()
        elif self._due is None:
            pause = self._pauses.next()
            self._due = now + pause
            self._say(f"{self.child.name} ended ({self.child.reason()}); it is started again in {pause:.0f} s")
        elif now >= self._due:
            self._processes.end(self.child)
            self._due, self._started = None, now
            self.child = self._start()
