"""Reproduction: a table or figure of a paper, with its training, its measurements and its claims."""

import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from inspect import signature
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from mmfl.api import compare
from mmfl.engine.precision import Precision
from mmfl.federation import Federation
from mmfl.methods import METHODS
from mmfl.runs.config import read
from mmfl.runs.listener import Listener
from mmfl.runs.presets import path_of
from mmfl.runs.results import Comparison

Frames = dict[str, pd.DataFrame]
"""Measurements by name."""


class Verdict(StrEnum):
    """Whether a paper's claim holds in our runs, from the worst to the best."""

    FAILS = "does not hold"
    OPEN = "not decided"
    HOLDS = "holds"


@dataclass(frozen=True)
class Claim:
    """A claim of a paper, its number if it has one, our number, and the verdict."""

    text: str
    paper: str
    ours: str
    verdict: Verdict


@dataclass(frozen=True)
class Findings:
    """Findings: the paper's table with our numbers, and its claims."""

    table: pd.DataFrame
    claims: Sequence[Claim]
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class PaperTrainer:
    """`mmfl.compare` on a device, with a listener that shows the progress."""

    device: str | None = None
    listener: Listener | None = None
    precision: Precision = "float32"

    def compare(self, *arguments: Any, watch: Listener | None = None, **options: Any) -> Comparison:
        """Trains as `mmfl.compare` does with these arguments; `watch` is another listener."""
        listeners = [each for each in (self.listener, watch) if each is not None]
        return compare(*arguments, device=self.device, precision=self.precision, listeners=listeners, **options)


@dataclass(frozen=True)
class Part:
    """A part of the training for tables and figures, which is run separately and only once.

    `run` trains and returns its measurements. Frames with the same name from several parts are concatenated.
    """

    name: str
    rounds: int
    seeds: Sequence[int]
    run: Callable[[PaperTrainer], Frames]


@dataclass(frozen=True)
class Reproduction:
    """A table or figure: what to train (`parts(quick)`), which claims to test (`find`) and what to draw (`draw`).

    `paper` is a key of `PAPERS`; `setting` describes the experiment in a sentence or two. The quick form needs only
    embedded data and takes less than a minute on two cores.
    """

    id: str
    paper: str
    title: str
    setting: str
    parts: Callable[[bool], Sequence[Part]]
    find: Callable[[Frames], Findings]
    draw: Callable[[Frames], Figure]


_TEXTS = tomllib.loads(Path(__file__).with_name("catalogue.toml").read_text())
PAPERS: dict[str, str] = _TEXTS["papers"]
NOTES: dict[str, str] = _TEXTS["notes"]
"""Texts that findings add to their pages, by name."""


def reproduction(
    id: str,
    parts: Callable[[bool], Sequence[Part]],
    find: Callable[[Frames], Findings],
    draw: Callable[[Frames], Figure],
) -> Reproduction:
    """The table or figure of this name, with its paper, title and setting from `catalogue.toml`."""
    texts = _TEXTS[id]
    setting = texts["setting"].format(**_TEXTS["shared"])
    return Reproduction(id, texts["paper"], texts["title"], setting, parts, find, draw)


PAPER_FLOOR = 1e-6  # the papers have no floor; this only keeps probabilities positive


def as_published(method: str) -> str | dict[str, Any]:
    """A named method without the floor on losses and norms, which the papers do not have; it keeps its name.

    >>> as_published("random"), as_published("mmfl-lvr")
    ('random', {'method': 'mmfl-lvr', 'name': 'mmfl-lvr', 'floor': 1e-06})
    """
    if "floor" not in signature(METHODS[method].make).parameters:
        return method
    return {"method": method, "name": method, "floor": PAPER_FLOOR}


def federations(preset: str, settings: Sequence[str] = ()) -> Callable[[int], Federation]:
    """The federation of a preset as a function of the seed, with changed settings `key=value`; data is loaded once.

    >>> federations("quadratic", ["federation.clients=24"])(0)
    Federation(24 clients, tasks: copy-a, copy-b)
    """
    return read(path_of(preset), settings).experiment().federation_of


def digits(*tasks: str, model: str = "logistic", lr: float = 0.3) -> list[str]:
    """Settings that replace tasks by the embedded digits, for a quick form."""
    return [f"tasks.{task}.{setting}" for task in tasks for setting in ("data=digits", f"model={model}", f"lr={lr}")]
