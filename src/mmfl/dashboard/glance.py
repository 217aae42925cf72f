"""A run at a glance: what the list of runs shows of it, read from its configuration, its state and its last rounds."""

import json
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from mmfl import state
from mmfl.growing import last_lines
from mmfl.state import Condition, State
from mmfl.training import Record

METRICS, CONFIG, ENDED = "metrics.jsonl", "config.toml", "ended.json"
_BLOCK, _FURTHEST = 1 << 15, 1 << 24  # bytes before the end in which the last round that was tested is looked for
Stamp = tuple[int, int, int]


@dataclass(frozen=True)
class Settings:
    """What a configuration says about a run, and the whole of it."""

    methods: Sequence[str] = ()
    tasks: Sequence[str] = ()
    seeds: int = 1
    rounds: int = 0
    config: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Latest:
    """What the last records say: `metrics` has the mean over tasks by method, averaged over seeds, when last tested."""

    round: int = 0
    tasks: Sequence[str] = ()
    clients: int | None = None
    metrics: Mapping[str, float] | None = None


@dataclass(frozen=True)
class Glance:
    """A run as it is now; `version` changes with its records."""

    id: str
    settings: Settings
    latest: Latest
    state: State
    version: str

    @property
    def tasks(self) -> Sequence[str]:
        """The names of its tasks, of those that are known."""
        return self.settings.tasks or self.latest.tasks

    def plain(self) -> dict[str, Any]:
        """What the page is told."""
        return {
            "id": self.id,
            "condition": self.state.condition,
            "reason": self.state.reason,
            "host": self.state.host,
            "methods": self.settings.methods or list(self.latest.metrics or ()),
            "seeds": self.settings.seeds,
            "tasks": self.tasks,
            "clients": self.latest.clients,
            "round": self.latest.round,
            "rounds": self.state.rounds,
            "metrics": self.latest.metrics or {},
            "began": self.state.began,
            "updated": self.state.updated,
            "version": self.version,
        }


class Watched:
    """A run that is looked at again and again; files that have not changed are not read again."""

    def __init__(self, id: str, path: Path):
        self.id, self.path = id, path
        self.stamps: dict[str, Stamp | None] = {}
        self.settings, self.latest = Settings(), Latest()
        self.state: State | None = None

    def look(self) -> Glance:
        """The run as it is now."""
        if self._changed(CONFIG):
            self.settings = read_settings(self.path / CONFIG)
        if self._changed(state.STATE) or (self.state and self.state.condition == "running"):
            self.state = state.read(self.path)
        if self._changed(METRICS):
            self.latest = read_latest(self.path / METRICS)
        version = "-".join(map(str, self.stamps[METRICS] or ()))
        return Glance(self.id, self.settings, self.latest, self._state(), version)

    def _changed(self, name: str) -> bool:
        before = self.stamps.get(name, ())
        self.stamps[name] = _stamp(self.path / name)
        return self.stamps[name] != before

    def _state(self) -> State:
        """What the state file says; of runs without one, what can be told from the rest."""
        if self.state and self.state.condition != "lost":
            return self.state
        ended = _ended(self.path)
        if self.state and not ended:
            return self.state
        complete = 0 < self.settings.rounds <= self.latest.round
        condition, reason = ended or ("finished" if complete else "stopped", "")
        began, updated = (self.stamps[name] or (0, 0, 0) for name in (CONFIG, METRICS))
        return State(
            condition, self.latest.round, self.settings.rounds, began[0] / 1e9, updated[0] / 1e9, 0, "", reason=reason
        )


def read_settings(path: Path) -> Settings:
    """What a configuration says, of a simulation, of a run from Python or of a deployment; nothing if it is none."""
    try:
        whole = tomllib.loads(path.read_text())
    except (OSError, ValueError):
        return Settings()
    known = whole.get("settings", whole)
    known = known if isinstance(known, dict) else {}
    seeds, rounds = known.get("seeds"), known.get("rounds")
    return Settings(
        _names(known.get("methods", known.get("method", []))),
        _names(known.get("tasks", [])),
        len(seeds) if isinstance(seeds, list) else seeds if isinstance(seeds, int) else 1,
        rounds if isinstance(rounds, int) else 0,
        whole,
    )


def read_latest(path: Path) -> Latest:
    """What the records at the end of a file say; read from as far back as a round that was tested, whole."""
    block = _BLOCK
    while True:
        lines, whole = last_lines(path, block)
        records = parsed(lines)
        tested = [record for record in records if isinstance(record.get("mean"), int | float)]
        if whole or block >= _FURTHEST or (tested and records[0]["round"] < tested[-1]["round"]):
            break
        block *= 8
    if not records:
        return Latest()
    means: dict[str, list[float]] = {}
    for record in tested:
        if record["round"] == tested[-1]["round"]:
            means.setdefault(str(record.get("method")), []).append(float(record["mean"]))
    metrics = {method: sum(values) / len(values) for method, values in means.items()}
    return Latest(records[-1]["round"], list(records[-1].get("tasks", ())), records[-1].get("clients"), metrics)


def parsed(lines: Iterable[bytes]) -> list[Record]:
    """The records that lines hold; what is none is left out."""
    records = []
    for line in lines:
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict) and isinstance(record.get("round"), int):
            records.append(record)
    return records


def _stamp(path: Path) -> Stamp | None:
    """Differs once a file has changed; None where there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _ended(directory: Path) -> tuple[Condition, str] | None:
    """How a deployment says that it ended, which it also does when it ends before its first round."""
    try:
        told = json.loads((directory / ENDED).read_bytes())
        condition = next(each for each in get_args(Condition) if each == told["state"])
        return condition, str(told["message"])
    except (OSError, ValueError, KeyError, TypeError, StopIteration):
        return None


def _names(values: Any) -> list[str]:
    """Methods or tasks by name; each is a name, or a table with one."""
    several = values if isinstance(values, list) else [values]
    return [str(value.get("name", "?")) if isinstance(value, dict) else str(value) for value in several]
