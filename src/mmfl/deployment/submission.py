"""A run at a SuperLink: started there, and followed in its directory while the server writes it."""

import hashlib
import json
import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmfl.deployment import programs
from mmfl.deployment.bundle import SERVER, RunConfig, write_app
from mmfl.deployment.superlink import Control
from mmfl.errors import UserError
from mmfl.record import RoundRecord
from mmfl.runs.directory import RunDirectory
from mmfl.runs.experiment import interruptible
from mmfl.runs.layout import ENDED, EVENTS, METRICS, STOP
from mmfl.runs.listener import Listener, RunInfo
from mmfl.runs.records import parse
from mmfl.runs.status import RunEnd
from mmfl.runs.tail import TailReader

_DEAF = 3  # times that the SuperLink may fail to answer
_log = logging.getLogger(__name__)
_SILENCE = 15.0  # seconds without news after which the SuperLink is asked whether the run still runs


class Trail:
    """What a run writes into its directory, as it comes."""

    def __init__(self, directory: Path):
        self.directory, self.metrics = directory, TailReader(directory / METRICS)
        self.seen: set[bytes] = set()
        self.fresh()  # what is there before the run begins is not news

    def fresh(self) -> list[RoundRecord]:
        """The records that have come since the last call; a run that resumes may have written the file anew."""
        records = []
        for line in self.metrics.new_lines()[0]:
            mark = hashlib.blake2b(line, digest_size=16).digest()
            if mark not in self.seen:
                self.seen.add(mark)
                records += [record] if (record := parse(line)) else []
        return records

    def ended(self, run: int = 0) -> RunEnd | None:
        """How the run of this number ended, once it has."""
        try:
            found: dict[str, Any] = json.loads((self.directory / ENDED).read_text())
        except (FileNotFoundError, ValueError):
            return None
        if found.get("run", run) != run:  # an earlier one, which took its time to end
            return None
        state, reason = found.get("state"), str(found.get("message", ""))
        return RunEnd(state if state in ("finished", "stopped") else "failed", reason)

    def waits(self) -> str:
        """What the server is waiting for, if that is the last thing that happened."""
        try:
            *_, last = (self.directory / EVENTS).read_text().splitlines()
            event = json.loads(last)
        except (FileNotFoundError, ValueError):
            return ""
        return str(event.get("detail", "")) if event.get("kind") == "waiting" else ""

    def clear(self) -> None:
        """Takes away the marks of an earlier end."""
        for name in (ENDED, STOP):
            (self.directory / name).unlink(missing_ok=True)

    def stop(self) -> None:
        """Asks the server to stop after the round that is under way, with a checkpoint."""
        (self.directory / STOP).touch()


@dataclass(frozen=True)
class Submission:
    """A run that was started."""

    run: int
    control: Control
    trail: Trail
    rate: float = 0.0

    @classmethod
    def start(cls, control: Control, module: Path, config: RunConfig, server: str = SERVER) -> "Submission":
        """Ships the app and starts it."""
        trail = Trail(config.directory)
        trail.clear()
        number = sum(1 for _ in control.home.glob("app-*"))
        folder = write_app(control.home / f"app-{number}", module, config, server)
        answer = control.ask(programs.start_run(folder), "starting the run")
        return cls(int(str(answer["run-id"])), control, trail, config.settings.get("rate", 0.0))

    def follow(
        self, listener: Listener | None = None, last: int = 0, check: Callable[[], None] = lambda: None
    ) -> RunEnd:
        """Stays until the run has ended. Ctrl-C stops it after the round that is under way; a second one at once.

        `check` is called often, and may raise an error.
        """
        news = _News(listener or Listener(), last, self.trail, self.rate)
        try:
            with interruptible() as interrupted:
                end = self._follow(news, check, interrupted)
        except BaseException as error:
            news.end(RunEnd.by(error))
            raise
        news.end(end)
        return end

    def _follow(self, news: "_News", check: Callable[[], None], interrupted: threading.Event) -> RunEnd:
        heard = time.monotonic()
        asked, deaf, waiting = False, 0, ""
        while True:
            ended = self.trail.ended(self.run)  # before the last records are read
            records = self.trail.fresh()
            news.tell(records)
            if ended:
                return ended
            check()
            if interrupted.is_set() and not asked:
                asked = True
                self.trail.stop()
                _log.warning("stopping after this round; press Ctrl-C again to break off")
            if records:
                heard = time.monotonic()
            elif time.monotonic() - heard > _SILENCE:
                try:
                    lost, deaf = self.lost(), 0
                except UserError:
                    lost, deaf = None, deaf + 1
                    if deaf == _DEAF:
                        raise
                if lost and not self.trail.ended(self.run):
                    return lost
                if (now := self.trail.waits()) and now != waiting:
                    waiting = now
                    _log.warning("waiting for nodes: %s", waiting)
                heard = time.monotonic()
            time.sleep(0.1)

    def abort(self) -> None:
        """Ends the run at once, without a checkpoint of the round that is under way."""
        with suppress(UserError):
            self.control.ask(programs.stop_run(self.run), f"stopping run {self.run}")

    def lost(self) -> RunEnd | None:
        """How the run ended according to the SuperLink, which notices a server that was killed."""
        answer = self.control.ask(programs.show_run(self.run), f"asking after run {self.run}")
        runs = answer.get("runs")
        found = runs[0] if isinstance(runs, list) and runs else {}
        status = str(found.get("status", ""))
        if not status.startswith("finished"):
            return None
        details = str(found.get("status-details") or found.get("details") or status)
        return RunEnd("stopped" if status.endswith("stopped") else "failed", details)


class _News:
    """Tells a listener what it would hear of a simulation, as far as it is known here.

    A tracker that cannot start is a warning: the nodes are at work already.
    """

    def __init__(self, listener: Listener, last: int, trail: Trail, rate: float):
        self.listener, self.last, self.trail, self.rate = listener, last, trail, rate
        self.begun = False

    def tell(self, records: Sequence[RoundRecord]) -> None:
        for record in records:
            if not self.begun:
                self._begin(record)
            self.listener.round([record])

    def _begin(self, record: RoundRecord) -> None:
        self.begun = True
        config: dict[str, Any] = {}
        with suppress(UserError):
            config = RunDirectory(self.trail.directory).config()
        info = RunInfo(
            methods=[record.method],
            seeds=[record.seed],
            tasks=list(record.tasks),
            clients=record.clients,
            rate=self.rate,
            rounds=self.last,
            first=record.round,
            directory=self.trail.directory,
            config=config,
            stop=lambda reason: self.trail.stop(),
        )
        try:
            self.listener.begin(info)
        except UserError as error:
            _log.warning("%s", error)

    def end(self, end: RunEnd) -> None:
        if self.begun:
            self.listener.end(end)
