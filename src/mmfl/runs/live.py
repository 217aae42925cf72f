"""The live state of a deployment, in `live.json` of its run directory: nodes, stage of the round, messages under way.

The server writes it at most once a second. `mmfl status`, the dashboard and the metrics read it; a run does not depend
on it.
"""

import json
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from mmfl.runs.files import atomically
from mmfl.runs.layout import LIVE

MAX_NODES = 500  # in the file; late ones come first
MAX_LEFT = 20
_MAX_CLIENT_TEXT = 60  # characters
_SECONDS_BETWEEN_WRITES = 1.0
_ROUNDS_AVERAGED = 20  # for the pace


@dataclass(frozen=True)
class LiveNode:
    """A connected node. `clients` is a text such as 0-3, 7; times are in seconds since 1970, 0 where there is none.

    A node `is_late` if a message to it is unanswered although nobody waits any more.
    """

    node: str
    name: str
    clients: str
    since: float
    last_reply: float
    is_late: bool


@dataclass(frozen=True)
class LostNode:
    """A node that has left, and when that was noticed."""

    node: str
    name: str
    clients: str
    left: float


@dataclass(frozen=True)
class LiveState:
    """How a deployment is doing.

    `round` is under way, in `stage` since `stage_began`; `messages_out` are unanswered, of `messages_sent` in this
    stage. `connected` of `clients` clients are there. `round_seconds` is the mean over the last rounds, 0 before there
    are two. `events` counts events by kind since the server was started.
    """

    updated: float = 0.0
    round: int = 0
    rounds: int = 0
    stage: str = ""
    stage_began: float = 0.0
    messages_out: int = 0
    messages_sent: int = 0
    clients: int = 0
    connected: int = 0
    rate: float = 0.0
    tasks: tuple[str, ...] = ()
    round_seconds: float = 0.0
    last_round_seconds: float = 0.0
    events: Mapping[str, int] = field(default_factory=dict)
    nodes: tuple[LiveNode, ...] = ()
    nodes_not_listed: int = 0
    left: tuple[LostNode, ...] = ()

    @property
    def rounds_per_hour(self) -> float:
        """The pace of the last rounds; 0 if it is not known yet."""
        return 3600 / self.round_seconds if self.round_seconds else 0.0

    @property
    def seconds_left(self) -> float | None:
        """Until the last round ends, at the present pace; None if it is not known yet."""
        return (self.rounds - self.round + 1) * self.round_seconds if self.round_seconds else None

    def to_json(self) -> dict[str, Any]:
        """All of it, with the pace, as JSON values."""
        return {**asdict(self), "rounds_per_hour": self.rounds_per_hour, "seconds_left": self.seconds_left}


def read_live(directory: Path) -> LiveState | None:
    """The live state of a deployment as last written; None where there is none, or none that can be read."""
    try:
        found = json.loads((directory / LIVE).read_bytes())
        nodes = tuple(LiveNode(**each) for each in found.pop("nodes"))
        left = tuple(LostNode(**each) for each in found.pop("left"))
        return LiveState(**{**found, "tasks": tuple(found["tasks"])}, nodes=nodes, left=left)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


class LiveStateWriter:
    """Follows a deployment and writes its live state; without a directory it writes nothing."""

    def __init__(self, directory: Path | None = None, clock: Callable[[], float] = time.time):
        self.directory, self.clock = directory, clock
        self.known: dict[str, Any] = {}  # fields of the state that do not follow from others
        self.replied: dict[int, float] = {}
        self.since: dict[int, float] = {}
        self.shown: dict[int, tuple[str, str]] = {}  # name and clients of the nodes that were connected last
        self.left: list[LostNode] = []
        self.round_starts: list[float] = []
        self.written = 0.0

    def begin_round(self, round: int) -> None:
        """A round begins."""
        self.known["round"] = round
        self.round_starts = [*self.round_starts, self.clock()][-_ROUNDS_AVERAGED - 1 :]

    def break_off_pace(self) -> None:
        """The run has waited for something else than a round, which must not count as one."""
        self.round_starts = []

    def begin_stage(self, stage: str, messages: int = 0) -> None:
        """A part of a round begins, with this number of messages; it is written with the next update."""
        self.known |= {
            "stage": stage,
            "stage_began": self.clock(),
            "messages_sent": messages,
            "messages_out": messages,
        }
        self.written = 0.0

    def note_reply(self, node: int) -> None:
        """A node has replied."""
        self.replied[node] = self.clock()

    def update(
        self,
        nodes: Mapping[int, tuple[str, Collection[int]]],
        late: Collection[int],
        messages_out: int,
        **known: Any,
    ) -> None:
        """Writes the state, if it is time to: the connected nodes with name and clients, and which of them are late."""
        now = self.clock()
        if self.directory is None or now - self.written < _SECONDS_BETWEEN_WRITES:
            return
        self.written = now
        for number in set(self.shown) - set(nodes):
            name, clients = self.shown.pop(number)
            self.left = [*self.left, LostNode(str(number), name, clients, now)][-MAX_LEFT:]
            self.since.pop(number, None)
        self.shown = {number: (name, describe_clients(clients)) for number, (name, clients) in nodes.items()}
        rows = sorted((number not in late, number) for number in nodes)
        starts = self.round_starts
        lengths = [after - before for before, after in pairwise(starts)]
        state = LiveState(
            **{**self.known, **known, "messages_out": messages_out},
            updated=now,
            round_seconds=sum(lengths) / len(lengths) if lengths else 0.0,
            last_round_seconds=lengths[-1] if lengths else 0.0,
            nodes=tuple(self._node(number, now, number in late) for _, number in rows[:MAX_NODES]),
            nodes_not_listed=max(0, len(rows) - MAX_NODES),
            left=tuple(self.left),
        )
        with suppress(OSError), atomically(self.directory / LIVE, on_disk=False) as file:
            file.write(json.dumps(asdict(state)).encode())

    def _node(self, number: int, now: float, is_late: bool) -> LiveNode:
        name, clients = self.shown[number]
        since = self.since.setdefault(number, now)
        return LiveNode(str(number), name, clients, since, self.replied.get(number, 0.0), is_late)


def describe_clients(clients: Collection[int]) -> str:
    """Numbers as ranges, cut where there are too many.

    >>> describe_clients([4, 0, 1, 2, 9])
    '0-2, 4, 9'
    """
    ordered, parts, begin = sorted(clients), [], 0
    for end in range(1, len(ordered) + 1):
        if end == len(ordered) or ordered[end] != ordered[end - 1] + 1:
            first, last = ordered[begin], ordered[end - 1]
            parts.append(str(first) if first == last else f"{first}-{last}")
            begin = end
    text = ", ".join(parts)
    return text if len(text) <= _MAX_CLIENT_TEXT else f"{text[: _MAX_CLIENT_TEXT - 4].rpartition(',')[0]}, ..."
