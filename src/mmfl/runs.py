"""The runs in a folder, from their configurations and records, without loading what they were made with."""

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from mmfl.errors import UserError

State = Literal["finished", "unfinished", "unreadable"]


@dataclass(frozen=True)
class Listed:
    """A run at a glance: its last round of how many, and by method the mean metric when it was last evaluated.

    `unfinished` is a run that goes on at this moment as well as one that was stopped; `unreadable` is one
    whose files are damaged or not those of a run.
    """

    run: str
    state: State
    methods: Sequence[str] = ()
    seeds: int = 0
    round: int = 0
    rounds: int = 0
    mean: Mapping[str, float] = field(default_factory=dict)


def listed(folder: Path) -> list[Listed]:
    """The runs in a folder, by name; or the folder itself where it is a run."""
    if not folder.is_dir():
        raise UserError(f"there is no folder '{folder}'; expected one that holds run directories.")
    places = [folder, *sorted(folder.iterdir())]
    return [_look(place) for place in places if (place / "config.toml").is_file()]


def _look(place: Path) -> Listed:
    try:
        config = tomllib.loads((place / "config.toml").read_text())
        config = config.get("settings", config)  # of a deployment
        configured = [_name(method) for method in config.get("methods") or [config["method"]]]
        seeds, rounds = config.get("seeds", 1), int(config["rounds"])
        latest = _latest(place / "metrics.jsonl")
        round, mean = (int(latest[0]["round"]) if latest else 0), _means(latest)
        recorded = list(dict.fromkeys(str(record["method"]) for record in reversed(latest)))
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return Listed(str(place), "unreadable")
    return Listed(
        str(place),
        "finished" if round >= rounds else "unfinished",
        recorded or configured,
        seeds if isinstance(seeds, int) else len(seeds),
        round,
        rounds,
        mean,
    )


def _name(method: str | Mapping[str, Any]) -> str:
    return method if isinstance(method, str) else str(method.get("name", method.get("method")))


def _latest(metrics: Path) -> list[dict[str, Any]]:
    """The last records, latest first, back to the round that was last evaluated. What a crash cut short is left out."""
    found: list[dict[str, Any]] = []
    lines = metrics.read_text().splitlines() if metrics.is_file() else []
    for line in reversed(lines):
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if found and record["round"] < found[-1]["round"] and any(each["mean"] is not None for each in found):
            break
        found.append(record)
    return found


def _means(latest: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The mean over tasks by method, averaged over seeds."""
    values: dict[str, list[float]] = {}
    for record in reversed(latest):
        if record["mean"] is not None:
            values.setdefault(record["method"], []).append(record["mean"])
    return {method: sum(each) / len(each) for method, each in values.items()}
