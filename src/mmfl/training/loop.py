"""The round loop: Algorithm 1 of Zhang et al. 2025, for one replica or many in lockstep."""

import math
import time
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils import get_total_norm

from mmfl.engine import Engine, Evaluation, Workload
from mmfl.errors import UserError
from mmfl.record import RoundRecord
from mmfl.training.diagnostics import memory_of
from mmfl.training.record import record
from mmfl.training.replica import Replica
from mmfl.training.round import Round
from mmfl.training.rule_checks import check_finite
from mmfl.updates import Trained, World
from mmfl.updates.updates import finite_rows, row_sums

Wanted = tuple[Round, int, NDArray[np.bool_]]
"""A replica's round, a task, and marks on the clients that are to train it."""


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
        current = [Round.begin(replica, t, engine.eager) for replica in replicas]
        for each in current:
            each.prepare(engine.world)
        train(engine, requests(current, [each.early for each in current]))
        measure(engine, current, diagnose)
        for each in current:
            each.allocate()
        collect(engine, current)
        for portion in portions(engine, requests(current, [each.late for each in current])):
            train(engine, [(each, s, clients) for each, s, clients in portion if s not in each.trained])
            updates = [each.trained[s].flat for each, s, _ in portion]
            sums = row_sums(updates)
            finite = finite_rows(updates, sums)
            del updates
            for (each, s, _), total, good in zip(portion, sums, finite, strict=True):
                each.aggregate(s, good, float(np.abs(total[good]).max(initial=0.0)))
        for each in current:
            each.end()
        largest = get_total_norm([weights for each in current for weights in each.replica.state.weights], math.inf)
        agree(engine.world, replicas)
        due = t % evaluate_every == 0 or t > last - evaluate_last
        tested = evaluate(engine, replicas, t) if due else [{} for _ in replicas]
        faults = engine.faults()
        seconds = (time.perf_counter() - begun) / len(replicas)
        stored = engine.world.sums(np.array([float(memory_of(replica.state.memories)) for replica in replicas]))
        records = [
            record(each, tests, seconds, int(held), faults)
            for each, tests, held in zip(current, tested, stored, strict=True)
        ]
        check_weights(current, largest)  # here, so that the device need not be waited for
        yield records


def requests(current: Sequence[Round], masks: Sequence[NDArray[np.bool_] | None]) -> list[Wanted]:
    """Every replica's round with every task and the clients that are to train it, by marks on [clients, tasks]."""
    return [
        (each, s, mask[:, s])
        for each, mask in zip(current, masks, strict=True)
        if mask is not None
        for s in range(mask.shape[1])
    ]


def portions(engine: Engine, wanted: Sequence[Wanted]) -> Iterator[list[Wanted]]:
    """Requests in their order, as many at a time as there is room for the updates of: then they are trained together,
    and gone before the next."""
    held = 0
    portion: list[Wanted] = []
    for each, s, clients in wanted:
        size = 4 * int(clients.sum()) * len(each.replica.state.weights[s]) // engine.world.size
        if portion and held + size > engine.room:
            yield portion
            held, portion = 0, []
        held += size
        portion.append((each, s, clients))
    yield portion


def check_weights(current: Sequence[Round], largest: Tensor) -> None:
    """Makes sure that the aggregations gave finite weights, given the largest of them all."""
    if math.isfinite(largest):
        return
    for each in current:
        method, state, tasks = each.replica.method, each.replica.state, each.replica.federation.task_names
        for s, given in each.given.items():
            check_finite(method.name, method.aggregation, tasks[s], each.view.round, state.weights[s], *given)


def agree(world: World, replicas: Sequence[Replica]) -> None:
    """Makes sure that all processes have the same weights: an aggregation that reads `updates.flat` for all there is
    would give each its own."""
    if world.size == 1:
        return
    pairs = [(replica.method, weights) for replica in replicas for weights in replica.state.weights]
    mine = np.array([float(torch.nan_to_num(weights).double().sum()) for _, weights in pairs])
    mean = world.sums(mine) / world.size
    apart = world.sums((np.abs(mine - mean) > 1e-9 * np.maximum(np.abs(mean), 1)).astype(np.float64)) > 0
    if apart.any():
        method = pairs[int(np.flatnonzero(apart)[0])][0]
        raise UserError(
            f"method '{method.name}': its aggregation gave every process weights of its own; `Updates` says how a rule "
            "works on rows that several processes hold."
        )


def measure(engine: Engine, current: Sequence[Round], diagnose: bool) -> None:
    """Adds the losses that were asked for (or all, for diagnosis) to the views; one pass per task."""
    masks = [(each, each.view.able if diagnose else each.asked.get("losses")) for each in current]
    known = [
        (each, s, mine(engine, mask[:, s])) for each, mask in masks if mask is not None for s in range(mask.shape[1])
    ]
    parts = [(each, s, client) for each, s, client in known if len(client)]
    workloads = [
        Workload(each.replica.federation, s, each.replica.state.weights[s], client) for each, s, client in parts
    ]
    for each, mask in masks:
        if mask is not None:
            each.view = each.view.with_signals(losses=np.zeros(mask.shape))
    for (each, s, client), losses in zip(parts, engine.losses(workloads), strict=True):
        each.view.losses[client, s] = losses
    for each, mask in masks:
        if mask is not None:
            each.view = each.view.with_signals(losses=engine.world.sums(each.view.losses))


def train(engine: Engine, wanted: Sequence[Wanted]) -> None:
    """Local training of the given clients (marked, [clients]) of rounds and tasks, in one request."""
    if not wanted:
        return
    trained = engine.train([each.training(s, mine(engine, clients)) for each, s, clients in wanted])
    everybody = [np.flatnonzero(clients) for _, _, clients in wanted]
    for (each, s, _), answer in zip(wanted, exchanged(engine.world, everybody, trained), strict=True):
        each.trained[s] = answer


def collect(engine: Engine, current: Sequence[Round]) -> None:
    """Has those that trained before the draw, and were drawn, send their updates, if they have not."""
    waiting = [(each, s) for each in current for s in each.trained]
    wanted = [np.flatnonzero(each.drawn[:, s]) for each, s in waiting]
    collected = engine.collect([each.trained[s] for each, s in waiting], wanted)
    for (each, s), trained in zip(waiting, collected, strict=True):
        each.trained[s] = trained


def mine(engine: Engine, clients: NDArray[np.bool_]) -> NDArray[np.int64]:
    """The numbers of the marked clients, of those that this process works for."""
    marked = np.flatnonzero(clients)
    return marked[engine.world.mine(marked)]


def exchanged(world: World, clients: Sequence[NDArray[np.int64]], trained: Sequence[Trained]) -> Sequence[Trained]:
    """What all processes have trained: of these clients, in this order, everyone knows losses and steps. The updates
    stay where they are."""
    if world.size == 1:
        return trained
    bounds = np.cumsum([len(each) for each in clients])
    columns = np.zeros((2, bounds[-1]))
    here = [np.searchsorted(each, own.client) for each, own in zip(clients, trained, strict=True)]
    for rows, own, mine in zip(np.split(columns, bounds[:-1], axis=1), trained, here, strict=True):
        rows[0, mine], rows[1, mine] = own.loss, own.steps
    known = np.split(world.sums(columns), bounds[:-1], axis=1)
    return [
        Trained(each, own.flat, loss, steps.astype(np.int64), mine, world)
        for each, own, (loss, steps), mine in zip(clients, trained, known, here, strict=True)
    ]


def evaluate(engine: Engine, replicas: Sequence[Replica], round: int) -> list[dict[int, Evaluation]]:
    """Test results of every replica's tasks that have arrived."""
    here = [(n, s) for n, r in enumerate(replicas) for s in np.flatnonzero(r.federation.present_tasks(round)).tolist()]
    nobody = np.zeros(0, dtype=np.int64)
    workloads = [Workload(replicas[n].federation, s, replicas[n].state.weights[s], nobody) for n, s in here]
    results: list[dict[int, Evaluation]] = [{} for _ in replicas]
    for (n, s), result in zip(here, engine.evaluate(workloads), strict=True):
        results[n][s] = result
    return results
