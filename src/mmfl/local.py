"""Local rules: how a client turns the gradient of a mini-batch into a step.

Rules work on flat rows, [jobs, piece], so that one line serves a single client and a cohort alike.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmfl.client_memory import Memory
from mmfl.errors import UserError
from mmfl.stored import Keep
from mmfl.transfer import sent
from mmfl.world import World

if TYPE_CHECKING:
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

    def begin(self, view: "RoundView", task: int, state: Any, world: World) -> Any:
        """The memory at the beginning of a round, before anyone trains: who is there may have changed."""
        return state

    def correction(self, client: NDArray[np.int64], state: Any) -> Tensor | None:
        """What these clients add to every gradient of the round, [clients, parameters]."""
        return None

    def observe(self, updates: "Updates", rate: float, view: "RoundView", state: Any) -> Any:
        """The memory after the round's training with learning rate `rate`."""
        return state


@dataclass(frozen=True)
class SGD(LocalRule):
    """Plain mini-batch SGD: the gradient itself."""

    def direction(self, step: LocalStep) -> Tensor:
        """The gradient."""
        return step.gradient


@dataclass(frozen=True)
class Prox(LocalRule):
    """FedProx: a pull of strength `mu` back to the global weights (Li et al. 2020)."""

    mu: float = 0.01

    def __post_init__(self) -> None:
        if not self.mu >= 0:
            raise UserError(f"local rule 'prox': mu is {self.mu}; expected a number >= 0.")

    def direction(self, step: LocalStep) -> Tensor:
        """The gradient of loss + mu / 2 |w - start|^2."""
        return step.gradient + self.mu * (step.weights - step.start)


@dataclass
class Controls:
    """SCAFFOLD's memory of a task: the control variates c_i of the clients who ever trained it, and the server's c."""

    clients: Memory
    server: Tensor


@dataclass(frozen=True)
class Scaffold(LocalRule):
    """SCAFFOLD: control variates take the drift of its own data out of a client's steps (Karimireddy et al. 2020).

    The server's c is sum d c_i, with the shares d of those who are there: as the objective weighs the clients, so must
    c, or the rounds end at the optimum of another objective.
    """

    keep: Keep = field(default_factory=Keep)
    downloads = 2

    def __post_init__(self) -> None:
        object.__setattr__(self, "keep", Keep.of(self.keep))

    def direction(self, step: LocalStep) -> Tensor:
        """g - c_i + c."""
        return step.gradient if step.correction is None else step.gradient + step.correction

    def start(self, clients: int, weights: Tensor) -> Controls:
        """All control variates are zero."""
        return Controls(Memory.start(self.keep, clients, weights), torch.zeros_like(weights))

    def begin(self, view: "RoundView", task: int, state: Controls, world: World) -> Controls:
        """c = sum d c_i, with this round's shares."""
        sizes = view.sizes[:, task]
        state.clients.reweight(sizes)
        server = world.sum(state.clients.sum / max(int(sizes.sum()), 1))
        return Controls(state.clients, server.to(state.server))

    def correction(self, client: NDArray[np.int64], state: Controls) -> Tensor:
        """c - c_i."""
        return state.server - state.clients.stored.rows(client)

    def observe(self, updates: "Updates", rate: float, view: "RoundView", state: Controls) -> Controls:
        """c_i+ = c_i - c + G / (K lr) with K local steps; c follows when the next round begins."""
        here = updates.local
        steps = sent(here.steps, here.flat)[:, None]
        before = state.clients.stored.rows(here.client)
        after = before - state.server + here.flat / (steps * rate)
        state.clients.replace(updates, before, after, view.sizes[:, updates.task])
        return state


LOCAL_RULES: dict[str, Callable[..., LocalRule]] = {"sgd": SGD, "prox": Prox, "scaffold": Scaffold}
