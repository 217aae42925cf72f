"""The state of a run, in `state.json` of its directory, and its log, in `log.txt`, for people and for the dashboard.

A run does not depend on either: it never reads them back, and goes on where they cannot be written.
"""

import json
import logging
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, get_args

from mmfl.errors import UserError
from mmfl.runs.files import append_bounded, atomically
from mmfl.runs.layout import LOG, MAX_LOG_BYTES, STATE
from mmfl.runs.lock import Holder

Condition = Literal["running", "finished", "stopped", "failed", "lost"]
_LONGEST = 500  # letters of a line of the log


@dataclass(frozen=True)
class RunEnd:
    """How a run ended, and why it was stopped or has failed."""

    condition: Literal["finished", "stopped", "failed"]
    reason: str = ""

    @classmethod
    def from_error(cls, error: BaseException) -> "RunEnd":
        """The end that an exception makes: Ctrl-C stops a run, anything else is a failure."""
        if isinstance(error, KeyboardInterrupt):
            return cls("stopped", "interrupted")
        text = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
        return cls("failed", _line(text))


@dataclass(frozen=True)
class RunStatus:
    """How a run is doing: `condition`, with the reason where it failed, and the process that works on it.

    `began` and `updated` are seconds since 1970. `birth` tells the process from a later one of the same number.
    """

    condition: Condition
    round: int
    rounds: int
    began: float
    updated: float
    pid: int
    host: str
    birth: str = ""
    reason: str = ""

    @property
    def done(self) -> int:
        """Rounds that are known to be recorded.

        Records are written before the state is, but a run that is resumed drops those after its checkpoint. So nothing
        is known of a run that is running or lost.
        """
        return 0 if self.condition in ("running", "lost") else int(self.round)


def read(directory: Path) -> RunStatus | None:
    """The current state, `lost` where the process has ended without writing so; None where it cannot be read."""
    try:
        state = RunStatus(**json.loads((directory / STATE).read_bytes()))
        numbers = (state.round, state.rounds, state.began, state.updated, state.pid)
        if state.condition not in get_args(Condition) or not all(isinstance(n, int | float) for n in numbers):
            return None
    except (OSError, ValueError, TypeError):
        return None
    if state.condition == "running" and Holder(state.pid, state.host, state.birth).gone:
        return replace(state, condition="lost", reason="its process has ended without a word")
    return state


class StatusWriter:
    """Writes state and log of a run under way, and at the end how it ended; without a path it writes nothing.

    Warnings of the package's logger go into the log as well.
    """

    def __init__(self, path: Path | None, rounds: int):
        self.path = path
        now, before = time.time(), read(path) if path else None
        began, round = (before.began, before.round) if before else (now, 0)
        holder = Holder.current()
        self.state = RunStatus("running", round, rounds, began, now, holder.pid, holder.host, holder.birth)
        self.warnings = _Warnings(self)
        self.end = RunEnd("finished")

    def __enter__(self) -> "StatusWriter":
        if self.path:
            logging.getLogger("mmfl").addHandler(self.warnings)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        logging.getLogger("mmfl").removeHandler(self.warnings)
        end = RunEnd.from_error(error) if error else self.end
        self._set(end.condition, reason=end.reason if end.condition == "failed" else "")
        why, round = f" ({end.reason})" if end.reason and not error else "", self.state.round
        notes = {
            "finished": f"finished: {round} rounds{why}",
            "stopped": f"stopped after round {round}{why}; `mmfl resume` goes on from here",
            "failed": f"failed after round {round}: {end.reason}",
        }
        self.note(notes[end.condition])

    def begin(self, round: int, what: str, versions: str = "") -> None:
        """The run begins, or goes on after a round."""
        self._set("running", round=round)
        process = f"process {self.state.pid} on {self.state.host}" + (versions and f"; {versions}")
        self.note(f"resumed after round {round}: {what}; {process}" if round else f"began: {what}; {process}")

    def wait(self, what: str) -> None:
        """The run waits for something before it begins or goes on."""
        self._set("running")
        self.note(f"waiting for {what}")

    def round(self, round: int, rounds: int) -> None:
        """A round of so many has ended."""
        self._set("running", round=round, rounds=rounds)

    def note(self, text: str) -> None:
        """Adds a line to the log."""
        if self.path:
            with suppress(OSError):
                append_bounded(self.path / LOG, f"{timestamp(time.time())}  {_line(text)}\n", MAX_LOG_BYTES)

    def _set(self, condition: Condition, **changes: Any) -> None:
        self.state = replace(self.state, condition=condition, updated=time.time(), **changes)
        if self.path:
            with suppress(OSError), atomically(self.path / STATE, on_disk=False) as file:
                file.write(json.dumps(asdict(self.state)).encode())


def timestamp(seconds: float) -> str:
    """A time as the log writes it."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


class _Warnings(logging.Handler):
    """Writes the package's warnings to the log, and prints them where no other handler would."""

    def __init__(self, writer: StatusWriter):
        super().__init__(logging.WARNING)
        self.writer = writer
        self.alone = not logging.getLogger("mmfl").hasHandlers()

    def emit(self, record: logging.LogRecord) -> None:
        self.writer.note(f"{record.levelname.lower()}: {record.getMessage()}")
        if self.alone and logging.lastResort:
            logging.lastResort.handle(record)


def _line(text: str) -> str:
    """A text on one line."""
    return " ".join(text.split())[:_LONGEST]
