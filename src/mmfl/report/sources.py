"""Runs of several directories: loaded, compared as one, and checked for differences in their settings."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmfl.errors import UserError, shorten
from mmfl.runs.directory import RunDirectory
from mmfl.runs.layout import MADE_WITH
from mmfl.runs.results import Comparison, Run, load

# Runs may differ in these and still be one experiment.
_FREE = {"method", "methods", "seed", "seeds", "format", MADE_WITH}
_MOST = 12  # settings that a note names
_LONGEST = 60  # characters of a value


@dataclass(frozen=True, eq=False)
class Source:
    """The runs of a directory, the name that tells them from others, and their configuration."""

    name: str
    config: dict[str, Any]
    runs: Comparison


def load_sources(paths: Sequence[Path]) -> list[Source]:
    """The runs of all directories, which must have the same tasks. A directory that is given twice counts once."""
    paths = list({path.resolve(): path for path in paths}.values())
    names = [path.resolve().name for path in paths]
    if len(set(names)) < len(names):
        names = [str(path) for path in paths]
    found = [
        Source(name, RunDirectory.open(path).config(), load(path)) for name, path in zip(names, paths, strict=True)
    ]
    first = found[0]
    for source in found:
        if set(source.runs.tasks) != set(first.runs.tasks):
            tasks, expected = (", ".join(each.runs.tasks) for each in (source, first))
            raise UserError(
                f"run '{source.name}' has the tasks {tasks}, but '{first.name}' has {expected}; expected the same."
            )
    return found


def find_repeated(paths: Sequence[Path]) -> list[Path]:
    """Directories that were given before, under whatever name."""
    resolved = [path.resolve() for path in paths]
    return [path for n, path in enumerate(paths) if resolved[n] in resolved[:n]]


def combine_sources(sources: Sequence[Source]) -> Comparison:
    """All runs as one comparison.

    Seeds of a method may be spread over sources that differ in nothing else. If a method is in several otherwise, all
    methods are named with their source, so that nothing is averaged that does not belong together. A run is measured
    by the full participation of its own source, or of another one of the same experiment.
    """
    tasks = list(dict.fromkeys(task for source in sources for task in source.runs.tasks))
    plain = all(_is_one(method, sources) for source in sources for method in source.runs.methods)

    def name(method: str, source: Source) -> str:
        return method if plain else f"{method} ({source.name})"

    runs = []
    for source in sources:
        alike = [each for each in sources if _experiment(each.config) == _experiment(source.config)]
        holders = [each for each in (source, *alike) if "full" in each.runs.methods]
        full = name("full", holders[0]) if holders else ""
        runs += [
            Run(run.records, name(run.method, source), run.seed, tasks, run.clients, full=full, tested=run.tested)
            for run in source.runs
        ]
    return Comparison(runs)


DIFFERENCES_NOTE = (
    "These runs differ in more than methods and seeds, so differences between them are not those of methods alone"
)


def list_differences(sources: Sequence[Source]) -> list[str]:
    """Where runs differ that are compared: rounds that were trained, and settings other than methods and seeds."""
    trained = {
        source.name: str(max((run.records[-1].round for run in source.runs if run.records), default=0))
        for source in sources
    }
    settings = {source.name: dict(_flat(_settings(source.config))) for source in sources}
    if all(settings[name].get("rounds") == rounds for name, rounds in trained.items()):
        for table in settings.values():
            table.pop("rounds")  # says the same
    keys = dict.fromkeys(key for table in settings.values() for key in table)
    values = {"rounds trained": trained}
    values |= {key: {name: table.get(key, "not set") for name, table in settings.items()} for key in keys}
    differing = [f"{key}: {_by_value(table)}" for key, table in values.items() if len(set(table.values())) > 1]
    more = len(differing) - _MOST
    return [*differing[:_MOST], *([f"and {more} more"] if more > 0 else [])]


def note(sources: Sequence[Source]) -> str:
    """Where runs differ, as a sentence; empty where they do not."""
    differing = list_differences(sources)
    return f"{DIFFERENCES_NOTE}: {'; '.join(differing)}." if differing else ""


def _is_one(method: str, sources: Sequence[Source]) -> bool:
    """Whether all runs of a method are seeds of one experiment."""
    holders = [source for source in sources if method in source.runs.methods]
    seeds = [run.seed for source in holders for run in source.runs.of(method)]
    return len(set(seeds)) == len(seeds) and len({_experiment(source.config) for source in holders}) == 1


def _experiment(config: dict[str, Any]) -> str:
    return json.dumps(_settings(config), sort_keys=True, default=str)


def _settings(config: dict[str, Any]) -> dict[str, Any]:
    """What makes an experiment: all settings but methods and seeds."""
    return {key: value for key, value in config.get("settings", config).items() if key not in _FREE}


def _flat(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Settings by their path, as texts; tables in a list go by their name.

    >>> list(_flat({"rate": 0.1, "tasks": [{"name": "a", "lr": 0.5}]}))
    [('rate', '0.1'), ('tasks.a.lr', '0.5')]
    """
    if isinstance(value, list) and value and all(isinstance(each, dict) and "name" in each for each in value):
        value = {each["name"]: {key: each[key] for key in each if key != "name"} for each in value}
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _flat(inner, f"{path}.{key}" if path else str(key))
    else:
        yield path, str(value)


def _by_value(values: Mapping[str, str]) -> str:
    """Values with those that have them.

    >>> _by_value({"one": "15", "second": "2", "third": "15"})
    '15 (one, third), 2 (second)'
    """
    names = {value: ", ".join(name for name in values if values[name] == value) for value in values.values()}
    return ", ".join(f"{shorten(value, _LONGEST)} ({name})" for value, name in names.items())
