"""What all trackers share: a run for each replica, found again after a resume; errors never stop the training."""

import importlib
import json
import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar, Generic, TypeVar

from mmfl.errors import UserError, first_line
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
        self.logged = {}
        notes = self.directory.path / tracker_notes(self.name) if self.directory else None
        try:
            self.known = json.loads(notes.read_text()) if notes and notes.exists() else {}
            for method, seed in info.replicas:
                run = f"{plain(method)}-seed-{seed}"
                self.runs[method, seed] = self.start(run, parameters(info, method, seed))
            if notes and self.known:
                write_atomically(notes, json.dumps(self.known, indent=1).encode())
            self._log(self.directory.records() if self.directory else ())
        except UserError:
            raise
        except Exception as error:
            raise UserError(f"tracker '{self.name}' cannot start: {first_line(error)}") from error

    def round(self, records: Sequence[RoundRecord]) -> None:
        """Logs a round."""
        try:
            self._log(records)
        except Exception as error:
            self._give_up(records[0].round, error)

    def end(self, end: RunEnd) -> None:
        """Ends all runs."""
        try:
            for run in self.runs.values():
                self.finish(run, end.condition == "finished")
        except Exception as error:
            self._give_up(max(self.logged.values(), default=0), error)
        self.runs, self.directory = {}, None

    def _log(self, records: Sequence[RoundRecord]) -> None:
        for record in records if self.runs else ():
            replica = record.method, record.seed
            if record.round > self.logged.get(replica, 0):  # a round may be in the directory and heard again
                self.log(self.runs[replica], record.round, numbers(record))
                self.logged[replica] = record.round

    def _give_up(self, round: int, error: Exception) -> None:
        self.runs = {}
        _log.warning("tracker '%s' stopped in round %d: %s", self.name, round, first_line(error))
