"""The round loop: Algorithm 1 of Zhang et al. 2025, for one replica or many in lockstep."""

import math
import time
from collections.abc import Callable, Iterator, Sequence

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
        largest = get_total_norm([weights for each in current for weights in each.weights], math.inf)
        agree(engine.world, replicas)
        for replica in replicas:
            replica.average_weights()
        due = time_is_up() or t % evaluate_every == 0 or t > last - evaluate_last
        tested = dispatch.evaluate(t) if due else [RoundTests() for _ in replicas]
        for replica, tests in zip(replicas, tested, strict=True):
            replica.keep_best(tests.current)
        faults = engine.faults()
        seconds = (time.perf_counter() - begun) / len(replicas)
        stored = engine.world.sums(np.array([float(memory_of(replica.state.memories)) for replica in replicas]))
        records = [
            record(each, tests, seconds, int(held), faults)
            for each, tests, held in zip(current, tested, stored, strict=True)
        ]
        if not math.isfinite(largest):  # asked here, so that the device need not be waited for
            for each in current:
                each.check_weights()
        yield records


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
