"""Reproduction: a table or figure of a paper, with its training, its measurements and its claims."""

import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
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


OWN = "not in the paper"
"""In place of a paper's number: no paper makes this claim, the question is ours."""


@dataclass(frozen=True)
class StatisticalTest:
    """What a statistical test says: the verdict that the numbers point to, and the smallest level at which it is one.

    `distance` is that of the mean from the boundary of the claim, `deviation` the standard deviation over seeds; nan
    where they are unknown.
    """

    towards: Verdict
    p: float
    distance: float = float("nan")
    deviation: float = float("nan")

    @property
    def effect(self) -> float:
        """The distance in standard deviations."""
        return self.distance / self.deviation if self.deviation else float("nan")


@dataclass(frozen=True)
class Claim:
    """A claim of a paper, its number if it has one, our number, and the verdict.

    It holds if all of its `outcomes` do, and fails if one of them does; a fact has none. `seeds` are so many as would
    decide it, where it is open.
    """

    text: str
    paper: str
    ours: str
    verdict: Verdict
    outcomes: tuple[StatisticalTest, ...] = ()
    seeds: str = ""


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
    seeds: Sequence[int] | None = None

    def compare(
        self, federation: Any, methods: Any, rounds: int, rate: float, seeds: Any, watch: Listener | None = None,
        **options: Any,
    ) -> Comparison:  # fmt: skip
        """Trains as `mmfl.compare` does, with the trainer's own seeds if it has some; `watch` is another listener."""
        options["listeners"] = [each for each in (self.listener, watch) if each is not None]
        options |= {"device": self.device, "precision": self.precision}
        return compare(federation, methods, rounds, rate, seeds if self.seeds is None else self.seeds, **options)


ADDED = "seeds-"
"""How the names of parts begin that add seeds to another part."""


@dataclass(frozen=True)
class Part:
    """A part of the training for tables and figures, which is run separately and only once.

    `run` trains and returns its measurements. Frames with the same name from several parts are concatenated.
    """

    name: str
    rounds: int
    seeds: Sequence[int]
    run: Callable[[PaperTrainer], Frames]

    @property
    def adds_seeds(self) -> bool:
        """Whether it adds seeds to another part."""
        return self.name.rpartition("/")[2].startswith(ADDED)

    def with_seeds(self, seeds: range) -> "Part":
        """The same training with other seeds, as a part that is stored within this one's folder."""
        name = f"{self.name}/{ADDED}{seeds[0]}-{seeds[-1]}"
        return Part(name, self.rounds, seeds, lambda trainer: self.run(replace(trainer, seeds=seeds)))


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
