"""Dispatch: which process trains which clients of a round, when, and how many at once.

The round loop asks for losses, for the updates that a decision rests on, and for all others once it is made.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from mmfl.engine.base import Engine, Evaluation, Training, Workload
from mmfl.federation import Federation
from mmfl.updates import Trained, World
from mmfl.updates.updates import finite_rows, row_sums

Marks = NDArray[np.bool_]


class RoundWork(Protocol):
    """The clients' work of one replica's round. Pairs of clients and tasks are marks [clients, tasks]."""

    @property
    def federation(self) -> Federation:
        """Whose clients work."""

    @property
    def weights(self) -> Sequence[Tensor]:
        """The global weights of each task."""

    @property
    def trained_anyway(self) -> Marks | None:
        """The pairs that train whether drawn or not; None where nobody does."""

    @property
    def decides_by_updates(self) -> bool:
        """Whether the decision rests on the updates of those that train anyway."""

    @property
    def drawn(self) -> Marks:
        """The pairs that were drawn, once that is decided."""

    def training(self, task: int, client: NDArray[np.int64]) -> Training:
        """The request to train some clients on a task."""


Work = TypeVar("Work", bound=RoundWork)


@dataclass(frozen=True, eq=False)
class Returned(Generic[Work]):
    """What came back for a task of a round: which of the rows in this process are finite, and the largest sum of one
    of these."""

    work: Work
    task: int
    trained: Trained
    finite: Marks
    largest: float


class Dispatch(Generic[Work]):
    """The work of one round of many replicas, which an engine does together."""

    def __init__(self, engine: Engine, rounds: Sequence[Work]):
        self.engine, self.rounds = engine, rounds
        self._trained: dict[tuple[Work, int], Trained] = {}

    def losses(self, wanted: Sequence[tuple[Work, Marks]]) -> list[NDArray[np.float64]]:
        """The losses of marked pairs, [clients, tasks], 0 elsewhere; one pass per task."""
        losses = [np.zeros(marks.shape) for _, marks in wanted]
        parts = [
            (n, s, client)
            for n, (_, marks) in enumerate(wanted)
            for s in range(marks.shape[1])
            if len(client := self._owned(marks[:, s]))
        ]
        workloads = [Workload(wanted[n][0].federation, s, wanted[n][0].weights[s], client) for n, s, client in parts]
        for (n, s, client), measured in zip(parts, self.engine.losses(workloads), strict=True):
            losses[n][client, s] = measured
        return [self.engine.world.sums(each) for each in losses]

    def train_before_decision(self) -> list[dict[int, Trained]]:
        """The updates that decisions rest on, by round and task. An engine that would rather train those that train
        anyway before the decision does so now."""
        early = {
            each: marks
            for each in self.rounds
            if (marks := each.trained_anyway) is not None and (each.decides_by_updates or self.engine.eager)
        }
        self._train([(each, s, marks[:, s]) for each, marks in early.items() for s in range(marks.shape[1])])
        return [{s: trained for (of, s), trained in self._trained.items() if of is each} for each in self.rounds]

    def updates(self) -> Iterator[list[Returned[Work]]]:
        """The updates of all rounds and tasks once it is decided who is drawn: as many at a time as there is room
        for. They are let go of as the list is emptied."""
        self._collect()
        for portion in self._portions():
            self._train([request for request in portion if request[:2] not in self._trained])
            trained = [self._trained.pop((each, s)) for each, s, _ in portion]
            sums = row_sums([each.flat for each in trained])
            finite = finite_rows([each.flat for each in trained], sums)
            yield [
                Returned(each, s, trained.pop(0), good, float(np.abs(total[good]).max(initial=0.0)))
                for (each, s, _), total, good in zip(portion, sums, finite, strict=True)
            ]

    def evaluate(self, round: int) -> list[dict[int, Evaluation]]:
        """Test results of the tasks that have arrived, by round and task."""
        present = [each.federation.present_tasks(round) for each in self.rounds]
        pairs = [(n, s) for n, tasks in enumerate(present) for s in np.flatnonzero(tasks).tolist()]
        nobody = np.zeros(0, dtype=np.int64)
        workloads = [Workload(self.rounds[n].federation, s, self.rounds[n].weights[s], nobody) for n, s in pairs]
        results: list[dict[int, Evaluation]] = [{} for _ in self.rounds]
        for (n, s), result in zip(pairs, self.engine.evaluate(workloads), strict=True):
            results[n][s] = result
        return results

    def _portions(self) -> Iterator[list[tuple[Work, int, Marks]]]:
        """Requests in their order, as many at a time as there is room for the updates of."""
        held = 0
        portion: list[tuple[Work, int, Marks]] = []
        for each in self.rounds:
            marks = self._trained_late(each)
            for s in range(marks.shape[1]):
                size = 4 * int(marks[:, s].sum()) * len(each.weights[s]) // self.engine.world.size
                if portion and held + size > self.engine.room:
                    yield portion
                    held, portion = 0, []
                held += size
                portion.append((each, s, marks[:, s]))
        yield portion

    def _trained_late(self, each: Work) -> Marks:
        """The pairs that train after the decision."""
        if (each, 0) in self._trained:
            return np.zeros_like(each.drawn)
        return each.drawn if each.trained_anyway is None else each.trained_anyway

    def _train(self, wanted: Sequence[tuple[Work, int, Marks]]) -> None:
        """Local training of the marked clients [clients] of rounds and tasks, in one request."""
        if not wanted:
            return
        trained = self.engine.train([each.training(s, self._owned(clients)) for each, s, clients in wanted])
        everybody = [np.flatnonzero(clients) for _, _, clients in wanted]
        for (each, s, _), answer in zip(wanted, _exchange(self.engine.world, everybody, trained), strict=True):
            self._trained[each, s] = answer

    def _collect(self) -> None:
        """Has those that trained before the draw, and were drawn, send their updates, if they have not."""
        pairs = list(self._trained)
        wanted = [np.flatnonzero(each.drawn[:, s]) for each, s in pairs]
        collected = self.engine.collect([self._trained[pair] for pair in pairs], wanted)
        self._trained = dict(zip(pairs, collected, strict=True))

    def _owned(self, clients: Marks) -> NDArray[np.int64]:
        """The numbers of the marked clients, of those that this process works for."""
        marked = np.flatnonzero(clients)
        return marked[self.engine.world.owns(marked)]


def _exchange(world: World, clients: Sequence[NDArray[np.int64]], trained: Sequence[Trained]) -> Sequence[Trained]:
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
        Trained(each, own.flat, loss, steps.astype(np.int64), place, world)
        for each, own, (loss, steps), place in zip(clients, trained, known, places, strict=True)
    ]
