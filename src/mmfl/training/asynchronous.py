"""Asynchronous training: the loop of methods whose pace has no rounds that anyone waits for.

Clients are trained as late as possible: when an aggregation needs an update that has not been computed, all requests
that are under way are trained together, those of all tasks, versions and replicas in one call of the engine. So clients
that begin at different times still train in cohorts.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby

import numpy as np

from mmfl.engine import Engine
from mmfl.pace.requests import Request
from mmfl.pace.routing import repetition
from mmfl.record import RoundRecord
from mmfl.training.asynchronous_record import record_asynchronous
from mmfl.training.asynchronous_round import AsynchronousRound, Requesting
from mmfl.training.dispatch import Dispatch, exchange
from mmfl.training.loop import conclude, schedule_of_tests
from mmfl.training.pending import TrainedBlock
from mmfl.training.replica import Replica
from mmfl.updates.updates import finite_rows, row_sums

_Group = tuple[AsynchronousRound, list[Request]]  # requests of one task and version, of different clients


def asynchronous_rounds(
    replicas: Sequence[Replica],
    engine: Engine,
    last: int,
    evaluate_every: int = 1,
    evaluate_last: int = 1,
    diagnose: bool = False,
    time_is_up: Callable[[], bool] = lambda: False,
    most_together: int | None = None,
) -> Iterator[list[RoundRecord]]:
    """One part of a run after another, each with as many arrivals as a synchronous round has trainings.

    Arguments are those of `rounds`. `most_together` limits how many requests train in one call; it changes results by
    floating-point rounding at most.
    """
    requesting = [Requesting(replica, engine) for replica in replicas]
    is_tested = schedule_of_tests(last, evaluate_every, evaluate_last, time_is_up)
    for t in range(replicas[0].state.round + 1, last + 1):
        begun = time.perf_counter()
        current = [AsynchronousRound.open(each, t) for each in requesting]
        dispatch = Dispatch(engine, current)
        if diagnose:
            dispatch.measure(diagnose)
        for each in current:
            each.decide()
        work_together(engine, current, most_together)
        for each in current:
            each.close()
        yield conclude(current, dispatch, begun, is_tested, record_asynchronous)


def work_together(engine: Engine, rounds: Sequence[AsynchronousRound], most_together: int | None = None) -> None:
    """Takes all rounds to their end; whenever all of them wait for requests to be trained, trains those of all."""
    working = [(each, each.work()) for each in rounds]
    while working:
        waiting = []
        for each, work in working:
            for _ in work:
                waiting.append((each, work))
                break
        if waiting:
            train_pending(engine, [each for each, _ in waiting], most_together)
        working = waiting


def train_pending(engine: Engine, rounds: Sequence[AsynchronousRound], most_together: int | None = None) -> None:
    """Trains the requests that are waited for, and as many others that are under way as there is room for, those that
    arrive first before others."""
    chosen = []
    for each in rounds:
        needed, others = each.pending()
        room = engine.room * engine.world.size // len(rounds) - sum(each.returned_bytes(r.task) for r in needed)
        number = len(needed)
        for request in others:
            room -= each.returned_bytes(request.task)
            if room < 0 or (most_together is not None and number >= most_together):
                break
            needed.append(request)
            number += 1
        chosen += _groups(each, needed)
    world = engine.world
    clients = [np.array([request.client for request in group], dtype=np.int64) for _, group in chosen]
    trainings = [
        each.request_training(group, client[world.owns(client)])
        for (each, group), client in zip(chosen, clients, strict=True)
    ]
    trained = exchange(world, clients, engine.train(trainings))
    totals = row_sums([each.flat for each in trained])
    finite = finite_rows([each.flat for each in trained], totals)
    for (each, group), client, answer, total, good in zip(chosen, clients, trained, totals, finite, strict=True):
        serial = np.array([request.serial for request in group])[np.searchsorted(client, answer.client)]
        each.requesting.state.trained[group[0].task].add(TrainedBlock.of(serial, answer, total, good))
    for each in rounds:
        each.forget_old_versions()


def _groups(each: AsynchronousRound, requests: Sequence[Request]) -> list[_Group]:
    """The requests by task and version, in the order of clients; a client's further requests of the same version are
    groups of their own."""
    ordered = sorted(requests, key=lambda r: (r.task, r.version, r.client, r.serial))
    groups: list[_Group] = []
    for _, together in groupby(ordered, key=lambda r: (r.task, r.version)):
        same = list(together)
        again = repetition(np.array([request.client for request in same], dtype=np.int64))
        groups += [(each, [same[n] for n in np.flatnonzero(again == k)]) for k in range(int(again.max()) + 1)]
    return groups
