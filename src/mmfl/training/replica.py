"""Replica: one method with one seed on one federation, and all that it remembers."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

from mmfl.engine import Engine, Evaluation
from mmfl.errors import UserError
from mmfl.federation import Federation, RoundView
from mmfl.methods import Method
from mmfl.pace import RoundPace
from mmfl.record import LastTest
from mmfl.training.average import AveragedWeights
from mmfl.training.best import BestWeights
from mmfl.training.clock import Clock, TimedRound
from mmfl.training.diagnostics import Tally
from mmfl.training.pending import RequestState
from mmfl.updates.batch_norm import BatchNorm, LocalBatchNorm, SharedBatchNorm
from mmfl.updates.expected_residuals import ExpectedResiduals
from mmfl.updates.store import ClientVectorStore, StorageOptions, set_world

_log = logging.getLogger("mmfl")


@dataclass
class TrainingState:
    """All that a replica remembers from round to round; a checkpoint is this and nothing else."""

    round: int
    weights: list[Tensor]
    allocation: Any
    aggregation: list[Any]
    local: list[Any]
    tally: Tally
    batch_norm: list[BatchNorm | None]
    optimiser: list[ClientVectorStore | None]
    expected: list[ExpectedResiduals | None]
    best: BestWeights | None = None
    average: AveragedWeights | None = None
    clock: Clock | None = None
    requests: RequestState | None = None

    @property
    def memories(self) -> list[Any]:
        """What is stored of clients: what the method remembers, and what they keep for themselves."""
        batch_norm = [norm for norm in self.batch_norm if isinstance(norm, LocalBatchNorm)]
        return [self.aggregation, self.local, batch_norm, self.optimiser]


def start_batch_norm(federation: Federation, task: int, seed: int, engine: Engine) -> BatchNorm | None:
    """What a task has of batch norm besides its weights, before the first round; None without batch norm."""
    initial = engine.initial_batch_norm(federation, task, seed)
    if not len(initial):
        return None
    local = federation.tasks[task].batch_norm == "local"
    return LocalBatchNorm.start(federation.clients, initial) if local else SharedBatchNorm(initial)


def start_optimiser(federation: Federation, task: int, engine: Engine) -> ClientVectorStore | None:
    """The states of clients' optimisers before the first round; None where clients keep none."""
    initial = engine.initial_optimiser_state(federation, task)
    return StorageOptions().start(federation.clients, initial) if len(initial) else None


def start_expected(method: Method, clients: int, memory: list[Any]) -> list[ExpectedResiduals | None]:
    """The residuals to expect of each task before the first round; None where the allocation does not need them."""
    if "expected_residuals" not in method.allocation.needs:
        return [None for _ in memory]
    rule = method.aggregation
    if any(rule.last_updates(each) is None for each in memory):
        raise UserError(
            f"method '{method.name}': allocation {type(method.allocation).__name__} needs expected residuals, but "
            f"aggregation {type(rule).__name__} remembers no updates; expected one that does, such as 'forecast'."
        )
    return [ExpectedResiduals.start(clients) for _ in memory]


@dataclass(eq=False)
class Replica:
    """One method with one seed on one federation. Replicas share nothing but the engine that runs them.

    `tested` holds what the last test of each task found besides single numbers, if it did. `warned` has the tasks of
    which the user was told that all updates of a round were rejected.
    """

    federation: Federation
    method: Method
    seed: int
    rate: float
    state: TrainingState
    tested: dict[str, LastTest] = field(default_factory=dict)
    warned: set[str] = field(default_factory=set)

    @classmethod
    def start(
        cls,
        federation: Federation,
        method: Method,
        seed: int,
        rate: float,
        engine: Engine,
        keep_best: bool = False,
        average: float | None = None,
    ) -> "Replica":
        """A replica before its first round."""
        method.pace.check(method.name, method.allocation, method.aggregation, federation)
        clients, tasks = federation.clients, len(federation.tasks)
        weights = [engine.initial(federation, s, seed) for s in range(tasks)]
        batch_norm = [start_batch_norm(federation, s, seed, engine) for s in range(tasks)]
        memory = [method.aggregation.start(clients, w) for w in weights]
        requests = RequestState.start(method, federation, weights, rate, engine.world)
        state = TrainingState(
            0,
            weights,
            method.allocation.start(clients, tasks),
            memory,
            [method.local.start(clients, w) for w in weights],
            Tally.start(clients, tasks),
            batch_norm,
            [start_optimiser(federation, s, engine) for s in range(tasks)],
            start_expected(method, clients, memory),
            BestWeights.start(weights, batch_norm) if keep_best else None,
            None if average is None else AveragedWeights.start(average, weights, batch_norm),
            None if federation.devices is None or requests else Clock.start(method.pace, clients, weights),
            requests,
        )
        set_world(state, engine.world)
        return cls(federation, method, seed, rate, state)

    def view(self, round: int) -> RoundView:
        """Who is there, how much data, what capacity."""
        return self.federation.view(round, rate=self.rate, seed=self.seed)

    def timed_round(self, round: int, clock: Clock) -> tuple[TimedRound, RoundView]:
        """A round on the clock, and the view of those who can train in it."""
        assert isinstance(self.method.pace, RoundPace)
        return TimedRound.start(self.federation, self.method.pace, clock, round, self.rate, self.seed)

    def warn_of_rejected(self, task: int, round: int, updates: int) -> None:
        """Tells the user once that nothing of a task's updates could be used in a round."""
        name = self.federation.tasks[task].name
        if name not in self.warned:
            self.warned.add(name)
            count = "the only update" if updates == 1 else f"all {updates} updates"
            _log.warning(
                f"task '{name}', method '{self.method.name}', seed {self.seed}, round {round}: {count} had values that "
                "are not finite; a smaller learning rate or weight decay, or clipping, may help."
            )

    def average_weights(self) -> None:
        """Adds the round that ended to the average of the weights, where that was asked for."""
        state = self.state
        if state.average is not None:
            arrived = np.flatnonzero(self.federation.present_tasks(state.round)).tolist()
            state.average.observe(arrived, state.weights, state.batch_norm)

    def keep_best(self, tested: Mapping[int, Evaluation]) -> None:
        """Keeps the weights that were tested, where they are the best so far and that was asked for."""
        state = self.state
        if state.best is not None:
            state.best.observe(state.round, tested, self.federation.tasks, state.weights, state.batch_norm)
