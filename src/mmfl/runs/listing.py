"""Summaries of runs: how they are doing, from their configurations, states and last records.

Nothing here needs torch. Only the last records are parsed, since there may be many; the others are only checked for
being there.
"""

import json
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from mmfl.errors import UserError
from mmfl.runs import status as state
from mmfl.runs.files import last_lines
from mmfl.runs.layout import CONFIG, ENDED, METRICS, STATE, format_problem, is_sweep
from mmfl.runs.records import Scan, parse
from mmfl.runs.records import read as read_records
from mmfl.runs.status import Condition, RunStatus

_BLOCKS = (1 << 15, 1 << 18, 1 << 21, 1 << 24)  # bytes before the end in which to look for the last tested round


@dataclass(frozen=True)
class ConfigSummary:
    """What a configuration says about a run, and the whole of it; empty where it is not that of a run."""

    methods: Sequence[str] = ()
    tasks: Sequence[str] = ()
    seeds: int = 0
    rounds: int = 0
    config: dict[str, Any] = field(default_factory=dict)

    @property
    def replicas(self) -> int:
        """How many pairs of method and seed there are."""
        return len(self.methods) * self.seeds


@dataclass(frozen=True)
class Latest:
    """What the last records say. `means` has the mean over tasks when last tested, by method, averaged over seeds."""

    round: int = 0
    methods: Sequence[str] = ()
    tasks: Sequence[str] = ()
    clients: int | None = None
    means: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class RunSummary:
    """A run as it is now.

    A run is `unreadable` if its files are damaged, or are not those of a run. `damage` says what is wrong with its
    records, `notes` what could be repaired. `version` changes with the records.
    """

    id: str
    condition: Condition | Literal["unreadable"]
    reason: str
    methods: Sequence[str]
    tasks: Sequence[str]
    seeds: int
    clients: int | None
    round: int
    rounds: int
    means: Mapping[str, float]
    began: float
    updated: float
    version: str
    damage: str
    notes: Sequence[str]
    config: dict[str, Any] = field(repr=False)


def list_runs(folder: Path) -> list[RunSummary]:
    """The runs in a folder and the parts of its sweeps, by name; or the folder itself where it is a run."""
    if not folder.is_dir():
        problem = f"'{folder}' is a file" if folder.exists() else f"there is no folder '{folder}'"
        raise UserError(f"{problem}; expected one that holds run directories.")
    inside = sorted(folder.iterdir())
    places = [folder, *inside, *(part for path in inside if is_sweep(path) for part in sorted(path.iterdir()))]
    return [WatchedRun(str(place), place).look() for place in places if (place / CONFIG).is_file()]


class WatchedRun:
    """A run that is summarised repeatedly; files that have not changed are not read again."""

    def __init__(self, id: str, path: Path):
        self.id, self.path = id, path
        self.stamps: dict[str, tuple[int, int, int] | None] = {}  # which change whenever a file does
        self.settings = ConfigSummary()
        self.latest = Latest()
        self.state: RunStatus | None = None
        self.scan = Scan(path / METRICS)
        self.checked: tuple[Any, ...] = ()
        self.damage, self.notes = "", list[str]()

    def look(self) -> RunSummary:
        """The run as it is now."""
        if self._changed(CONFIG):
            self.settings = read_config_summary(self.path / CONFIG)
        if self._changed(STATE) or (self.state and self.state.condition == "running"):
            self.state = state.read(self.path)
        if self._changed(METRICS):
            self.latest = read_latest(self.path / METRICS)
            self.scan.look()
        settings, latest, now = self.settings, self.latest, self._state()
        self._check_records()
        damaged = format_problem(settings.config) if settings.config else f"{CONFIG} is not that of a run"
        damaged = damaged or (self.damage and f"{METRICS} is damaged: {self.damage}")
        return RunSummary(
            self.id,
            "unreadable" if damaged else now.condition,
            damaged or now.reason,
            latest.methods or settings.methods,
            settings.tasks or latest.tasks,
            settings.seeds,
            latest.clients,
            latest.round,
            now.rounds,
            latest.means,
            now.began,
            now.updated,
            "-".join(map(str, self.stamps[METRICS] or ())),
            self.damage,
            self.notes,
            settings.config,
        )

    def _changed(self, name: str) -> bool:
        before, stamp = self.stamps.get(name, ()), None
        with suppress(OSError):
            found = (self.path / name).stat()
            stamp = (found.st_mtime_ns, found.st_size, found.st_ino)
        self.stamps[name] = stamp
        return stamp != before

    def _check_records(self) -> None:
        """Checks the records, which are read in full only if something is wrong with them."""
        done = self.state.done if self.state else 0
        checked = (self.stamps[METRICS], done, self.settings.replicas)
        if checked == self.checked:
            return
        self.checked, self.damage, self.notes = checked, "", []
        if self.scan.complete(done, self.settings.replicas):
            return
        try:
            found = read_records(self.path / METRICS)
        except OSError as error:
            self.damage = str(error.strerror)
            return
        self.damage = found.problem(done, replicas=self.settings.replicas)
        self.notes = [] if self.damage else found.notes()

    def _state(self) -> RunStatus:
        """What the state file says; without one, what the other files tell."""
        if self.state and self.state.condition != "lost":
            return self.state
        ended = _read_end(self.path)
        if self.state and not ended:
            return self.state
        rounds, round = self.settings.rounds, self.latest.round
        condition, reason = ended or ("finished" if 0 < rounds <= round else "stopped", "")
        began, updated = ((self.stamps[name] or (0, 0, 0))[0] / 1e9 for name in (CONFIG, METRICS))
        return RunStatus(condition, round, rounds, began, updated or began, 0, "", reason=reason)


def read_config_summary(path: Path) -> ConfigSummary:
    """Summary of the configuration of a simulation, a run from Python or a deployment; empty if it is none of these."""
    try:
        config = tomllib.loads(path.read_text())
        known = config.get("settings", config)
        seeds = known.get("seeds", 1)
        return ConfigSummary(
            [_name(method) for method in known.get("methods") or [known["method"]]],
            [_name(task) for task in known.get("tasks", ())],
            seeds if isinstance(seeds, int) else len(seeds),
            int(known["rounds"]),
            config,
        )
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return ConfigSummary()


def read_latest(path: Path) -> Latest:
    """What the records at the end of a file say, back to a round that was tested."""
    for block in _BLOCKS:
        lines, whole = last_lines(path, block)
        records = [record for record in map(parse, lines) if record]
        tested = [(record, record.mean) for record in records if record.mean is not None]
        since = tested[-1][0].round if tested else 0
        if whole or (tested and records[0].round < since):
            break
    if not records:
        return Latest()
    means: dict[str, list[float]] = {}
    for record, mean in tested:
        if record.round == since:
            means.setdefault(record.method, []).append(float(mean))
    last = records[-1]
    return Latest(
        last.round,
        list(dict.fromkeys(record.method for record in records if record.round >= since)),
        list(last.tasks),
        last.clients,
        {method: sum(values) / len(values) for method, values in means.items()},
    )


def _read_end(directory: Path) -> tuple[Condition, str] | None:
    """How a deployment ended, as its server wrote it; it may have ended before its first round."""
    try:
        end = json.loads((directory / ENDED).read_bytes())
        condition = next(each for each in get_args(Condition) if each == end["state"])
        return condition, str(end["message"])
    except (OSError, ValueError, KeyError, TypeError, StopIteration):
        return None


def _name(value: str | Mapping[str, Any]) -> str:
    """A method or a task: its name, or a table with it."""
    return value if isinstance(value, str) else str(value.get("name", value.get("method")))
