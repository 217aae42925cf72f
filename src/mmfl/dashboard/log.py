"""The log of a run as lines: its own, and what happened to the nodes of a deployment, in the order of time."""

import json
from collections.abc import Iterator
from pathlib import Path

from mmfl.runs.files import last_lines
from mmfl.runs.layout import EVENTS, LOG
from mmfl.runs.status import timestamp

_MOST = 1 << 18  # bytes from the end of a file


def lines(directory: Path) -> list[str]:
    """What happened, a line each, with its time first."""
    return sorted([*_end(directory / LOG), *_events(directory / EVENTS)], key=lambda line: line[:19])


def _events(path: Path) -> Iterator[str]:
    for line in _end(path):
        try:
            event = json.loads(line)
            where = "".join(f", {kind} {event[kind]}" for kind in ("node", "client") if kind in event)
            detail = f": {event['detail']}" if "detail" in event else ""
            yield f"{timestamp(event['time'])}  round {event['round']}{where}: {event['kind']}{detail}"
        except (ValueError, TypeError, KeyError):
            continue


def _end(path: Path) -> list[str]:
    return [line.decode(errors="replace") for line in last_lines(path, _MOST)[0]]
