"""What an engine is asked, and what it answers."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from mmfl.engine.choices import Choices
from mmfl.engine.evaluation import Evaluation
from mmfl.federation import Federation
from mmfl.local import LocalRule
from mmfl.updates import ClientVectorStore, Trained, World


@dataclass(frozen=True, eq=False)
class Workload:
    """Clients of one task, and the global weights [parameters] they are to work with.

    `batch_norm` is what clients have of batch norm besides: a row for each, or one for all, [rows, values]. These are
    its statistics, after its scales and shifts where these are local. None: those of a new module.
    """

    federation: Federation
    task: int
    weights: Tensor
    client: NDArray[np.int64]
    batch_norm: Tensor | None = field(default=None, kw_only=True)


@dataclass(frozen=True, eq=False)
class Training(Workload):
    """Local trainings of a round: every client starts from the same weights and follows the same rule.

    `correction` [clients, parameters] is what the rule adds to every gradient of a client, if it does. An engine whose
    clients are elsewhere need not fetch every update: only those marked in `sends` [clients] are needed as vectors now
    (None: all). For the others the norm is enough and, where updates are `remembered`, the inner product with the
    client's last one. `optimiser_state` [clients, values] is what the clients' optimisers go on with, where
    clients keep that; None: they begin without any, and none is returned. `coefficients` [clients] are what the
    aggregation will multiply the updates with to add them up, where it does nothing else with them.

    Random numbers are those of the round; or, where clients began at different times, those of each one's `serial`
    number [clients], and no client occurs twice. Schedules follow the round all the same.
    """

    round: int
    seed: int
    local: LocalRule
    correction: Tensor | None = None
    sends: NDArray[np.bool_] | None = None
    remembered: ClientVectorStore | None = None
    optimiser_state: Tensor | None = None
    coefficients: NDArray[np.float64] | None = None
    serial: NDArray[np.int64] | None = None

    def address_of(self, client: NDArray[np.int64]) -> int | NDArray[np.int64]:
        """The round, or the serial numbers of these clients: a part of the address of their random numbers."""
        if self.serial is None:
            return self.round
        order = np.argsort(self.client)
        return np.asarray(self.serial[order[np.searchsorted(self.client, client, sorter=order)]])


class Engine(Protocol):
    """Runs the clients' work. Requests of several tasks and replicas come in one call, so that they can run as one.

    In a `world` of several processes each one trains and measures its own clients. An `eager` engine trains clients
    who train in any case before the allocation, and is asked for losses after that.
    """

    world: World
    eager: bool
    choices: Choices

    @property
    def room(self) -> int:
        """Bytes of updates that it can return at once; a single request may take more."""

    def initial(self, federation: Federation, task: int, seed: int) -> Tensor:
        """The initial weights of a task, flat, on the engine's device."""

    def initial_batch_norm(self, federation: Federation, task: int, seed: int) -> Tensor:
        """What a new model of a task has of batch norm besides its weights; nothing without batch norm."""

    def initial_optimiser_state(self, federation: Federation, task: int) -> Tensor:
        """The state of the optimiser before a client's first step, all zero; nothing where it is not kept here."""

    def train(self, trainings: Sequence[Training]) -> list[Trained]:
        """Trains the clients of all requests."""

    def collect(self, trained: Sequence[Trained], wanted: Sequence[NDArray[np.int64]]) -> list[Trained]:
        """The same trainings, with the updates of the wanted clients fetched."""

    def faults(self) -> dict[str, int]:
        """Counts of what went wrong with clients since the last call, by kind."""

    def losses(self, workloads: Sequence[Workload]) -> list[NDArray[np.float64]]:
        """f: mean loss of the given weights on each client's training data."""

    def evaluate(self, workloads: Sequence[Workload]) -> list[Evaluation]:
        """Loss and metrics on the task's test examples (of the clients, where test sets are theirs).

        All processes are asked for the same, and all get the answer.
        """
