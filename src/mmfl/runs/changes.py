"""Changes to a running deployment: asked for by files in its run directory, and recorded with the round they follow.

Whoever owns the directory leaves a request in `control/`. Between two rounds the server takes the requests, checks them
and appends each to `changes.jsonl` before it takes effect. A run that is resumed makes the recorded changes again after
the same rounds, so its result is the same. Nothing here needs torch.
"""

import json
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from mmfl.errors import UserError
from mmfl.runs.files import write_atomically
from mmfl.runs.layout import CHANGES, CONTROL

ChangeKind = Literal["rate", "rounds", "add-task", "retire-task"]
_MAX_REQUEST_BYTES = 10_000


@dataclass(frozen=True)
class RunChange:
    """A change of a deployment. `value` is a rate, a number of rounds, or a task's name.

    `module` is the file with a task that is added, in the run directory, and `after` the round that the change follows,
    once it is made.
    """

    kind: ChangeKind
    value: Any
    module: str = ""
    id: str = ""
    after: int = -1

    def check(self) -> None:
        """Refuses what makes no sense of any run."""
        if self.kind not in get_args(ChangeKind):
            raise UserError(
                f"control: there is no change '{self.kind}'; expected one of {', '.join(get_args(ChangeKind))}."
            )
        number = isinstance(self.value, int | float) and not isinstance(self.value, bool)
        if self.kind == "rate" and not (number and 0 < self.value <= 1):
            raise UserError(f"control: rate is {self.value!r}; expected a share of the processors in (0, 1].")
        if self.kind == "rounds" and not (number and isinstance(self.value, int) and self.value >= 1):
            raise UserError(f"control: rounds is {self.value!r}; expected a whole number of at least 1.")
        if self.kind in ("add-task", "retire-task") and not (isinstance(self.value, str) and self.value):
            raise UserError(f"control: task is {self.value!r}; expected the name of a task.")

    def __str__(self) -> str:
        words = {"add-task": "task added:", "retire-task": "task retired:"}
        return f"{words.get(self.kind, self.kind)} {self.value}"


class ChangeLog:
    """The changes that were made in a run, in `changes.jsonl`."""

    def __init__(self, directory: Path):
        self.directory, self.path = directory, directory / CHANGES
        self.made = list(self._read())

    def _read(self) -> Iterator[RunChange]:
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return
        for number, line in enumerate(content[: content.rfind(b"\n") + 1].splitlines(), 1):
            try:
                change = RunChange(**json.loads(line))
                change.check()
            except (ValueError, TypeError, UserError):
                raise UserError(f"{self.path} is damaged: line {number} is not a change.") from None
            yield change

    def before(self, round: int) -> list[RunChange]:
        """The changes that were in force in a round."""
        return [change for change in self.made if change.after < round]

    def after(self, round: int) -> list[RunChange]:
        """The changes that were made after a round, before the next."""
        return [change for change in self.made if change.after == round]

    def add(self, change: RunChange) -> None:
        """Records a change, on disk when this returns. An incomplete last line, as after a crash, is dropped."""
        with self.path.open("ab+") as file:
            file.seek(0)
            content = file.read()
            file.truncate(content.rfind(b"\n") + 1)
            file.write(json.dumps(asdict(change)).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        self.made.append(change)


def request(directory: Path, change: RunChange) -> None:
    """Asks the server of a run for a change; refuses other users than the owner of the run directory."""
    change.check()
    check_owner(directory)
    folder = directory / CONTROL
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        name = f"{time.time_ns()}-{os.getpid()}.json"
        content = {"kind": change.kind, "value": change.value, "module": change.module}
        write_atomically(folder / name, json.dumps(content).encode())
    except OSError as error:
        raise UserError(f"control: '{folder}' cannot be written: {error.strerror}.") from None


def check_owner(directory: Path) -> None:
    """Refuses other users than the owner of a run directory, and the superuser."""
    if os.geteuid() not in (0, directory.stat().st_uid):
        raise UserError(f"control: run '{directory}' belongs to another user; only its owner may control it.")


def read_requests(directory: Path) -> Iterator[tuple[Path, RunChange | UserError]]:
    """The requests in a run directory, the oldest first, or what is wrong with them."""
    folder = directory / CONTROL
    for path in sorted(folder.glob("*.json")) if folder.is_dir() else ():
        try:
            found = path.lstat()
            if found.st_uid not in (0, os.geteuid(), directory.stat().st_uid) or path.is_symlink():
                raise UserError("a request of another user")
            if found.st_size > _MAX_REQUEST_BYTES:
                raise UserError("a request that is too large")
            content = json.loads(path.read_bytes())
            change = RunChange(content["kind"], content["value"], str(content.get("module", "")), path.stem)
            change.check()
            yield path, change
        except UserError as error:
            yield path, error
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            yield path, UserError("a request that cannot be read")
