"""The directory of a sweep: `sweep.toml`, which names the grid, and a run directory for each part."""

import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path
from typing import Any

import tomli_w

from mmfl.errors import UserError, check_name, shorten
from mmfl.runs.directory import RunDirectory
from mmfl.runs.files import write_atomically
from mmfl.runs.grid import Grid, text_of
from mmfl.runs.layout import CONFIG, FORMAT, SWEEP, format_problem, is_sweep
from mmfl.runs.listing import read_config_summary
from mmfl.runs.results import Run, load
from mmfl.runs.status import read as read_state

MAX_LOCKSTEP = 64
"""Runs, methods x seeds, that advance in lockstep; with more, memory grows and time is hardly saved."""


@dataclass(frozen=True)
class SweepPart:
    """Runs that train in lockstep, in a run directory of this name: every one of `labels` with every seed."""

    name: str
    labels: Sequence[str]
    new: bool = True
    finished: bool = False


@dataclass(frozen=True, eq=False)
class SweepFile:
    """What `sweep.toml` says: the grid, the methods, and all other settings, of `source` "python" or the command line.
    `lower_is_better` are the tasks that are measured by an error."""

    grid: Grid
    methods: Sequence[str]
    settings: Mapping[str, Any]
    source: str = ""
    lower_is_better: Sequence[str] = ()

    def to_toml(self) -> dict[str, Any]:
        """As TOML can hold it; values that it cannot hold by their names."""
        grid = {key: [_plain(value) for value in values] for key, values in self.grid.items()}
        return {
            "format": FORMAT,
            **({"source": self.source} if self.source else {}),
            "methods": list(self.methods),
            "lower_is_better": list(self.lower_is_better),
            "grid": grid,
            "settings": {key: _plain(value) for key, value in self.settings.items()},
        }


class SweepDirectory:
    """A sweep on disk."""

    def __init__(self, path: Path):
        self.path = path

    def read(self) -> SweepFile:
        """The sweep's file."""
        check_name("sweep directory", str(self.path))
        try:
            values = tomllib.loads((self.path / SWEEP).read_text())
            if problem := format_problem(values):
                raise UserError(f"sweep '{self.path}' cannot be read: {problem}.")
            return SweepFile(**{key: value for key, value in values.items() if key != "format"})
        except (FileNotFoundError, NotADirectoryError):
            raise UserError(f"'{shorten(self.path)}' is not the directory of a sweep: it has no {SWEEP}.") from None
        except (OSError, ValueError, TypeError) as error:
            raise UserError(f"{shorten(self.path / SWEEP)} cannot be read: {error}.") from None

    def write(self, file: SweepFile) -> None:
        """Writes the sweep's file, if it may be written here."""
        self.check(file)
        try:
            write_atomically(self.path / SWEEP, tomli_w.dumps(file.to_toml()).encode())
        except OSError as error:
            raise UserError(f"sweep directory '{self.path}' cannot be written: {error.strerror}.") from None

    def check(self, file: SweepFile) -> None:
        """Raises an error if the directory holds something else, or another sweep. One with fewer values or methods
        is the same."""
        if is_sweep(self.path):
            self._check_extends(file)
        else:
            RunDirectory.refuse_used(self.path)

    def _check_extends(self, file: SweepFile) -> None:
        known, now = (tomllib.loads(tomli_w.dumps(each.to_toml())) for each in (self.read(), file))
        for name, before, after in _settings(known, now):
            if before != after:
                there, here = (shorten(text_of(value), 40) for value in (before, after))
                problem = f"'{name}' is {there} there, and {here} here"
                raise UserError(f"sweep '{self.path}' has other settings: {problem}; choose another directory.")
        lists = {"methods": (known["methods"], now["methods"])}
        lists |= {key: (known["grid"].get(key), now["grid"].get(key)) for key in {**known["grid"], **now["grid"]}}
        if list(known["grid"]) != list(now["grid"]) and set(known["grid"]) == set(now["grid"]):
            order = ", ".join(known["grid"])
            raise UserError(f"sweep '{self.path}' has its keys in the order {order}; expected the same.")
        for key, (had, has) in lists.items():
            if had is None or has is None or not {*map(text_of, had)} <= {*map(text_of, has)}:
                values = "no values" if had is None else ", ".join(map(text_of, had))
                raise UserError(
                    f"sweep '{self.path}' has {values} for '{key}'; values can only be added, and only to keys that it "
                    "has: choose another directory."
                )

    def parts(self) -> list[SweepPart]:
        """The parts that have begun, in their order."""
        found = []
        for path in sorted(self.path.glob("part-*"), key=_numbers):
            if (path / CONFIG).is_file():
                state = read_state(path)
                finished = state is not None and state.condition == "finished"
                found.append(SweepPart(path.name, read_config_summary(path / CONFIG).methods, False, finished))
        return found

    def failure_of(self, part: SweepPart) -> str:
        """Why a part has failed; empty where it has not."""
        state = read_state(self.path / part.name)
        return state.reason if state and state.condition == "failed" else ""

    def runs_of(self, part: SweepPart) -> list[Run]:
        """The runs of a part, from their records."""
        return load(self.path / part.name).runs


def assign_parts(trials: Sequence[tuple[str, Mapping[str, Any], int]], place: SweepDirectory | None) -> list[SweepPart]:
    """The parts of a sweep, first those that have begun. A trial is its label, the settings that it must share with
    those in lockstep with it, and its number of runs.

    A part is given up once one of its trials has begun alone, because they failed together: all of them train alone.
    """
    begun = place.parts() if place else []
    holder = {label: part for part in begun for label in part.labels}
    kept = [part for part in begun if all(holder[label] is part for label in part.labels)]
    alone = [
        SweepPart(name, [label])
        for part in begun
        if part not in kept
        for name, label in zip(names_alone(part), part.labels, strict=True)
        if holder[label] is part
    ]
    groups: dict[str, list[list[str]]] = {}
    for label, common, runs in trials:
        if label in holder:
            continue
        group = groups.setdefault(json.dumps(common, sort_keys=True, default=str), [[]])
        if group[-1] and (len(group[-1]) + 1) * runs > MAX_LOCKSTEP:
            group.append([])
        group[-1].append(label)
    number = max([_numbers(Path(part.name))[0] for part in begun], default=0)
    fresh = [labels for group in groups.values() for labels in group]
    return [*kept, *alone, *(SweepPart(f"part-{n}", labels) for n, labels in enumerate(fresh, number + 1))]


def names_alone(part: SweepPart) -> list[str]:
    """The names of the parts in which the trials of a part train alone.

    >>> names_alone(SweepPart("part-2", ["random (rate=0.1)", "random (rate=0.2)"]))
    ['part-2-1', 'part-2-2']
    """
    return [f"{part.name}-{n}" for n in range(1, len(part.labels) + 1)]


def _numbers(path: Path) -> list[int]:
    return [int(number) for number in path.name.split("-")[1:] if number.isdigit()] or [0]


def _plain(value: Any) -> Any:
    """A value as TOML can hold it."""
    plain = value.item() if hasattr(value, "item") else value
    if is_dataclass(plain) and not isinstance(plain, type):
        plain = {key: each for key, each in asdict(plain).items() if each is not None}
    try:
        tomli_w.dumps({"value": plain})
    except TypeError:
        return text_of(value)
    return plain


def _settings(known: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """What two sweeps say of each setting, apart from methods."""
    yield "source", known.get("source", "the command line"), now.get("source", "the command line")
    before, after = known["settings"], now["settings"]
    for key in {**before, **after}:
        if key != "methods":
            yield key, before.get(key, "not set"), after.get(key, "not set")
