"""Child processes that end with their owner, whatever ends it: a normal return, an error, Ctrl-C, even `kill -9`."""

import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from mmfl.errors import UserError, shorten

_GUARD = Path(__file__).with_name("watchdog.py")
_MARK = "MMFL_DEPLOYMENT"
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_WRONG = re.compile(r"\berror|failed|refused|\[code", re.IGNORECASE)
_PASSING = re.compile("retrying")
_PATIENCE = 5.0  # seconds that a process may take to end when asked to


@dataclass(frozen=True, eq=False)
class Child:
    """A process that was started, and where its output goes."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path
    offset: int = 0  # where its own output begins in the log

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        return self.process.poll() is None

    def output(self) -> str:
        """What it has printed, without colours."""
        return _COLOUR.sub("", self.log.read_bytes()[self.offset :].decode(errors="replace"))

    def last_words(self, lines: int = 5) -> str:
        """The end of its output, for an error message."""
        return "\n".join(self.output().strip().splitlines()[-lines:])

    def complaint(self) -> str:
        """The last line of its output that speaks of an error, or the last one."""
        lines = self.output().strip().splitlines()
        wrong = [line.strip() for line in lines if _WRONG.search(line) and not _PASSING.search(line)]
        return ([*lines[-1:], *wrong] or [""])[-1].removeprefix("error: ")

    def kill(self) -> None:
        """Ends it at once, with the processes of its group."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def ask(self) -> None:
        """Asks it to end: by the end of its input, and by a signal."""
        if self.process.stdin:
            with suppress(OSError):
                self.process.stdin.close()
        elif self.alive:
            self.process.terminate()

    def end(self, patience: float = _PATIENCE) -> None:
        """Asks it to end, and makes it."""
        self.ask()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(patience)
        self.kill()


class ChildProcesses:
    """The processes of one deployment, and a private folder for their sockets and settings; both are gone on leaving.

    `logs` is the folder for what they print.
    """

    def __init__(self, logs: Path):
        self.logs = logs
        self.children: list[Child] = []

    def __enter__(self) -> Self:
        try:
            self.logs.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"logs '{shorten(self.logs)}' cannot be written: {error.strerror}.") from None
        self.folder = Path(tempfile.mkdtemp(prefix="mmfl-"))  # short, as the path of a socket must be; mode 0700
        self.mark = f"{_MARK}={secrets.token_hex(8)}"
        try:
            self.guard = subprocess.Popen(
                [sys.executable, "-IS", str(_GUARD), self.mark, str(self.folder)],
                stdin=subprocess.PIPE,
                start_new_session=True,
            )
        except BaseException:
            self.folder.rmdir()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            deadline = time.monotonic() + _PATIENCE
            for child in reversed(self.children):
                child.ask()
            for child in self.children:
                with suppress(subprocess.TimeoutExpired):
                    child.process.wait(max(0.0, deadline - time.monotonic()))
        finally:
            assert self.guard.stdin
            self.guard.stdin.close()
            self.guard.wait()
            for child in self.children:
                child.process.wait()

    def start(self, name: str, command: Sequence[str], environment: Mapping[str, str], tied: bool = False) -> Child:
        """Starts a process in a session of its own; one that is `tied` is told to end by the end of its input."""
        log = self.logs / f"{name}.log"
        key, _, value = self.mark.partition("=")
        with log.open("ab") as output:
            before = output.tell()
            try:
                process = subprocess.Popen(
                    command,
                    env={**environment, key: value},
                    stdin=subprocess.PIPE if tied else subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            except OSError as error:
                raise UserError(f"{name}: '{command[0]}' cannot be started: {error.strerror}.") from None
        child = Child(name, process, log, before)
        self.children.append(child)
        assert self.guard.stdin
        self.guard.stdin.write(f"{process.pid}\n".encode())
        self.guard.stdin.flush()
        return child

    def forget(self, child: Child) -> None:
        """Ends a process before the others."""
        child.end()
        self.children.remove(child)


def wait_until(ready: Callable[[], bool], child: Child, seconds: float, what: str) -> None:
    """Waits for something that a process is to do; an error with its last words where it ends or takes too long."""
    deadline = time.monotonic() + seconds
    while not ready():
        if not child.alive:
            raise UserError(f"{child.name} ended before {what}: {child.complaint()}")
        if time.monotonic() > deadline:
            raise UserError(f"{child.name}: {what} took more than {seconds:.0f} s; its output is in {child.log}.")
        time.sleep(0.05)


@contextmanager
def terminable() -> Iterator[None]:
    """While active, SIGTERM and SIGHUP end this process like an error does: with everything put away."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(*_: object) -> None:
        raise SystemExit(143)

    before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
