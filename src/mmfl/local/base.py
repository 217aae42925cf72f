"""LocalRule: how a client turns the gradient of a mini-batch into a step.

Rules work on flat rows, [jobs, piece], so that one line serves a single client and a cohort alike.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from mmfl.federation import RoundView
from mmfl.updates import Updates


@dataclass(frozen=True, eq=False)
class LocalStep:
    """A local step about to be taken by some jobs: where they are, and the gradient there, [jobs, piece].

    A step is taken piece by piece of the parameter vector, so that a gradient need not be copied to be used.
    """

    gradient: Tensor
    weights: Tensor
    starts: Tensor
    which: Tensor
    correction: Tensor | None = None

    @property
    def start(self) -> Tensor:
        """The global weights each job began from, [jobs, piece]."""
        return self.starts[self.which]


class LocalRule:
    """The direction of a local step; rules that compare equal share a cohort (make them frozen dataclasses).

    A rule with a memory, per task, makes it in `start` and renews it in `begin` and `observe`, which are not called
    without one; from it comes the `correction` that a client adds to every gradient of the round. `downloads` counts
    the vectors a client needs to begin.
    """

    downloads: int = 1

    def direction(self, step: LocalStep) -> Tensor:
        """What the step subtracts, before it is scaled by the learning rate, [jobs, piece]: number by number, since a
        piece is only part of the parameters."""
        raise TypeError(f"{type(self).__name__} does not say where to step.")

    def start(self, clients: int, weights: Tensor) -> Any:
        """The memory of one task before the first round."""
        return None

    def begin(self, view: RoundView, task: int, state: Any) -> Any:
        """The memory at the beginning of a round, before anyone trains: who is there may have changed."""
        return state

    def correction(self, client: NDArray[np.int64], state: Any) -> Tensor | None:
        """What these clients add to every gradient of the round, [clients, parameters]. Where several processes share a
        run, each asks for its own clients."""
        return None

    def observe(self, updates: Updates, rate: float, view: RoundView, state: Any) -> Any:
        """The memory after the round's training with learning rate `rate`."""
        return state
