"""LocalRule: how a client turns the gradient of a mini-batch into a step.

Rules work on flat rows, [jobs, piece], so that one line serves a single client and a cohort alike.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from mmfl.federation import RoundView
from mmfl.updates import Updates

Direction = TypeVar("Direction", bound=Callable[..., Tensor])


@dataclass(frozen=True, eq=False, kw_only=True)
class LocalPosition:
    """Where some jobs are before a local step, in one piece of the parameter vector, [jobs, piece].

    Job j started at `starts[start_index[j]]`, and has begun step `number[j]` [jobs, 1] of its local training, 1 being
    the first. `state` holds the rule's `state_vectors` of the jobs.
    """

    weights: Tensor
    starts: Tensor
    start_index: Tensor
    number: Tensor
    correction: Tensor | None = None
    state: tuple[Tensor, ...] = ()

    @property
    def start(self) -> Tensor:
        """The global weights each job started from, [jobs, piece]."""
        return self.starts[self.start_index]


@dataclass(frozen=True, eq=False, kw_only=True)
class LocalStep(LocalPosition):
    """A local step that some jobs are about to take: where they are, and the gradient there, [jobs, piece].

    A step is taken piece by piece of the parameter vector, so that gradients need not be copied into one; `norm`
    [jobs, 1] is the length of the whole gradient, for rules that say `needs_norm`.
    """

    gradient: Tensor
    norm: Tensor | None = None


def recordable(direction: Direction) -> Direction:
    """Declares that a rule's `direction` runs the same tensor operations at every step, and nothing else.

    A GPU may then record the step once (as a CUDA graph) and replay it. The declaration belongs to the method: a
    subclass with a `direction` of its own declares it again.
    """
    direction.recordable = True  # type: ignore[attr-defined]
    return direction


class LocalRule:
    """The direction of a local step; rules that compare equal share a cohort (make them frozen dataclasses).

    A rule defines one of two methods. `offset`, if its direction is the gradient plus something that does not depend
    on the gradient: the engine then records steps on a GPU and keeps the gradients of linear layers factored. It comes
    before the task's optimiser, as a part of the loss would, or with `after_optimiser` after it. Or
    `direction`, for anything else; steps are recorded if it is declared `recordable`.

    A rule that needs vectors of its own during local training, such as a momentum, says in `state_vectors` how many:
    they are zero when a client begins, and `direction` changes them in place. With `needs_norm` it is told the length
    of the whole gradient.

    A rule with a memory, per task, makes it in `start` and renews it in `begin` and `observe`, which are not called
    without one; from it comes the `correction` that a client adds to every gradient of the round. `downloads` counts
    the vectors a client needs to begin.
    """

    downloads: int = 1
    state_vectors: int = 0
    needs_norm: bool = False
    after_optimiser: bool = False

    def offset(self, position: LocalPosition) -> Tensor | None:
        """What is added to the gradient, [jobs, piece]; None for nothing. Tensor operations, element by element."""
        raise TypeError(f"{type(self).__name__} defines neither `offset` nor `direction`.")

    def direction(self, step: LocalStep) -> Tensor:
        """What the step subtracts, before it is scaled by the learning rate, [jobs, piece]: element by element, since a
        piece is only part of the parameters."""
        offset = self.offset(step)
        return step.gradient if offset is None else step.gradient + offset

    @property
    def adds_to_gradient(self) -> bool:
        """Whether the direction is the gradient plus `offset`."""
        return type(self).direction is LocalRule.direction

    @property
    def is_recordable(self) -> bool:
        """Whether a step may be recorded once and replayed."""
        return self.adds_to_gradient or getattr(type(self).direction, "recordable", False)

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

    def observe(self, updates: Updates, rates: NDArray[np.float64], view: RoundView, state: Any) -> Any:
        """The memory after the round's training; `rates` [clients] are the sums of the learning rates of all steps."""
        return state
