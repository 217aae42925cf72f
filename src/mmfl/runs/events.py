"""The events of a deployment, as its server writes them to `events.jsonl`: who joined, left, was late or refused."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mmfl.runs.files import last_lines, previous
from mmfl.runs.layout import EVENTS
from mmfl.runs.status import timestamp

_MAX_BYTES = 1 << 18  # from the end of the file


@dataclass(frozen=True)
class Event:
    """What happened in a round of a deployment, with the node and the client that it happened to, if any."""

    time: float
    round: int
    kind: str
    node: str = ""
    client: str = ""
    detail: str = ""

    def __str__(self) -> str:
        where = "".join(f", {name} {value}" for name, value in (("node", self.node), ("client", self.client)) if value)
        return f"{timestamp(self.time)}  round {self.round}{where}: {self.kind}{self.detail and f': {self.detail}'}"


def read_events(directory: Path) -> list[Event]:
    """The last events of a run; lines that cannot be read are left out."""
    path = directory / EVENTS
    lines = last_lines(path, _MAX_BYTES)[0]
    return list(_parse([*last_lines(previous(path), _MAX_BYTES)[0], *lines]))


def _parse(lines: list[bytes]) -> Iterator[Event]:
    for line in lines:
        try:
            found = json.loads(line)
            texts = {name: str(found.get(name, "")) for name in ("node", "client", "detail")}
            yield Event(float(found["time"]), int(found["round"]), str(found["kind"]), **texts)
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
            continue
