"""Training for Bhuyan & Moharir 2022: their policies on two models, with different numbers of clients per round."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from mmfl.aggregation import Average
from mmfl.allocation import Allocation, AllocationRule, WarmUp
from mmfl.data import Dataset, celeba, faces
from mmfl.data.files import folder_of
from mmfl.federation import Federation, RoundView
from mmfl.methods import Method, make_method
from mmfl.papers.measurements import accuracy
from mmfl.papers.reproduction import Frames, PaperTrainer, Part, federations
from mmfl.partition import Split
from mmfl.randomness import Purpose
from mmfl.runs.config import read
from mmfl.runs.presets import path_of
from mmfl.runs.results import Comparison, Run

CLIENTS = 100
FEDAVG, MULTI, RANKLIST, PARETO = "fedavg", "multi-fedavg", "ranklist-multi-ucb", "pareto-multi-ucb"
MODELS = ("model 1", "model 2")
FEW, TEN, MANY = 2, 10, 64  # clients a round of the figures that show every test
FIRST = 2  # first rounds, tested to show the effect of the warm-up; not in the paper's curves
_SYNTHETIC = {"synthetic-a": "inputs = 60, classes = 5", "synthetic-b": "inputs = 30, classes = 10"}
_ATTRIBUTES = {"smiling": "Smiling", "eyeglasses": "Eyeglasses"}


_SMALL_FACES = {"model": {"name": "logistic", "inputs": 3 * 14 * 14, "classes": 2}, "lr": 0.03}


@dataclass(frozen=True)
class BanditScale:
    """How much is trained: `drawn` are the numbers of clients per round; `small` tasks have less data."""

    rounds: int
    every: int
    seeds: Sequence[int]
    drawn: Sequence[int]
    small: bool = False


FULL = BanditScale(500, 10, range(5), (FEW, 4, 8, 16, 32, MANY))
QUICK = BanditScale(30, 1, range(2), (FEW, MANY), small=True)


def with_warm_up(method: str) -> str:
    """The name of a method with a warm-up that the paper does not give it."""
    return f"{method}, warm-up"


class SeparateFedAvg(AllocationRule):
    """FedAvg with K / S clients on each of the S tasks, as if every task had its own run.

    What a client does for one task does not keep it from another. The first task's clients are those that
    `RandomClients` draws where there is no other task.
    """

    def allocate(self, view: RoundView, state: Any) -> tuple[Allocation, Any]:
        """For each task, the clients with the smallest random numbers."""
        able, tasks = view.able, view.able.shape[1]
        lots = np.where(able, view.uniform(Purpose.CLIENTS, tasks), np.inf)
        drawn = np.minimum(able.sum(0), max(1, round(view.budget / tasks)))
        first = lots.argsort(axis=0, kind="stable").argsort(axis=0) < drawn
        chance = drawn / np.maximum(able.sum(0), 1) / np.maximum(view.capacity, 1)[:, None]
        return Allocation.of(first.astype(np.int64), able * chance, beyond_capacity=True), state


def policies() -> list[Method]:
    """The paper's policies, and those without a warm-up once more with one."""
    return [
        Method(FEDAVG, SeparateFedAvg(), Average()),
        Method(with_warm_up(FEDAVG), WarmUp(SeparateFedAvg()), Average()),
        make_method(MULTI),
        make_method({"method": MULTI, "name": with_warm_up(MULTI), "warm_up": True}),
        make_method(RANKLIST),
        make_method(PARETO),
    ]


def synthetic(source: str, scale: BanditScale, seed: int) -> Federation:
    """Two independent synthetic data sets of a kind, different for every seed."""
    common = f"name = '{source}', clients = {CLIENTS}, cap = {200 if scale.small else 1000}"
    settings = []
    for s, (task, shape) in enumerate(_SYNTHETIC.items()):
        settings.append(f"tasks.{task}.data={{{common}, {shape}, seed = {2 * seed + s}}}")
        settings += [f"tasks.{task}.lr=0.1"] if scale.small else []
    return federations("ucb-synthetic", settings)(seed)


def people(scale: BanditScale, seed: int) -> Federation:
    """Smiling and eyeglasses: CelebA if its folder exists, otherwise generated faces, different for every seed.

    Both attributes have the same pictures, so one division of them over the clients serves both.
    """
    changed: dict[str, Any] = _SMALL_FACES if scale.small else {}
    images, side = (20, 14) if scale.small else (30, 28)
    source: Callable[[str], Dataset] = partial(faces, people=CLIENTS, images=images, side=side, seed=seed)
    if not scale.small and folder_of("celeba").is_dir():
        changed, source = {"model": "celeba-cnn"}, partial(celeba, least=5)
    tasks = [
        task.model_copy(update=changed).build(source(_ATTRIBUTES[task.name]))
        for task in read(path_of("ucb-faces")).tasks
    ]
    alone = Federation(tasks[:1], CLIENTS, seed=seed)
    split = Split(alone.shards[0], alone.test_shards[0])
    return Federation(tasks, CLIENTS, partition=lambda *_: split, seed=seed)


DATA: dict[str, Callable[[BanditScale, int], Federation]] = {
    "synthetic-1-1": partial(synthetic, "synthetic"),
    "synthetic-iid": partial(synthetic, "synthetic-iid"),
    "faces": people,
}


def parts(wanted: Sequence[tuple[str, int | None]], quick: bool) -> list[Part]:
    """A part for each data set and number K of clients per round; None stands for all K of the scale."""
    scale = QUICK if quick else FULL
    return [
        Part(f"ucb/{data}/K={drawn}", scale.rounds, scale.seeds, partial(_run, data, drawn, scale))
        for data, number in wanted
        for drawn in (scale.drawn if number is None else [number])
    ]


def _run(data: str, drawn: int, scale: BanditScale, trainer: PaperTrainer) -> Frames:
    """Trains all policies in lockstep; keeps the tests of the figure and of the first rounds."""
    whole = drawn in (FEW, TEN, MANY)
    tested_every = 1 if whole else scale.every
    rate, federation_of = drawn / CLIENTS, partial(DATA[data], scale)
    compared = trainer.compare(federation_of, policies(), scale.rounds, rate, scale.seeds, evaluate_every=tested_every)
    tested = accuracy(compared).drop(columns="mean").rename(columns=dict(zip(compared.tasks, MODELS, strict=True)))
    t = tested["round"]
    kept = (t % scale.every == 0) | (t <= FIRST) if whole else t > 0.9 * scale.rounds
    return {
        "accuracy": tested[kept].round(3).assign(data=data, K=drawn),
        "effort": effort(compared).assign(data=data, K=drawn),
    }


def effort(comparison: Comparison) -> pd.DataFrame:
    """Mean costs of a round after the first (clients that train and their examples), and the data."""
    found = []
    for run in comparison:
        assert run.federation is not None
        later = Run(run.records[1:], run.method, run.seed, run.tasks, run.clients)
        trained, rounds = later.participation.to_numpy(), len(later.records)
        examples = (trained * run.federation.sizes).sum() / rounds
        source = run.federation.tasks[0].data.name.partition(", ")[0]
        found.append((run.method, run.seed, trained.sum() / rounds, examples, source))
    return pd.DataFrame(found, columns=["method", "seed", "clients", "examples", "source"])
