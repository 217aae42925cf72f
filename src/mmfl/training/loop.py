"""The round loop: Algorithm 1 of Zhang et al. 2025, for one replica or many in lockstep."""

import math
import time
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils import get_total_norm

from mmfl.engine import Engine, Evaluation
from mmfl.engine.dispatch import Dispatch, Returned
from mmfl.errors import UserError
from mmfl.record import RoundRecord
from mmfl.training.diagnostics import memory_of
from mmfl.training.record import record
from mmfl.training.replica import Replica
from mmfl.training.round import Round
from mmfl.training.rule_checks import check_finite
from mmfl.updates import World


def rounds(
    replicas: Sequence[Replica],
    engine: Engine,
    last: int,
    evaluate_every: int = 1,
    evaluate_last: int = 1,
    diagnose: bool = False,
) -> Iterator[list[RoundRecord]]:
    """One federated round after another, all replicas in lockstep; yields what happened, a record per replica.

    Tests every so many rounds, and after each of the last ones.
    """
    for t in range(replicas[0].state.round + 1, last + 1):
        begun = time.perf_counter()
        current = [Round.begin(replica, t) for replica in replicas]
        dispatch = Dispatch(engine, current)
        early = dispatch.train_before_decision()
        measure(dispatch, diagnose)
        for each in current:
            each.allocate(early.pop(0))
        for portion in dispatch.updates():
            while portion:
                aggregate(portion.pop(0))
        for each in current:
            each.end()
        largest = get_total_norm([weights for each in current for weights in each.weights], math.inf)
        agree(engine.world, replicas)
        due = t % evaluate_every == 0 or t > last - evaluate_last
        tested = evaluate(dispatch, t) if due else [{} for _ in replicas]
        faults = engine.faults()
        seconds = (time.perf_counter() - begun) / len(replicas)
        stored = engine.world.sums(np.array([float(memory_of(replica.state.memories)) for replica in replicas]))
        records = [
            record(each, tests, seconds, int(held), faults)
            for each, tests, held in zip(current, tested, stored, strict=True)
        ]
        check_weights(current, largest)  # here, so that the device need not be waited for
        yield records


def aggregate(returned: Returned[Round]) -> None:
    """The next weights of a task, from the updates that came back for it."""
    returned.work.aggregate(returned)


def check_weights(current: Sequence[Round], largest: Tensor) -> None:
    """Makes sure that the aggregations gave finite weights, given the largest of them all."""
    if math.isfinite(largest):
        return
    for each in current:
        method, state, tasks = each.replica.method, each.replica.state, each.replica.federation.task_names
        for s, given in each.given.items():
            check_finite(method.name, method.aggregation, tasks[s], each.view.round, state.weights[s], *given)


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


def measure(dispatch: Dispatch[Round], diagnose: bool) -> None:
    """Adds the losses that were asked for (or all, for diagnosis) to the views."""
    marks = [each.view.able if diagnose else each.asked.get("losses") for each in dispatch.rounds]
    wanted = [(each, mark) for each, mark in zip(dispatch.rounds, marks, strict=True) if mark is not None]
    for (each, _), losses in zip(wanted, dispatch.losses(wanted), strict=True):
        each.view = each.view.with_signals(losses=losses)


def evaluate(dispatch: Dispatch[Round], round: int) -> list[dict[int, Evaluation]]:
    """Test results of every replica's tasks that have arrived."""
    return dispatch.evaluate(round)
