"""Child processes that end with their owner, whatever ends it: a normal return, an error, Ctrl-C, even `kill -9`."""

import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from mmfl.deployment.bounded_logs import BoundedLogs
from mmfl.errors import UserError, shorten

_WATCHDOG = Path(__file__).with_name("watchdog.py")
_VARIABLE = "MMFL_DEPLOYMENT"  # in the environment of all processes of a deployment, with a value of its own
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_ERROR_LINE = re.compile(r"\berror|failed|refused|\[code", re.IGNORECASE)
_SECONDS_TO_START = 300.0  # data may have to be loaded
_SECONDS_BEFORE_NOTICE = 20.0  # until it is said that a start takes long
_SECONDS_TO_END = 5.0  # after which a process that was asked to end is killed


@dataclass(frozen=True, eq=False)
class Child:
    """A process that was started, with the log file for its output."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path
    offset: int = 0  # in the log, where the output of this process begins

    @property
    def alive(self) -> bool:
        """Whether the process is still running."""
        return self.process.poll() is None

    def output(self) -> str:
        """All that it has printed, without colours."""
        return _COLOUR.sub("", self.log.read_bytes()[self.offset :].decode(errors="replace"))

    def error_line(self) -> str:
        """The last line of its output that mentions an error; the last line if none does."""
        lines = self.output().strip().splitlines()
        errors = [line.strip() for line in lines if _ERROR_LINE.search(line) and "retrying" not in line]
        return ([*lines[-1:], *errors] or [""])[-1].removeprefix("error: ")

    def reason(self) -> str:
        """Why it has ended: the signal that killed it, or its last error."""
        code = self.process.poll() or 0
        return f"killed by signal {-code}" if code < 0 else self.error_line() or f"exit code {code}"

    def kill(self) -> None:
        """Kills it, with the processes of its group."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


class ChildProcesses:
    """The processes of one deployment, and a private folder for their sockets and settings.

    On exit all processes are ended and the folder is removed. Output is written to the folder `logs`.
    """

    def __init__(self, logs: Path):
        self.logs = logs
        self.children: list[Child] = []

    def __enter__(self) -> Self:
        try:
            self.logs.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"logs '{shorten(self.logs)}' cannot be written: {error.strerror}.") from None
        self.bounded_logs = BoundedLogs(self.logs)
        self.bounded_logs.__enter__()
        self.folder = Path(tempfile.mkdtemp(prefix="mmfl-"))  # mode 0700; short, because a socket's path must be
        self.token = secrets.token_hex(8)
        self.watchdog = subprocess.Popen(
            [sys.executable, "-IS", str(_WATCHDOG), f"{_VARIABLE}={self.token}", str(self.folder)],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        return self

    def __exit__(self, *_: object) -> None:
        self.bounded_logs.__exit__()
        try:
            deadline = time.monotonic() + _SECONDS_TO_END
            for child in reversed(self.children):
                child.process.terminate()
            for child in self.children:
                with suppress(subprocess.TimeoutExpired):
                    child.process.wait(max(0.0, deadline - time.monotonic()))
        finally:
            assert self.watchdog.stdin
            self.watchdog.stdin.close()
            self.watchdog.wait()
            for child in self.children:
                child.process.wait()
            with suppress(OSError):
                self.logs.rmdir()  # if nothing was started

    def start(self, name: str, command: Sequence[str], environment: Mapping[str, str]) -> Child:
        """Starts a process in a session of its own."""
        log = self.logs / f"{name}.log"
        with log.open("ab") as output:
            before = output.tell()
            try:
                process = subprocess.Popen(
                    command,
                    env={**environment, _VARIABLE: self.token},
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            except OSError as error:
                raise UserError(f"{name}: '{command[0]}' cannot be started: {error.strerror}.") from None
        child = Child(name, process, log, before)
        self.children.append(child)
        self._tell_watchdog(process.pid)
        return child

    def end(self, child: Child) -> None:
        """Asks one process to end, kills it if it does not, and no longer looks after it."""
        child.process.terminate()
        with suppress(subprocess.TimeoutExpired):
            child.process.wait(_SECONDS_TO_END)
        child.kill()
        self.children.remove(child)
        self._tell_watchdog(-child.process.pid)

    def _tell_watchdog(self, number: int) -> None:
        assert self.watchdog.stdin
        self.watchdog.stdin.write(f"{number}\n".encode())
        self.watchdog.stdin.flush()


def check_repeatedly(check: Callable[[], None], until: Callable[[], object] = lambda: False) -> None:
    """Calls `check`, which may raise an error, until something is so or this process is asked to end."""
    while not until():
        check()
        time.sleep(0.2)


def wait_until(
    ready: Callable[[], bool],
    child: Child,
    what: str,
    seconds: float = _SECONDS_TO_START,
    say: Callable[[str], None] = lambda text: None,
) -> None:
    """Waits until `ready` is true; raises an error with the process's output if it ends first, or takes too long.

    `what` completes "it took long to ...". `say` is told once if it takes a while.
    """
    began, said = time.monotonic(), False
    while not ready():
        waited = time.monotonic() - began
        if not child.alive:
            raise UserError(f"{child.name} ended before it could {what}: {child.error_line()}")
        if waited > seconds:
            raise UserError(
                f"{child.name} took more than {seconds:.0f} s to {what}; what it printed is in {child.log}."
            )
        if waited > _SECONDS_BEFORE_NOTICE and not said:
            said = True
            say(f"{child.name} takes long to {what}; what it prints is in {child.log}")
        time.sleep(0.05)


@contextmanager
def exit_on_termination() -> Iterator[None]:
    """Turns SIGTERM and SIGHUP into a `SystemExit`, so that everything is cleaned up before this process ends."""

    def exit_process(*_: object) -> None:
        raise SystemExit(143)

    before = {number: signal.signal(number, exit_process) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
