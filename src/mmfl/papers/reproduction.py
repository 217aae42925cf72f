"""Reproduction: a table or figure of a paper, from training to verdict."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from inspect import signature
from typing import Any, Literal

import pandas as pd
from matplotlib.figure import Figure

from mmfl.api import compare
from mmfl.engine.precision import Precision
from mmfl.federation import Federation
from mmfl.methods import METHODS, Method
from mmfl.runs.config import read
from mmfl.runs.listener import Listener
from mmfl.runs.presets import path_of
from mmfl.runs.results import Comparison

Frames = dict[str, pd.DataFrame]
"""What was measured, by name."""

Paper = Literal["mfa", "ucb", "slides", "variance", "group"]


class Verdict(StrEnum):
    """Whether a paper's claim is true of our runs."""

    HOLDS = "holds"
    FAILS = "does not hold"
    OPEN = "not decided"


@dataclass(frozen=True)
class Claim:
    """What a paper says, its number where it has one, ours, and the verdict."""

    text: str
    paper: str
    ours: str
    verdict: Verdict


@dataclass(frozen=True)
class Findings:
    """What the measurements say: the paper's table with our numbers in it, and its claims."""

    table: pd.DataFrame
    claims: Sequence[Claim]
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Trainer:
    """`mmfl.compare` on a device, heard by whoever shows progress."""

    device: str | None = None
    listener: Listener | None = None
    precision: Precision = "float32"

    def compare(
        self,
        federation: Federation | Callable[[int], Federation],
        methods: Sequence[str | Method | Mapping[str, Any]],
        rounds: int,
        rate: float,
        seeds: int | Sequence[int],
        *,
        watch: Listener | None = None,
        **options: Any,
    ) -> Comparison:
        """Trains methods x seeds in lockstep; `watch` listens besides."""
        listeners = [each for each in (self.listener, watch) if each is not None]
        how = options | {"device": self.device, "precision": self.precision, "listeners": listeners}
        return compare(federation, methods, rounds, rate, seeds, **how)


@dataclass(frozen=True)
class Part:
    """A piece of the training behind tables and figures. It runs by itself, and once done it is not repeated.

    `run` trains and returns what it measured. Frames of the same name from several parts are put one below the other.
    """

    name: str
    rounds: int
    seeds: Sequence[int]
    run: Callable[[Trainer], Frames]


@dataclass(frozen=True)
class Reproduction:
    """A table or figure: what to train (`parts`, given whether it is the quick form), what to conclude and to draw.

    `setting` says in a sentence or two what is trained on what. The quick form needs no data but what the package
    brings along, and ends within a minute on two cores.
    """

    id: str
    paper: Paper
    title: str
    setting: str
    parts: Callable[[bool], Sequence[Part]]
    find: Callable[[Frames], Findings]
    draw: Callable[[Frames], Figure]


PAPER_FLOOR = 1e-6  # the papers have none; this only keeps every chance above zero


def as_published(method: str) -> str | dict[str, Any]:
    """A named method without the floor under losses and norms that the papers do not have, under its own name.

    >>> as_published("random"), as_published("mmfl-lvr")
    ('random', {'method': 'mmfl-lvr', 'name': 'mmfl-lvr', 'floor': 1e-06})
    """
    if "floor" not in signature(METHODS[method].make).parameters:
        return method
    return {"method": method, "name": method, "floor": PAPER_FLOOR}


def federations(preset: str, settings: Sequence[str] = ()) -> Callable[[int], Federation]:
    """The federation of a preset by seed, with `key=value` settings changed; its data is loaded here, once.

    >>> federations("quadratic", ["federation.clients=24"])(0)
    Federation(24 clients, tasks: copy-a, copy-b)
    """
    return read(path_of(preset), settings).experiment().federation_of
