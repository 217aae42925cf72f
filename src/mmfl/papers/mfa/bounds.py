"""Bhuyan, Moharir & Joshi 2022: runs with the learning rates of Theorems 1 and 2, to compare with their bounds."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial

import numpy as np
import pandas as pd

from mmfl.aggregation import Average, Momentum
from mmfl.allocation import RotatingSplit
from mmfl.federation.schedules import Decay, FrameDecay, Schedule
from mmfl.methods import Method, make_method
from mmfl.papers.measurements import Watch
from mmfl.papers.mfa.bounds_findings import COUNTED, SLOWER, STEPS, bound_of, draw, find
from mmfl.papers.mfa.chain import Array, Chain, table, weights_of
from mmfl.papers.mfa.quadratic import gain_parts
from mmfl.papers.mfa.quadratic_findings import RAND, ROTATE
from mmfl.papers.reproduction import Frames, Part, Trainer, reproduction
from mmfl.theory import ErrorBound


@dataclass(frozen=True)
class Setting:
    """A chain on which bounds and measurements are compared, for a whole number of frames."""

    chain: Chain
    models: int
    rounds: int
    seeds: Sequence[int]


_FULL = [Setting(Chain(curvature=1.0), 4, 3000, range(20)), Setting(Chain(), 4, 1000, range(5))]
_QUICK = [Setting(Chain(8, 1, 1.0), 2, 150, range(3)), Setting(Chain(8, 1), 2, 20, range(3))]
_PARTS = {"rand": RAND, "rr": ROTATE, "rr-slower": SLOWER, "rr-counted": COUNTED}


def parts(quick: bool) -> list[Part]:
    """Distances to the optimum, a part for each chain and each way to train on it, and the gains of Figure 2."""
    own = [
        Part(f"mfa-bounds/mu-{at.chain.curvature:g}-{name}", at.rounds, at.seeds, partial(distances, at, reading))
        for at in (_QUICK if quick else _FULL)
        for name, reading in _PARTS.items()
    ]
    return [*own, *gain_parts(quick)]


def learning_rate(reading: str, bound: ErrorBound) -> Schedule:
    """The theorem's learning rate, or 1 / M of it, so that a server that averages takes the steps of Theorem 2."""
    models = bound.problem.models
    if reading == RAND:
        return Decay(bound.beta, bound.gamma)
    return FrameDecay(bound.beta / models if reading == SLOWER else bound.beta, bound.gamma, models)


def method_of(reading: str, models: int) -> Method:
    """The method to run; with a server step of 1 / M, each update in a mean over N / M clients has weight 1 / N."""
    if reading == COUNTED:
        return Method(COUNTED, RotatingSplit(), Momentum(Average(), lr=1 / models, momentum=0.0))
    return make_method(RAND if reading == RAND else ROTATE)


def distances(setting: Setting, reading: str, trainer: Trainer) -> Frames:
    """|w - w*| averaged over the models, and the round in which its mean over seeds came closest to the bound.

    As in the theorems, round t is the one that begins with these weights. G is the longest gradient of any client in
    these runs. The distances are kept for some frames of M rounds, averaged over each frame, since a rotating split is
    far from the optimum in the middle of a frame and close at its end.
    """
    chain, models, last = setting.chain, setting.models, setting.rounds
    watch = Watch(lambda state: see(chain, weights_of(state)))
    schedule = learning_rate(reading, bound_of(reading, chain, models, gradient_bound=1.0))
    federation, method = chain.federation(models, schedule, STEPS), method_of(reading, models)
    trainer.compare(federation, [method], last, 1.0, setting.seeds, watch=watch, evaluate_every=last)
    distance, steepness = np.moveaxis(np.array(watch.seen), 2, 0)
    bound = bound_of(reading, chain, models, float(steepness.max()))
    ratio = bound.error(np.arange(1, last + 2)) / distance.mean(1)
    case = {
        "reading": reading,
        **asdict(chain),
        "models": models,
        "steepest": steepness.max(),
        "closest": ratio.min(),
        "closest_round": 1 + ratio.argmin(),
    }
    frames = distance[:-1].reshape(-1, models, len(setting.seeds)).mean(1)
    kept = np.unique(np.geomspace(1, len(frames), 60).round().astype(int)) - 1
    measured = table(watch.replicas, frames, "distance", kept).drop(columns="method")
    measured = measured.assign(round=1 + models * measured["round"], reading=reading, curvature=chain.curvature)
    return {"cases": pd.DataFrame([case]), "distances": measured}


def see(chain: Chain, weights: Array) -> tuple[float, float]:
    """The mean distance of the models to the optimum, and the longest gradient of a client there."""
    return float(chain.distance(weights).mean()), chain.steepest(weights)


REPRODUCTIONS = (reproduction("mfa-bounds", parts, find, draw),)
