"""The files of a run directory, and the version of their format. Nothing here needs torch."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

FORMAT = 1
"""Version of configurations and run directories, `format` in `config.toml`; one without it counts as version 1."""

CONFIG = "config.toml"
"""The configuration the run was started with, complete, with what it was made with."""
MADE_WITH = "made_with"
"""The table of `config.toml` that is no part of the configuration: versions, device and, with `torchrun`, its job."""
SWEEP = "sweep.toml"
"""In the directory of a sweep: its grid and settings. Beside it is a run directory for each of its parts."""
METRICS = "metrics.jsonl"
"""A line of JSON per method, seed and round."""
TESTED = "tested.jsonl"
"""Each client's metric and confusion matrices in the last tested round, a line of JSON per method and seed."""
CHECKPOINTS = "checkpoint"
"""Folder of the last checkpoints."""
STATE = "state.json"
"""How the run is doing: round, condition and the process that works on it."""
LOG = "log.txt"
"""What happened, a line each, with its time."""
MAX_LOG_BYTES = 10 << 20
"""Of the log, and of the events of a deployment; what is older is in a second file, `.1`, and then gone."""
LOCK = "lock"
"""The process that may write to the directory, while it does."""
REPORT_PAGE = "report.html"
"""The report as one page."""
REPORT_PICTURES = "report"
"""Folder of the report's pictures, where plotly is not installed."""
EVENTS = "events.jsonl"
"""What happened to the nodes of a deployment, a line of JSON per event."""
PAUSE = "pause"
"""While the file is there, the server of a deployment begins no round."""
CONTROL = "control"
"""Folder of changes that were asked for in a running deployment, a file each, until its server takes them."""
CHANGES = "changes.jsonl"
"""The changes that were made in a running deployment, a line of JSON each, with the round after which."""
ADDED_TASKS = "tasks"
"""Folder of the modules of tasks that were added to a running deployment."""
LIVE = "live.json"
"""The live state of a deployment: nodes, stage of the round, messages under way."""
ENDED = "ended.json"
"""How a deployment ended, written by its server."""
STOP = "stop"
"""Asks the server of a deployment to stop after the round under way, once the file is there."""


def is_sweep(directory: Path) -> bool:
    """Whether a directory is that of a sweep; not where it cannot be read, as opening it will say."""
    try:
        return (directory / SWEEP).is_file()
    except (OSError, ValueError):
        return False


def tracker_notes(tracker: str) -> str:
    """The file in which a tracker keeps the ids of its runs, to find them again.

    >>> tracker_notes("wandb")
    'wandb.json'
    """
    return f"{tracker}.json"


def format_problem(config: Mapping[str, Any]) -> str:
    """Why a configuration or run directory cannot be read, going by its version; empty where it can.

    >>> format_problem({"rounds": 5}), format_problem({"format": 9})
    ('', 'its format is version 9; expected at most 1, the newest that this version of mmfl reads')
    """
    version = config.get("format", 1)
    if not isinstance(version, int) or version <= FORMAT:
        return ""
    return f"its format is version {version}; expected at most {FORMAT}, the newest that this version of mmfl reads"
