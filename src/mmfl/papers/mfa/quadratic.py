"""Bhuyan, Moharir & Joshi 2022 on the quadratic federation: runs for the loss over the rounds (Figure 1), for the gain
(Figure 2), and with the learning rates of Theorems 1 and 2, to compare with their bounds."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from mmfl.aggregation import Average, ServerMomentum
from mmfl.allocation import RotatingSplit
from mmfl.federation.schedules import Decay, FrameDecay, Schedule
from mmfl.methods import Method, make_method
from mmfl.papers.measurements import Watch
from mmfl.papers.mfa import bounds
from mmfl.papers.mfa import quadratic_findings as findings
from mmfl.papers.mfa.bounds import COUNTED, SLOWER, STEPS, bound_of
from mmfl.papers.mfa.chain import Chain, table, weights_of
from mmfl.papers.mfa.quadratic_findings import METHODS, RAND, ROTATE, ROUNDS
from mmfl.papers.reproduction import Frames, PaperTrainer, Part, reproduction
from mmfl.theory import ErrorBound

RATES: dict[str, float | Schedule] = {"constant": 0.1, "decaying": Decay(30, 100)}
_DEVIATIONS = 8


@dataclass(frozen=True)
class QuadraticScale:
    """The size of the experiments: the paper's, or the quick form.

    Figure 1 trains `few_and_many` models for `rounds`. Figure 2 trains `models` with each of the local `steps`, for
    what FedAvg reaches in `alone` rounds (T_1).
    """

    chain: Chain
    seeds: Sequence[int]
    rounds: int
    few_and_many: Sequence[int]
    models: Sequence[int]
    steps: Sequence[int]
    alone: int

    def last(self, models: int) -> int:
        """Rounds that suffice for the slowest model of Figure 2: T_1 plus eight standard deviations.

        They are those of the round in which MFA-Rand brings a model together with a client for the (T_1 / M)-th time.
        """
        return self.alone + math.ceil(_DEVIATIONS * math.sqrt(self.alone * (models - 1)))


_FULL = QuadraticScale(Chain(), range(20), ROUNDS, (2, 12), (2, 3, 4, 6, 8, 12), (1, 5, 10), alone=100)
_QUICK = QuadraticScale(Chain(12, 1), range(4), 40, (2, 6), (2, 6), (1, 5), alone=18)


def gap_parts(quick: bool) -> list[Part]:
    """Figure 1: a part for each learning rate and number of models."""
    scale = _QUICK if quick else _FULL
    return [
        Part(f"mfa-quadratic/gap-{rate}-{models}", scale.rounds, scale.seeds, partial(gaps, scale, rate, models))
        for rate in RATES
        for models in scale.few_and_many
    ]


def gaps(scale: QuadraticScale, rate: str, models: int, trainer: PaperTrainer) -> Frames:
    """gap(t) = log10(F - F*) of the first model, forty times during training."""
    watch = Watch(lambda state: float(np.log10(scale.chain.excess(weights_of(state)[0]))))
    federation = scale.chain.federation(models, RATES[rate], STEPS)
    trainer.compare(federation, METHODS, scale.rounds, 1.0, scale.seeds, watch=watch, evaluate_every=scale.rounds)
    kept = range(0, scale.rounds + 1, scale.rounds // 40)
    measured = table(watch.replicas, np.array(watch.seen), "gap", kept)
    return {"gaps": measured.assign(rate=rate, models=models, clients=scale.chain.clients)}


def gain_parts(quick: bool) -> list[Part]:
    """Figure 2: a part for each number of local steps."""
    scale = _QUICK if quick else _FULL
    last = scale.last(max(scale.models))
    return [
        Part(f"mfa-quadratic/gain-{steps}", last, scale.seeds, partial(gains, scale, steps)) for steps in scale.steps
    ]


def gains(scale: QuadraticScale, steps: int, trainer: PaperTrainer) -> Frames:
    """What FedAvg reaches with one model in T_1 rounds, and how many rounds M models together need for it."""
    chain, watch = scale.chain, Watch(weights_of)
    single = chain.federation(1, RATES["constant"], steps)
    trainer.compare(single, [RAND], scale.alone, 1.0, [0], watch=watch, evaluate_every=scale.alone)
    path = np.concatenate([seen[0] for seen in watch.seen])
    reached = {
        "steps": steps,
        "excess": float(chain.excess(path[-1])),
        "distance": float(chain.distance(path[-1])),
        "steepest": chain.steepest(path),
        **asdict(chain),
    }
    needed = [rounds_together(scale, steps, models, reached["excess"], trainer) for models in scale.models]
    return {"targets": pd.DataFrame([reached]), "gains": pd.concat(needed).assign(steps=steps, alone=scale.alone)}


def rounds_together(
    scale: QuadraticScale, steps: int, models: int, target: float, trainer: PaperTrainer
) -> pd.DataFrame:
    """T_P of every run, the first round after which all models meet the target; `one`: the mean of each model's own."""
    watch = Watch(lambda state: scale.chain.excess(weights_of(state)) <= target)
    federation, last = scale.chain.federation(models, RATES["constant"], steps), scale.last(models)
    trainer.compare(federation, METHODS, last, 1.0, scale.seeds, watch=watch, evaluate_every=last)
    met: NDArray[np.bool_] = np.array(watch.seen)
    needed = pd.DataFrame(list(watch.replicas), columns=["method", "seed"]).assign(models=models)
    return needed.assign(
        together=[first(replica.all(axis=1)) for replica in met.swapaxes(0, 1)],
        one=[np.mean([first(model) for model in replica.T]) for replica in met.swapaxes(0, 1)],
    )


def first(met: NDArray[np.bool_]) -> float:
    """The first round after which a condition [rounds + 1] holds, starting before round 1; nan if it never does.

    >>> first(np.array([False, False, True, False, True]))
    2.0
    """
    return float(met.argmax()) if met.any() else np.nan


@dataclass(frozen=True)
class ChainSetting:
    """A chain on which bounds and measurements are compared, for a whole number of frames."""

    chain: Chain
    models: int
    rounds: int
    seeds: Sequence[int]


_BOUNDS = [ChainSetting(Chain(curvature=1.0), 4, 3000, range(20)), ChainSetting(Chain(), 4, 1000, range(5))]
_QUICK_BOUNDS = [ChainSetting(Chain(8, 1, 1.0), 2, 150, range(3)), ChainSetting(Chain(8, 1), 2, 20, range(3))]
_PARTS = {"rand": RAND, "rr": ROTATE, "rr-slower": SLOWER, "rr-counted": COUNTED}


def bound_parts(quick: bool) -> list[Part]:
    """Distances to the optimum, a part for each chain and each way to train on it, and the gains of Figure 2."""
    own = [
        Part(f"mfa-bounds/mu-{at.chain.curvature:g}-{name}", at.rounds, at.seeds, partial(distances, at, reading))
        for at in (_QUICK_BOUNDS if quick else _BOUNDS)
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
        return Method(COUNTED, RotatingSplit(), ServerMomentum(Average(), lr=1 / models, momentum=0.0))
    return make_method(RAND if reading == RAND else ROTATE)


def distances(setting: ChainSetting, reading: str, trainer: PaperTrainer) -> Frames:
    """|w - w*| averaged over the models, and the round in which its mean over seeds came closest to the bound.

    As in the theorems, round t is the one that begins with these weights. G is the longest gradient of any client in
    these runs. The distances are kept for some frames of M rounds, averaged over each frame, since a rotating split is
    far from the optimum in the middle of a frame and close at its end.
    """
    chain, models, last = setting.chain, setting.models, setting.rounds
    watch = Watch(lambda state: (chain.distance(weights_of(state)).mean(), chain.steepest(weights_of(state))))
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
    frames = distance[:-1].reshape(-1, models, distance.shape[1]).mean(1)
    kept = np.unique(np.geomspace(1, len(frames), 60).round().astype(int)) - 1
    measured = table(watch.replicas, frames, "distance", kept).drop(columns="method")
    measured = measured.assign(round=1 + models * measured["round"], reading=reading, curvature=chain.curvature)
    return {"cases": pd.DataFrame([case]), "distances": measured}


REPRODUCTIONS = (
    reproduction("mfa-fig1", gap_parts, findings.find_gaps, findings.draw_gaps),
    reproduction("mfa-fig2", gain_parts, findings.find_gains, findings.draw_gains),
    reproduction("mfa-bounds", bound_parts, bounds.find, bounds.draw),
)
