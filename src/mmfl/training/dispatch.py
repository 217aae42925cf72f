"""Dispatch: which process trains which clients of a round, when, and how many at once."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from mmfl.engine import Engine
from mmfl.training.attacked import attacked
from mmfl.training.round import Round, RoundTests
from mmfl.updates import Trained, World
from mmfl.updates.updates import finite_rows, row_sums

Clients = NDArray[np.int64]
_Request = tuple[Round, int, Clients]  # a round, a task and the clients that train it, in ascending order


class Dispatch:
    """The clients' work in one round of many replicas, which an engine does together."""

    def __init__(self, engine: Engine, rounds: Sequence[Round]):
        self.engine, self.rounds = engine, rounds
        self._trained: dict[tuple[Round, int], Trained] = {}

    def train_before_decision(self) -> None:
        """Trains those whose updates decisions rest on. An engine that would rather train all that train anyway before
        the decision does so now."""
        early = {
            each: marks
            for each in self.rounds
            if (marks := each.trained_anyway) is not None and (each.decides_by_updates or self.engine.eager)
        }
        self._train(
            [(each, s, np.flatnonzero(marks[:, s])) for each, marks in early.items() for s in range(marks.shape[1])]
        )

    def trained_early(self, round: Round) -> dict[int, Trained]:
        """What has been trained before the decision, by task."""
        return {s: trained for (each, s), trained in self._trained.items() if each is round}

    def measure(self, diagnose: bool) -> None:
        """Adds the losses that were asked for (or all, for diagnosis) to the views; one pass per task."""
        marks = {each: each.view.able if diagnose else each.asked.get("losses") for each in self.rounds}
        wanted = {each: pairs for each, pairs in marks.items() if pairs is not None}
        losses = {each: np.zeros(pairs.shape) for each, pairs in wanted.items()}
        parts = [
            (each, s, client)
            for each, pairs in wanted.items()
            for s in range(pairs.shape[1])
            if len(client := self._owned(np.flatnonzero(pairs[:, s])))
        ]
        workloads = [each.workload(s, client) for each, s, client in parts]
        for (each, s, client), measured in zip(parts, self.engine.losses(workloads), strict=True):
            losses[each][client, s] = measured
        for each, table in losses.items():
            each.view = each.view.with_signals(losses=self.engine.world.sums(table))

    def aggregate(self) -> None:
        """The next weights of all tasks, once it is decided who is drawn. As many updates at a time are there as there
        is room for, and they are let go of one task after another."""
        self._collect()
        for portion in self._portions():
            self._train([request for request in portion if request[:2] not in self._trained])
            trained = [self._trained.pop((each, s)) for each, s, _ in portion]
            sums = row_sums([each.flat for each in trained])
            finite = finite_rows([each.flat for each in trained], sums)
            for (each, s, _), total, good in zip(portion, sums, finite, strict=True):
                each.aggregate(s, trained.pop(0), good, float(np.abs(total[good]).max(initial=0.0)))

    def evaluate(self, round: int) -> list[RoundTests]:
        """Test results of the tasks that have arrived, by round; those of averaged weights come with them."""
        present = [each.federation.present_tasks(round) for each in self.rounds]
        pairs = [(n, s) for n, tasks in enumerate(present) for s in np.flatnonzero(tasks).tolist()]
        workloads = [self.rounds[n].test(s) for n, s in pairs]
        averages = {
            pair: workload
            for pair, current in zip(pairs, workloads, strict=True)
            if (workload := self.rounds[pair[0]].test_average(current)) is not None
        }
        found = self.engine.evaluate([*workloads, *averages.values()])
        current = dict(zip(pairs, found[: len(pairs)], strict=True))
        average = dict(zip(averages, found[len(pairs) :], strict=True))
        return [
            RoundTests(*({s: result for (m, s), result in part.items() if m == n} for part in (current, average)))
            for n in range(len(self.rounds))
        ]

    def _portions(self) -> Iterator[list[_Request]]:
        """Requests in their order, as many at a time as there is room for what they return."""
        held = 0
        portion: list[_Request] = []
        for each in self.rounds:
            for s, clients in enumerate(self._trained_late(each)):
                size = 4 * len(clients) * each.returned_values(s) // self.engine.world.size
                if portion and held + size > self.engine.room:
                    yield portion
                    held, portion = 0, []
                held += size
                portion.append((each, s, clients))
        yield portion

    def _trained_late(self, each: Round) -> list[Clients]:
        """The clients of each task that train after the decision."""
        tasks, marks = range(len(each.weights)), each.trained_anyway
        if (each, 0) in self._trained:
            return [np.zeros(0, dtype=np.int64) for _ in tasks]
        if marks is None:
            return [each.arrived.drawn_clients(s) for s in tasks]
        return [np.flatnonzero(marks[:, s]) for s in tasks]

    def _train(self, wanted: Sequence[_Request]) -> None:
        """Local training of clients of rounds and tasks, in one request."""
        if not wanted:
            return
        trained = self.engine.train([each.training(s, self._owned(clients)) for each, s, clients in wanted])
        everybody = [clients for _, _, clients in wanted]
        for (each, s, _), answer in zip(wanted, exchange(self.engine.world, everybody, trained), strict=True):
            self._trained[each, s] = attacked(answer, each.federation, each.replica.seed, each.view.round, s)

    def _collect(self) -> None:
        """Has those that trained before the draw, and were drawn, send their updates, if they have not."""
        pairs = list(self._trained)
        wanted = [each.arrived.drawn_clients(s) for each, s in pairs]
        collected = self.engine.collect([self._trained[pair] for pair in pairs], wanted)
        self._trained = dict(zip(pairs, collected, strict=True))

    def _owned(self, clients: Clients) -> Clients:
        """Those of the clients that this process works for."""
        return clients[self.engine.world.owns(clients)]


def exchange(world: World, clients: Sequence[NDArray[np.int64]], trained: Sequence[Trained]) -> Sequence[Trained]:
    """What all processes have trained: of these clients, in this order, everyone knows losses and steps. The updates
    stay where they are."""
    if world.size == 1:
        return trained
    bounds = np.cumsum([len(each) for each in clients])
    columns = np.zeros((2, bounds[-1]))
    places = [np.searchsorted(each, own.client) for each, own in zip(clients, trained, strict=True)]
    for rows, own, place in zip(np.split(columns, bounds[:-1], axis=1), trained, places, strict=True):
        rows[0, place], rows[1, place] = own.loss, own.steps
    known = np.split(world.sums(columns), bounds[:-1], axis=1)
    return [
        replace(own, client=each, loss=loss, steps=steps.astype(np.int64), here=place, world=world)
        for each, own, (loss, steps), place in zip(clients, trained, known, places, strict=True)
    ]
