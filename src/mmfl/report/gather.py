"""Runs from several places, side by side."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmfl.errors import UserError
from mmfl.run import Comparison, Run, RunDirectory, load

_FREE = {
    "method",
    "methods",
    "seed",
    "seeds",
    "made_with",
}  # settings in which runs may differ and still be one experiment


@dataclass(frozen=True, eq=False)
class Source:
    """Runs with what they are called beside others, and the configuration that they were started with."""

    name: str
    config: dict[str, Any]
    runs: Comparison


def gather(paths: Sequence[Path]) -> list[Source]:
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
            mine, theirs = (", ".join(each.runs.tasks) for each in (source, first))
            raise UserError(
                f"run '{source.name}' has the tasks {mine}, but '{first.name}' has {theirs}; expected the same."
            )
    return found


def side_by_side(sources: Sequence[Source]) -> Comparison:
    """All runs as one comparison.

    Seeds of a method may be spread over sources that differ in nothing else. Otherwise the method is named with its
    source, so that nothing is averaged that does not belong together.
    """
    tasks = list(dict.fromkeys(task for source in sources for task in source.runs.tasks))
    mixed = {method for source in sources for method in source.runs.methods if not _is_one(method, sources)}
    return Comparison(
        [
            Run(
                run.records,
                f"{run.method} ({source.name})" if run.method in mixed else run.method,
                run.seed,
                tasks,
                run.clients,
            )
            for source in sources
            for run in source.runs
        ]
    )


def _is_one(method: str, sources: Sequence[Source]) -> bool:
    """Whether all runs of a method are seeds of one experiment."""
    holders = [source for source in sources if method in source.runs.methods]
    seeds = [run.seed for source in holders for run in source.runs.of(method)]
    return len(set(seeds)) == len(seeds) and len({_experiment(source.config) for source in holders}) == 1


def _experiment(config: dict[str, Any]) -> str:
    settings = config.get("settings", config)
    return json.dumps({key: value for key, value in settings.items() if key not in _FREE}, sort_keys=True, default=str)
