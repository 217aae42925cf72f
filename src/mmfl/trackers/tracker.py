"""What all trackers share: a run for each replica, found again after a resume, and never in the way of training."""

import importlib
import json
import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Generic, TypeVar

from mmfl.errors import UserError
from mmfl.record import RoundRecord
from mmfl.runs.directory import RunDirectory
from mmfl.runs.files import write_atomically
from mmfl.runs.layout import tracker_notes
from mmfl.runs.listener import Listener, RunInfo
from mmfl.runs.status import RunEnd
from mmfl.trackers.logged import Parameters, numbers, parameters, plain

Handle = TypeVar("Handle")
_log = logging.getLogger(__name__)


class Tracker(Listener, ABC, Generic[Handle]):
    """Writes every replica (a method with a seed) to a run of its own; their group is the experiment.

    A subclass says how a run is started or continued, how numbers are logged to it, and how it ends. The experiment is
    named after the run's directory ("mmfl" where there is none), unless a name is given.

    When a run is resumed, `log` is called for all earlier rounds again, some of which the tracker may have already.

    A mistake at the start ends the experiment. What fails later (a full disk, a server that is gone) is a warning, and
    training goes on without the tracker.
    """

    name: ClassVar[str]
    module: ClassVar[str]

    def __init__(self, experiment: str | None = None):
        try:
            importlib.import_module(self.module)
        except ImportError as error:
            raise UserError(
                f"tracker '{self.name}' needs '{error.name}', which is not installed; "
                "expected the extra: pip install 'mmfl[trackers]'."
            ) from None
        self.given_name = experiment
        self.directory: RunDirectory | None = None
        self.runs: dict[tuple[str, int], Handle] = {}
        self.known: dict[str, str] = {}  # ids by which runs are found again
        self.logged: dict[tuple[str, int], int] = {}  # the last round of each
        self.round_heard = 0  # the last one, in log or not

    @abstractmethod
    def start(self, run: str, parameters: Parameters) -> Handle:
        """Starts a run, or continues it."""

    @abstractmethod
    def log(self, run: Handle, round: int, values: Mapping[str, float]) -> None:
        """Writes the numbers of a round."""

    @abstractmethod
    def finish(self, run: Handle, done: bool) -> None:
        """Ends a run: its last round is `done`, or it may be resumed."""

    @property
    def experiment(self) -> str:
        """What the runs are grouped by."""
        return self.given_name or (self.directory.path.resolve().name if self.directory else "mmfl")

    def begin(self, info: RunInfo) -> None:
        """Starts a run for each replica, or continues it."""
        self.directory = RunDirectory(info.directory) if info.directory else None
        self.round_heard, self.logged = 0, {}
        try:
            self._recall()
            for method, seed in info.replicas:
                run = f"{plain(method)}-seed-{seed}"
                self.runs[method, seed] = self.start(run, parameters(info, method, seed))
            self._remember()
            self._log(self.directory.records() if self.directory else ())
        except UserError:
            raise
        except Exception as error:
            raise UserError(f"tracker '{self.name}' cannot start: {_short(error)}") from error

    def round(self, records: Sequence[RoundRecord]) -> None:
        """Logs a round."""
        try:
            self._log(records)
        except Exception as error:
            self._give_up(error)

    def end(self, end: RunEnd) -> None:
        """Ends all runs."""
        try:
            for run in self.runs.values():
                self.finish(run, end.condition == "finished")
        except Exception as error:
            self._give_up(error)
        self.runs, self.directory = {}, None

    def _log(self, records: Sequence[RoundRecord]) -> None:
        for record in records if self.runs else ():
            replica, self.round_heard = (record.method, record.seed), record.round
            if record.round > self.logged.get(replica, 0):  # a round may be in the directory and heard again
                self.log(self.runs[replica], record.round, numbers(record))
                self.logged[replica] = record.round

    def _recall(self) -> None:
        self.known = json.loads(self._notes.read_text()) if self._notes and self._notes.exists() else {}

    def _remember(self) -> None:
        if self._notes and self.known:
            write_atomically(self._notes, json.dumps(self.known, indent=1).encode())

    @property
    def _notes(self) -> Path | None:
        return self.directory.path / tracker_notes(self.name) if self.directory else None

    def _give_up(self, error: Exception) -> None:
        self.runs = {}
        _log.warning("tracker '%s' stopped in round %d: %s", self.name, self.round_heard, _short(error))


def _short(error: Exception) -> str:
    return str(error).strip().split("\n")[0] or type(error).__name__
