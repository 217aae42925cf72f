"""What trackers log of an experiment: its configuration once, its numbers every round, under plain names."""

import re
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from mmfl.record import RoundRecord
from mmfl.runs.listener import RunInfo

Parameters = dict[str, str | float]
"""A configuration, flat: numbers and texts by key."""

_ELSEWHERE = ("format", "methods", "seeds", "tasks", "settings")  # keys that are logged in another way, or not

_OVERALL = ("mean", "worst", "average_mean", "average_worst", "clients_seen")


def numbers(record: RoundRecord) -> dict[str, float]:
    """Every number that a round has: `metric/TASK`, `loss/TASK`, `step_size/TASK`, ..., `overall/mean`,
    `cost/trainings`, ..., `seconds`. What was not measured, or is not a single number, is left out.

    >>> from mmfl.record import TaskRecord
    >>> found = numbers(RoundRecord(1, "full", 0, mean=0.5, tasks={"digits": TaskRecord(0.5)}, clients_seen=3))
    >>> found["metric/digits"], found["overall/mean"], found["overall/clients_seen"], "loss/digits" in found
    (0.5, 0.5, 3.0, False)
    """
    found = {
        **{f"{name}/{plain(task)}": value for task, of in record.tasks.items() for name, value in of.numbers().items()},
        **{f"overall/{name}": getattr(record, name) for name in _OVERALL},
        **{f"cost/{name}": value for name, value in asdict(record.cost).items()},
        **{f"faults/{plain(kind)}": value for kind, value in record.faults.items()},
        "seconds": record.seconds,
    }
    return {name: float(value) for name, value in found.items() if isinstance(value, int | float)}


def parameters(info: RunInfo, method: str, seed: int) -> Parameters:
    """The configuration of a method and seed, flat.

    Names are those of a configuration's keys, such as `federation.clients` and `tasks.digits.lr`.
    """
    config = info.config
    named = [each for each in config.get("methods", ()) if isinstance(each, Mapping) and each.get("name") == method]
    given = {key: value for key, value in config.items() if key not in _ELSEWHERE}
    given |= config.get("settings", {})  # of a deployment
    tables = [task for task in config.get("tasks", ()) if isinstance(task, Mapping)]
    flat = {
        "federation.clients": info.clients,
        **_flat({"tasks": {task.get("name"): task for task in tables}}),
        **_flat(given),
        **_flat({"method": named[0] if named else {}}),
        "method": method,
        "seed": seed,
        "rate": info.rate,
        "rounds": info.rounds,
    }
    return {plain(name): value if isinstance(value, int | float) else str(value) for name, value in flat.items()}


def plain(name: str) -> str:
    """A name that every tracker and file system takes: other characters are replaced by their numbers.

    >>> plain("v1.0, north/south")
    'v1.0_2c north_2fsouth'
    """
    return re.sub(r"[^\w. -]", lambda found: f"_{ord(found[0]):x}", name)


def _flat(values: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{above}{key}.")
        elif value is not None:
            flat[f"{above}{key}"] = value
    return flat
