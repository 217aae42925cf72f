"""The lock of a run directory: one process at a time writes there, and the file `lock` says which.

A lock that was left by a process which is gone is taken over, if that was on this machine. Nothing is known of
processes on other machines, so their locks stand until somebody deletes them; unless they are of this `torchrun` job,
which ends all of its processes before it starts any again.
"""

import fcntl
import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from mmfl.errors import UserError
from mmfl.runs.layout import LOCK
from mmfl.runs.processes import is_alive, start_time, torchrun_job


@dataclass(frozen=True)
class Holder:
    """A process that holds a lock. `birth` tells it from a later one of the same number; its `torchrun` job, if any."""

    pid: int
    host: str
    birth: str
    job: str = ""

    @classmethod
    def current(cls) -> "Holder":
        """This process."""
        return cls(os.getpid(), socket.gethostname(), start_time(os.getpid()), torchrun_job())

    @property
    def gone(self) -> bool:
        """Whether it is known to have ended."""
        if self.host != socket.gethostname():
            return self.job != "" and self.job == torchrun_job()
        return not is_alive(self.pid, self.birth)


@contextmanager
def hold(directory: Path) -> Iterator[None]:
    """Keeps other processes out of a run directory, which is made if need be; an error where one is at work there."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with _one_at_a_time(directory):
            check_free(directory)
            (directory / LOCK).unlink(missing_ok=True)
            _write(directory / LOCK, json.dumps(asdict(Holder.current())))
    except OSError as error:
        raise UserError(f"run directory '{directory}' cannot be written: {error.strerror}.") from None
    try:
        yield
    finally:
        with suppress(OSError), _one_at_a_time(directory):
            if _read(directory) == Holder.current():
                (directory / LOCK).unlink()


def check_free(directory: Path) -> None:
    """Raises an error if another process holds the lock."""
    holder = _read(directory)
    if holder is None or holder.gone:
        return
    message = f"run '{directory}' is in use by process {holder.pid} on {holder.host}"
    if holder.host == socket.gethostname():
        raise UserError(f"{message}; wait until it ends, or end it.")
    raise UserError(f"{message}.\nIf that process is gone, delete {directory / LOCK} and try again.")


def is_lock(path: Path) -> bool:
    """Whether a file of a run directory is its lock, or one in the making."""
    return path.name == LOCK or path.name.startswith(f".{LOCK}.")


def _write(path: Path, text: str) -> None:
    """Writes a new file under another name first, so that readers never find it incomplete."""
    draft = path.with_name(f".{path.name}.{socket.gethostname()}.{os.getpid()}")
    try:
        draft.write_text(text)
        try:
            os.link(draft, path)
        except FileExistsError:  # by a process on another machine, which no lock of this one keeps out
            raise UserError(f"run '{path.parent}' has just been taken by another process; try again.") from None
        except OSError:  # a file system without links
            draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


@contextmanager
def _one_at_a_time(directory: Path) -> Iterator[None]:
    """Lets one process of this machine after the other look at the lock and change it."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        with suppress(OSError):  # not every network's file system knows such locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _read(directory: Path) -> Holder | None:
    """Who holds the lock; None where nobody does."""
    try:
        values = json.loads((directory / LOCK).read_bytes())
        return Holder(int(values["pid"]), str(values["host"]), str(values["birth"]), str(values.get("job", "")))
    except (OSError, ValueError, KeyError, TypeError):
        return None
