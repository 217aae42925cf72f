"""Listeners: what they are told about a run, and what they and Ctrl-C can ask of it. Nothing here needs torch."""

import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmfl.checks import check
from mmfl.errors import UserError
from mmfl.record import RoundRecord
from mmfl.runs.status import RunEnd

if TYPE_CHECKING:
    from torch import Tensor

    from mmfl.training import TrainingState


@dataclass
class StopRequest:
    """Whether the run was asked to stop, and why: by a listener, or because it is `finished` before its last round."""

    asked: bool = False
    end: RunEnd = field(default_factory=lambda: RunEnd("stopped"))

    def __call__(self, reason: str, finished: bool = False) -> None:
        """Asks; the first reason counts."""
        if not self.asked:
            self.asked, self.end = True, RunEnd("finished" if finished else "stopped", reason)


@dataclass(frozen=True, eq=False)
class RunInfo:
    """What a listener is told about a run before its first round.

    Every method runs with every seed. `first` is the round that comes first, after 1 where the run is resumed, and
    `rounds` the last one. `config` is the configuration as far as it is known: `config.toml` of a run with a directory,
    and of any simulation the number of clients and the tasks' settings. `attackers` are the clients that attack, by
    seed, where the federation has an attack.
    """

    methods: Sequence[str]
    seeds: Sequence[int]
    tasks: Sequence[str]
    clients: int
    rate: float
    rounds: int
    first: int = 1
    directory: Path | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    attackers: Mapping[int, Sequence[int]] = field(default_factory=dict)
    stop: Callable[[str], None] = field(default_factory=StopRequest)
    states: "Callable[[str, int], TrainingState] | None" = None

    @property
    def replicas(self) -> list[tuple[str, int]]:
        """Every method with every seed, in the order in which a round is recorded."""
        return [(method, seed) for method in self.methods for seed in self.seeds]

    def state(self, method: str, seed: int) -> "TrainingState":
        """All that a method remembers as of now: its weights, and the states of its rules. It changes every round."""
        if self.states is None:
            raise UserError("the weights of a deployment are with its server, and cannot be read here.")
        return self.states(method, seed)

    def weights(self, method: str, seed: int) -> "dict[str, Tensor]":
        """The current weights of a method and seed, a flat vector per task. They may be overwritten in later rounds."""
        return dict(zip(self.tasks, self.state(method, seed).weights, strict=True))

    def request_stop(self, reason: str = "a listener asked for it") -> None:
        """Asks the run to stop after the round under way, with a checkpoint where it has a directory."""
        self.stop(reason)


class Listener:
    """Is told what a run does: subclass it and override what you need. The command line's display is one.

    >>> class StopsWhenGood(Listener):
    ...     def begin(self, info):
    ...         self.info = info
    ...     def round(self, records):
    ...         if all(record.mean is not None and record.mean > 0.9 for record in records):
    ...             self.info.request_stop("good enough")
    ...     def end(self, end):
    ...         print(end.condition, end.reason)
    """

    def begin(self, info: RunInfo) -> None:
        """Called before the first round that is run. A `UserError` raised here ends the run before it begins."""

    def round(self, records: Sequence[RoundRecord]) -> None:
        """Called after every round, with a record per method and seed."""

    def end(self, end: RunEnd) -> None:
        """Called when the run has finished, was stopped or has failed, if it began."""


def check_listeners(listeners: object) -> None:
    """Refuses what is no list of listeners."""
    right = isinstance(listeners, Sequence) and all(isinstance(each, Listener) for each in listeners)
    check(right, "", "listeners", listeners, "a list of objects of classes that derive from mmfl.Listener")


@dataclass(frozen=True)
class ListenerGroup(Listener):
    """Tells several listeners, in their order."""

    listeners: Sequence[Listener]

    def begin(self, info: RunInfo) -> None:
        """Tells each."""
        for listener in self.listeners:
            listener.begin(info)

    def round(self, records: Sequence[RoundRecord]) -> None:
        """Tells each."""
        for listener in self.listeners:
            listener.round(records)

    def end(self, end: RunEnd) -> None:
        """Tells each."""
        for listener in self.listeners:
            listener.end(end)


@contextmanager
def interruptible() -> Iterator[threading.Event]:
    """While active, the first Ctrl-C sets the event instead of breaking off; the second breaks off."""
    interrupted = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield interrupted
        return
    before = signal.getsignal(signal.SIGINT)

    def note(*_: object) -> None:
        interrupted.set()
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, note)
    try:
        yield interrupted
    finally:
        signal.signal(signal.SIGINT, before)
