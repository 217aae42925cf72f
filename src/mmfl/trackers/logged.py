"""What trackers are given of an experiment: its configuration once, its numbers every round, under plain names."""

import re
from collections.abc import Mapping
from typing import Any

from mmfl.training import Record, Replica

Parameters = dict[str, str | float]
"""A configuration, flat: numbers and texts by key."""


def numbers(record: Record) -> dict[str, float]:
    """Every number that a round has: `metric/TASK`, `loss/TASK`, `step_size/TASK`, ..., `overall/mean`,
    `cost/trainings`, ..., `seconds`. What was not measured, or is not a single number, is left out.

    >>> record = {"tasks": {"digits": {"metric": 0.5, "loss": None}}, "mean": 0.5, "worst": None, "cost": {}}
    >>> numbers({**record, "clients_seen": 3, "seconds": 0.1})
    {'metric/digits': 0.5, 'overall/mean': 0.5, 'overall/clients_seen': 3.0, 'seconds': 0.1}
    """
    found = {
        **{f"{name}/{plain(task)}": value for task, of in record["tasks"].items() for name, value in of.items()},
        **{f"overall/{name}": record[name] for name in ("mean", "worst", "clients_seen")},
        **{f"cost/{name}": value for name, value in record["cost"].items()},
        **{f"faults/{plain(kind)}": value for kind, value in record.get("faults", {}).items()},
        "seconds": record["seconds"],
    }
    return {name: float(value) for name, value in found.items() if isinstance(value, int | float)}


def parameters(replica: Replica, rounds: int, config: Mapping[str, Any]) -> Parameters:
    """A replica's configuration, flat: what the replica itself shows, and what its run's `config.toml` says.

    Names are those of a configuration's keys, such as `federation.clients` and `tasks.digits.lr`.
    """
    method = replica.method.name
    named = [each for each in config.get("methods", ()) if isinstance(each, Mapping) and each.get("name") == method]
    given = {key: value for key, value in config.items() if key not in ("methods", "seeds", "tasks", "settings")}
    given |= config.get("settings", {})  # of a deployment
    tables = [task for task in config.get("tasks", ()) if isinstance(task, Mapping)]
    values = {
        "federation": {"clients": replica.federation.clients},
        "tasks": {
            task.name: {"lr": task.lr, "epochs": task.epochs, "batch_size": task.batch_size}
            for task in replica.federation.tasks
        },
    }
    flat = {
        **_flat(values),
        **_flat({"tasks": {task.get("name"): task for task in tables}}),
        **_flat(given),
        **_flat({"method": named[0] if named else {}}),
        "method": method,
        "seed": replica.seed,
        "rate": replica.rate,
        "rounds": rounds,
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
