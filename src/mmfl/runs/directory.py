"""The directory in which a run lives: its configuration, records and checkpoints."""

import json
import logging
import os
import platform
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import tomli_w
import torch

import mmfl
from mmfl.errors import UserError, check_name, first_line, shorten
from mmfl.record import LastTest, RoundRecord
from mmfl.runs.files import write_atomically
from mmfl.runs.layout import CHECKPOINTS, CONFIG, FORMAT, MADE_WITH, METRICS, TESTED, format_problem
from mmfl.runs.listing import read_config_summary
from mmfl.runs.lock import hold, is_lock
from mmfl.runs.records import Records
from mmfl.runs.records import read as read_records
from mmfl.runs.restarts import is_begun_by_job, job_entry
from mmfl.runs.status import read as read_state

_MAX_NAMED = 10  # runs that a message lists
Pair = tuple[str, int]
"""A method and a seed."""
_log = logging.getLogger(__name__)


class RunDirectory:
    """A run on disk: `config.toml`, `metrics.jsonl` (a line per replica and round), `checkpoint/`.

    `locked` says that whoever made this object holds the run's lock already, and `begun` that this `torchrun` job made
    the directory before it lost a process.
    """

    def __init__(self, path: Path, locked: bool = False, begun: bool = False):
        self.path, self.locked, self.begun = path, locked, begun

    @classmethod
    def create(cls, path: str | Path, config: dict[str, Any], device: torch.device | None = None) -> "RunDirectory":
        """A new directory with the configuration and versions of a run; an existing one is used only if it is empty, or
        if this `torchrun` job began the same run there."""
        directory = cls(Path(path))
        if is_begun_by_job(directory.path, config):
            return cls(directory.path, begun=True)
        cls.refuse_used(directory.path)
        content = tomli_w.dumps({"format": FORMAT, **config, MADE_WITH: made_with(device) | job_entry()}).encode()
        with directory.hold():
            cls.refuse_used(directory.path)  # another process may have been faster
            try:
                write_atomically(directory.path / CONFIG, content)
            except OSError as error:
                raise UserError(f"run directory '{path}' cannot be written: {error.strerror}.") from None
        return directory

    @staticmethod
    def refuse_used(path: Path) -> None:
        """Raises an error if a new run would overwrite something, or cannot be created here."""
        check_name("run directory", str(path))
        try:
            used = any(not is_lock(each) for each in path.iterdir())
        except FileNotFoundError:
            return
        except OSError as error:
            problem = f"run directory '{shorten(path)}' cannot be made: {error.strerror}"
            raise UserError(f"{problem}; expected a new directory, or an empty one.") from None
        if used:
            raise UserError(f"run directory '{path}' exists; choose another, or go on with `mmfl resume {path}`.")

    @classmethod
    def open(cls, path: str | Path) -> "RunDirectory":
        """A directory that holds a run, of a format that can be read."""
        path = Path(path)
        check_name("run directory", str(path))
        try:
            content = (path / CONFIG).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            raise UserError(f"'{path}' is not a run directory: it has no {CONFIG}{_runs_in(path)}.") from None
        except OSError as error:
            raise UserError(f"run directory '{shorten(path)}' cannot be read: {error.strerror}.") from None
        with suppress(ValueError):  # `config` says so where the content matters
            if problem := format_problem(tomllib.loads(content.decode())):
                raise UserError(f"run '{path}' cannot be read: {problem}.")
        return cls(path)

    def hold(self) -> AbstractContextManager[None]:
        """While active, no other process can work on the run; an error where one does."""
        return nullcontext() if self.locked else hold(self.path)

    @property
    def checkpoints(self) -> Path:
        """Where checkpoints are."""
        return self.path / CHECKPOINTS

    @property
    def metrics(self) -> Path:
        """The record of every round."""
        return self.path / METRICS

    def config(self) -> dict[str, Any]:
        """The configuration the run was started with."""
        try:
            return tomllib.loads((self.path / CONFIG).read_text())
        except (OSError, ValueError) as error:
            raise UserError(f"{self.path / CONFIG} cannot be read: {error}.") from None

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Turns a failed write, as on a full disk, into an error that says how to resume the run."""
        try:
            yield
        except OSError as error:
            raise UserError(
                f"run '{self.path}' stopped, because it cannot be written: {error.strerror}.\n"
                f"Once it can, `mmfl resume {self.path}` goes on from its last checkpoint (in Python: resume=True)."
            ) from None

    def append(self, records: Sequence[RoundRecord]) -> None:
        """Adds the records of a round, on disk when this returns."""
        with self.writing(), self.metrics.open("ab", buffering=0) as file:
            content = memoryview(_lines(records))
            while content:
                content = content[file.write(content) :]
            os.fsync(file.fileno())

    def records(self) -> list[RoundRecord]:
        """All records. Second copies are dropped with a warning; missing or broken records are an error. The last line
        may be incomplete after a crash."""
        state = read_state(self.path)
        found = self._read_metrics(state.done if state else 0, read_config_summary(self.path / CONFIG).replicas)
        for note in found.notes():
            _log.warning("%s: %s", self.metrics, note)
        return found.all

    def rewind(self, round: int, replicas: int) -> list[RoundRecord]:
        """Deletes the records after a round and returns the others, which must be complete for all replicas."""
        found = self._read_metrics(round, replicas, round, f", but the checkpoint is of round {round}")
        kept = [record for record in found.all if record.round <= round]
        with self.writing():
            write_atomically(self.metrics, _lines(kept))
        return kept

    def write_last_tests(self, last_tests: Mapping[Pair, Mapping[str, LastTest]]) -> None:
        """Replaces what the last tests found besides single numbers, by method and seed, and task; no file where that
        is nothing."""
        rows = [
            {"method": method, "seed": seed, "tasks": {name: asdict(found) for name, found in tasks.items()}}
            for (method, seed), tasks in last_tests.items()
            if tasks
        ]
        if rows:
            write_atomically(self.path / TESTED, "".join(json.dumps(row) + "\n" for row in rows).encode())

    def last_tests(self) -> dict[Pair, dict[str, LastTest]]:
        """What the last tests found besides single numbers, by method and seed, and task."""
        try:
            rows = [json.loads(line) for line in (self.path / TESTED).read_text().splitlines()]
            return {
                (row["method"], row["seed"]): {name: LastTest(**found) for name, found in row["tasks"].items()}
                for row in rows
            }
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            problem = f"{self.path / TESTED} cannot be read: {first_line(error)}"
            raise UserError(f"{problem}.\nWithout the file, the run has no metrics by client.") from None

    def _read_metrics(self, done: int, replicas: int, until: int | None = None, but: str = "") -> Records:
        """All records; an error where those of the rounds up to `until` are damaged."""
        try:
            found = read_records(self.metrics)
        except OSError as error:
            raise UserError(f"{self.metrics} cannot be read: {error.strerror}.") from None
        if problem := found.problem(done, until, replicas):
            advice = "Put the file back as it was, or start a new run."
            raise UserError(f"{self.metrics} is damaged: {problem}{but}.\n{advice}")
        return found


def _lines(records: Sequence[RoundRecord]) -> bytes:
    return "".join(json.dumps(record.to_json()) + "\n" for record in records).encode()


def _runs_in(folder: Path) -> str:
    """Names the runs in a folder, for a message to someone who gave the folder instead of a run."""
    try:
        found = sorted(each.name for each in folder.iterdir() if (each / CONFIG).is_file())
    except OSError:
        return ""
    more = f" and {len(found) - _MAX_NAMED} more" if len(found) > _MAX_NAMED else ""
    return f", but holds the runs {', '.join(found[:_MAX_NAMED])}{more}" if found else ""


def made_with(device: torch.device | None = None) -> dict[str, str]:
    """Versions and, where one process computes, the device: what may explain that numbers differ."""
    versions = {"mmfl": mmfl.__version__, "torch": torch.__version__, "python": platform.python_version()}
    if device is None:
        return versions
    name = f" ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else ""
    return {**versions, "device": f"{device}{name}"}
