"""Backups of a run directory, taken at any moment, also while the run is trained; a run can be resumed from one."""

import shutil
import time
from contextlib import suppress
from pathlib import Path

from mmfl.errors import UserError
from mmfl.runs.checkpoint import newest_round
from mmfl.runs.directory import RunDirectory
from mmfl.runs.layout import ADDED_TASKS, CHANGES, CHECKPOINTS, CONFIG, EVENTS, LOG, METRICS, TESTED

_ATTEMPTS = 10  # to copy checkpoints while others are written
_PAUSE_SECONDS = 0.5


def back_up(run: Path, to: Path) -> int:
    """Copies what a run needs to be resumed to a new directory; returns the round of its newest checkpoint.

    Checkpoints are copied first: records and changes only grow, so theirs are there for every copied checkpoint. An
    incomplete last line is normal after a crash, too. State, lock and what was asked of the running server are left
    out: they belong to the process that works on the run.
    """
    directory = RunDirectory.open(run)
    RunDirectory.refuse_used(to)
    draft = to.with_name(f".{to.name}.backup")
    try:
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True, mode=0o700)
        round = _copy_checkpoints(directory.checkpoints, draft / CHECKPOINTS)
        for name in (METRICS, CHANGES, TESTED, EVENTS, LOG, CONFIG):
            with suppress(FileNotFoundError):
                shutil.copy2(run / name, draft / name)
        if (run / ADDED_TASKS).is_dir():
            shutil.copytree(run / ADDED_TASKS, draft / ADDED_TASKS)
        if to.is_dir():
            to.rmdir()
        draft.replace(to)
    except OSError as error:
        raise UserError(f"backup '{to}' cannot be written: {error.strerror}.") from None
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return round


def _copy_checkpoints(folder: Path, to: Path) -> int:
    """Copies the checkpoints, until the newest of the copies is a good one; returns its round."""
    if not any(folder.glob("round-*.json")):
        return 0
    for _ in range(_ATTEMPTS):
        shutil.rmtree(to, ignore_errors=True)
        to.mkdir()
        for file in sorted(folder.glob("round-*")):
            with suppress(FileNotFoundError):  # an old one may be removed meanwhile
                shutil.copy2(file, to / file.name)
        if round := newest_round(to):
            return round
        time.sleep(_PAUSE_SECONDS)
    raise UserError(f"backup: no checkpoint in '{folder}' can be read; `mmfl resume` says what is wrong.")
