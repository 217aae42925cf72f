"""The round loop: Algorithm 1 of Zhang et al. 2025, for one replica or many in lockstep."""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

import numpy as np
import torch
from torch.nn.utils import get_total_norm

from mmfl.engine import Engine
from mmfl.errors import UserError
from mmfl.record import RoundRecord
from mmfl.training.diagnostics import memory_of
from mmfl.training.dispatch import Dispatch
from mmfl.training.record import record
from mmfl.training.replica import Replica
from mmfl.training.round import Round, RoundTests
from mmfl.updates import World

AnyRound = TypeVar("AnyRound", bound=Round)
Writer = Callable[[AnyRound, RoundTests, float, int, Mapping[str, int]], RoundRecord]
"""Makes the record of a round from its tests, its seconds, the bytes stored and the faults."""


def rounds(
    replicas: Sequence[Replica],
    engine: Engine,
    last: int,
    evaluate_every: int = 1,
    evaluate_last: int = 1,
    diagnose: bool = False,
    time_is_up: Callable[[], bool] = lambda: False,
) -> Iterator[list[RoundRecord]]:
    """One federated round after another, all replicas in lockstep; yields what happened, a record per replica.

    Tests every so many rounds, and after each of the last ones. `time_is_up` is asked after every round, before the
    test: the round after which the run stops is tested too.
    """
    is_tested = schedule_of_tests(last, evaluate_every, evaluate_last, time_is_up)
    for t in range(replicas[0].state.round + 1, last + 1):
        begun = time.perf_counter()
        current = [Round.begin(replica, t) for replica in replicas]
        dispatch = Dispatch(engine, current)
        dispatch.train_before_decision()
        dispatch.measure(diagnose)
        for each in current:
            each.allocate(dispatch.trained_early(each))
        dispatch.aggregate()
        for each in current:
            each.end()
        yield conclude(current, dispatch, begun, is_tested, record)


def schedule_of_tests(
    last: int, evaluate_every: int, evaluate_last: int, time_is_up: Callable[[], bool]
) -> Callable[[int], bool]:
    """Tells after a round whether the models are tested."""
    return lambda round: time_is_up() or round % evaluate_every == 0 or round > last - evaluate_last


def conclude(
    rounds: Sequence[AnyRound],
    dispatch: Dispatch,
    begun: float,
    is_tested: Callable[[int], bool],
    write: Writer[AnyRound],
) -> list[RoundRecord]:
    """What follows the last aggregation of a round: averages of weights, tests and checks; a record per replica."""
    engine, replicas = dispatch.engine, [each.replica for each in rounds]
    largest = get_total_norm([weights for each in rounds for weights in each.weights], math.inf)
    agree(engine.world, replicas)
    for replica in replicas:
        replica.average_weights()
    t = replicas[0].state.round
    tested = dispatch.evaluate(t) if is_tested(t) else [RoundTests() for _ in replicas]
    for replica, tests in zip(replicas, tested, strict=True):
        replica.keep_best(tests.current)
    faults = engine.faults()
    seconds = (time.perf_counter() - begun) / len(replicas)
    stored = engine.world.sums(np.array([float(memory_of(replica.state.memories)) for replica in replicas]))
    records = [
        write(each, tests, seconds, int(held), faults) for each, tests, held in zip(rounds, tested, stored, strict=True)
    ]
    if not math.isfinite(largest):  # asked here, so that the device need not be waited for
        for each in rounds:
            each.check_weights()
    return records


def agree(world: World, replicas: Sequence[Replica]) -> None:
    """Makes sure that all processes have the same weights: an aggregation that computes with the rows of one process
    (`updates.rows.matrix`) would give each its own."""
    if world.size == 1:
        return
    pairs = [(replica.method, weights) for replica in replicas for weights in replica.state.weights]
    sums = np.array([float(torch.nan_to_num(weights).double().sum()) for _, weights in pairs])
    mean = world.sums(sums) / world.size
    apart = world.sums((np.abs(sums - mean) > 1e-9 * np.maximum(np.abs(mean), 1)).astype(np.float64)) > 0
    if apart.any():
        method = pairs[int(np.flatnonzero(apart)[0])][0]
        raise UserError(
            f"method '{method.name}': its aggregation gave every process weights of its own; expected it to compute "
            "with `updates.combine`, `updates.norms` or `updates.flat`, which cover the rows of all processes."
        )
