"""What is asked of an engine and what it answers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from mmfl.engine.choices import Choices
from mmfl.federation import Federation
from mmfl.local import LocalRule
from mmfl.updates import ClientVectorStore, Trained, World


@dataclass(frozen=True, eq=False)
class Workload:
    """Clients of one task, and the global weights [parameters] they are to work with."""

    federation: Federation
    task: int
    weights: Tensor
    client: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Training(Workload):
    """Local trainings of a round: every client starts from the same weights and follows the same rule.

    `correction` [clients, parameters] is what the rule adds to every gradient of a client, where it does. An engine
    whose clients are elsewhere need not fetch every update: only those that `sends` marks [clients] are wanted as
    vectors now (None: all), of the others it is enough to know the norm and, where there are `remembered` ones, the
    inner product with the client's last update.
    """

    round: int
    seed: int
    local: LocalRule
    correction: Tensor | None = None
    sends: NDArray[np.bool_] | None = None
    remembered: ClientVectorStore | None = None


@dataclass(frozen=True)
class Evaluation:
    """Mean loss and metric of global weights on the test examples."""

    loss: float
    metric: float


class Engine(Protocol):
    """Runs the clients' work. Requests of several tasks and replicas come together, to be run together.

    In a `world` of several processes each is asked to train and measure its own clients. An `eager` one would rather
    train those who train in any case before it is decided who is drawn, and asked for losses after that.
    """

    world: World
    eager: bool
    choices: Choices

    @property
    def room(self) -> int:
        """How many bytes of updates it can return at once; a single request may take more."""
        ...

    def initial(self, federation: Federation, task: int, seed: int) -> Tensor:
        """The initial weights of a task, flat, where the engine wants them."""
        ...

    def train(self, trainings: Sequence[Training]) -> list[Trained]:
        """Local training, for all requests at once."""
        ...

    def collect(self, trained: Sequence[Trained], wanted: Sequence[NDArray[np.int64]]) -> list[Trained]:
        """What was trained, with the updates of the wanted clients at hand."""
        ...

    def faults(self) -> dict[str, int]:
        """What went wrong with clients since this was last asked, by kind."""
        ...

    def losses(self, workloads: Sequence[Workload]) -> list[NDArray[np.float64]]:
        """f: mean loss of the given weights on each client's training data."""
        ...

    def evaluate(self, workloads: Sequence[Workload]) -> list[Evaluation]:
        """Loss and metric on the task's test examples (of the clients, where test sets are theirs).

        All processes are asked for the same, and all get to know it.
        """
        ...
