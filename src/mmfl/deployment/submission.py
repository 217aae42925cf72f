"""A run at a SuperLink: how it is started, and followed through the files that the server writes."""

import json
import logging
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmfl.deployment.programs import SERVER_APP, ControlAPI, write_app
from mmfl.errors import UserError
from mmfl.record import RoundRecord
from mmfl.runs.directory import RunDirectory
from mmfl.runs.events import read_events
from mmfl.runs.files import TailReader
from mmfl.runs.layout import ENDED, METRICS, STOP
from mmfl.runs.listener import Listener, RunInfo, interruptible
from mmfl.runs.records import parse
from mmfl.runs.status import RunEnd

_SECONDS_OF_SILENCE = 600.0  # of the SuperLink, which may be started again meanwhile
_log = logging.getLogger(__name__)
_SECONDS_BEFORE_QUERY = 15.0  # without a new record, after which the SuperLink is asked about the run


class RunWatcher:
    """Reads the files of a run directory while the server writes them, and asks the server to stop.

    A listener is told what it would hear of a simulation, as far as it is known here.
    """

    def __init__(self, directory: Path, settings: Mapping[str, Any]):
        self.directory, self.settings, self.metrics = directory, settings, TailReader(directory / METRICS)
        self.seen: set[int] = set()
        self.begun = False  # whether a listener has heard of the run
        self.advanced = False  # whether there were new rounds, until someone sets it back
        self.new_records()  # skips the records of earlier runs in this directory

    def new_records(self) -> list[RoundRecord]:
        """The records since the last call; none is returned twice, although a resumed run may rewrite the file."""
        records = []
        for line in self.metrics.new_lines()[0]:
            if hash(line) not in self.seen:
                self.seen.add(hash(line))
                records += [record] if (record := parse(line)) else []
        return records

    def tell_rounds(self, listener: Listener) -> bool:
        """Tells of new rounds, and first of the run; returns whether there were any.

        A listener that cannot start is a warning: the nodes are at work already.
        """
        records = self.new_records()
        for record in records:
            if not self.begun:
                self.begun = True
                try:
                    listener.begin(self._info(record))
                except UserError as error:
                    _log.warning("%s", error)
            listener.round([record])
        self.advanced = self.advanced or bool(records)
        return bool(records)

    def tell_end(self, listener: Listener, end: RunEnd) -> None:
        """Tells how the run ended, if it began."""
        if self.begun:
            listener.end(end)

    def outcome(self, run: int = 0) -> RunEnd | None:
        """How the run with this id ended; None while it is running."""
        try:
            found = json.loads((self.directory / ENDED).read_text())
        except (FileNotFoundError, ValueError):
            return None
        if found.get("run", run) != run:  # of an earlier run, which ended late
            return None
        return RunEnd(found["state"], found["message"])

    def waiting_for(self) -> str:
        """What the server is waiting for; empty if it is not."""
        last = read_events(self.directory)[-1:]
        return last[0].detail if last and last[0].kind == "waiting" else ""

    def clear_outcome(self) -> None:
        """Removes the files that an earlier run left when it ended."""
        for name in (ENDED, STOP):
            (self.directory / name).unlink(missing_ok=True)

    def request_stop(self) -> None:
        """Asks the server to stop after the current round, with a checkpoint."""
        (self.directory / STOP).touch()

    def _info(self, record: RoundRecord) -> RunInfo:
        return RunInfo(
            methods=[record.method],
            seeds=[record.seed],
            tasks=list(record.tasks),
            clients=record.clients,
            rate=self.settings.get("rate", 0.0),
            rounds=self.settings["rounds"],
            first=record.round,
            directory=self.directory,
            config=RunDirectory(self.directory).config(),
            stop=lambda reason: self.request_stop(),
        )


@dataclass(frozen=True)
class ServerLost(RunEnd):
    """The end of a run whose server process has died, or could not begin: only the SuperLink knows of it."""


@dataclass
class Submission:
    """A run that was started at a SuperLink. `again` starts it once more, from its last checkpoint."""

    run: int
    control: ControlAPI
    watcher: RunWatcher
    again: Callable[[], int]

    @classmethod
    def start(
        cls,
        control: ControlAPI,
        module: Path,
        directory: Path,
        settings: Mapping[str, Any],
        resume: bool = False,
        server: str = SERVER_APP,
    ) -> "Submission":
        """Writes the app and starts a run of it."""
        watcher = RunWatcher(directory, settings)

        def start(resume: bool) -> int:
            watcher.clear_outcome()
            return control.start_run(write_app(control.home, module, directory, settings, resume, server))

        return cls(start(resume), control, watcher, lambda: start(True))

    def follow(self, listener: Listener | None = None, check: Callable[[], None] = lambda: None) -> RunEnd:
        """Waits until the run has ended. Ctrl-C stops it after the current round; a second Ctrl-C stops it at once.

        Where the server's process is lost after new rounds, the run is resumed. `check` is called often, and may raise
        an error.
        """
        listener = listener or Listener()
        try:
            with interruptible() as interrupted:
                end = self._follow_one(listener, check, interrupted)
                while isinstance(end, ServerLost) and self.watcher.advanced and not interrupted.is_set():
                    _log.warning("the server's process was lost (%s); resuming the run", end.reason)
                    self.watcher.advanced = False
                    self.run = self.again()
                    end = self._follow_one(listener, check, interrupted)
        except BaseException as error:
            self.watcher.tell_end(listener, RunEnd.from_error(error))
            raise
        self.watcher.tell_end(listener, end)
        return end

    def _follow_one(self, listener: Listener, check: Callable[[], None], interrupted: threading.Event) -> RunEnd:
        """Waits for the end of the run with the current id."""
        last_news = time.monotonic()
        stop_requested, waiting, silence = False, "", 0.0  # since when the SuperLink has not answered
        while True:
            outcome = self.watcher.outcome(self.run)  # before the last records are read
            has_news = self.watcher.tell_rounds(listener)
            if outcome:
                return outcome
            check()
            if interrupted.is_set() and not stop_requested:
                stop_requested = True
                self.watcher.request_stop()
                _log.warning("stopping after this round; press Ctrl-C again to break off")
            if has_news:
                last_news = time.monotonic()
            elif time.monotonic() - last_news > _SECONDS_BEFORE_QUERY:
                try:
                    outcome, silence = self.query_outcome(), 0.0
                except UserError as error:
                    outcome, silence = None, self._bear(error, silence)
                if outcome and not self.watcher.outcome(self.run):
                    return outcome
                if (now := self.watcher.waiting_for()) and now != waiting:
                    waiting = now
                    _log.warning("waiting for nodes: %s", waiting)
                last_news = time.monotonic()
            time.sleep(0.1)

    def _bear(self, error: UserError, silence: float) -> float:
        """Since when the SuperLink has not answered; raises an error when that is too long ago."""
        if not silence:
            _log.warning("%s It is waited for.", error)
            return time.monotonic()
        if time.monotonic() - silence > _SECONDS_OF_SILENCE:
            minutes, directory = _SECONDS_OF_SILENCE / 60, self.watcher.directory
            raise UserError(
                f"no SuperLink has answered at {self.control.address} for {minutes:.0f} minutes; start `mmfl link` "
                f"again, then go on with: mmfl resume {directory}"
            )
        return silence

    def abort(self) -> None:
        """Ends the run immediately, without a checkpoint of the current round."""
        with suppress(UserError):
            self.control.stop_run(self.run)

    def query_outcome(self) -> RunEnd | None:
        """How the run ended according to the SuperLink, which notices when the server's process was killed."""
        found = self.control.show_run(self.run)
        status = str(found.get("status", ""))
        if not status.startswith("finished"):
            return None
        details = str(found.get("status-details") or found.get("details") or status)
        return RunEnd("stopped", details) if status.endswith("stopped") else ServerLost("failed", details)
