"""Restarts by `torchrun`: the run that its job began before it lost a process, to go on with."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomli_w

from mmfl.runs.layout import CONFIG, FORMAT, MADE_WITH
from mmfl.runs.processes import torchrun_job

_JOB = "torchrun"  # the job, among what a run was made with


def job_entry() -> dict[str, str]:
    """The job of this process, as a run directory notes it; nothing without `torchrun`."""
    job = torchrun_job()
    return {_JOB: job} if job else {}


def is_begun_by_job(path: Path, config: Mapping[str, Any]) -> bool:
    """Whether the job of this process has begun a run of this configuration in a directory."""
    job = job_entry()
    if not job:
        return False
    try:
        found = tomllib.loads((path / CONFIG).read_text())
        made_with = found.pop(MADE_WITH)
    except (OSError, ValueError, KeyError):
        return False
    given = tomllib.loads(tomli_w.dumps({"format": FORMAT, **config}))
    return bool(found == given and made_with.get(_JOB) == job[_JOB])


def find_begun(folder: Path, config: Mapping[str, Any]) -> Path | None:
    """Where in a folder the job of this process has begun a run of this configuration; None if nowhere."""
    places = sorted(folder.iterdir(), reverse=True) if job_entry() and folder.is_dir() else ()
    return next((path for path in places if is_begun_by_job(path, config)), None)
