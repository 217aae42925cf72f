"""SCAFFOLD's control variates."""

from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmfl.federation import RoundView
from mmfl.local.base import LocalPosition, LocalRule
from mmfl.updates import StorageOptions, Updates
from mmfl.updates.memory import ClientMemory


@dataclass
class Controls:
    """SCAFFOLD's memory of a task: the control variates c_i of the clients who ever trained it, and the server's c."""

    clients: ClientMemory
    server: Tensor


@dataclass(frozen=True)
class Scaffold(LocalRule):
    """SCAFFOLD: control variates remove the drift towards its own data from a client's steps (Karimireddy et al. 2020).

    They are mean steps, before the learning rate, and correct steps: with SGD, those are gradients. The server's c is
    sum d c_i, with the shares d of the clients that are present: c must weight the clients as the objective does, or
    the rounds end at the optimum of another objective.
    """

    keep: StorageOptions = field(default_factory=StorageOptions)
    downloads = 2
    after_optimiser = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "keep", StorageOptions.of(self.keep))

    def offset(self, position: LocalPosition) -> Tensor | None:
        """c - c_i."""
        return position.correction

    def start(self, clients: int, weights: Tensor) -> Controls:
        """All control variates are zero."""
        return Controls(ClientMemory.start(self.keep, clients, weights), torch.zeros_like(weights))

    def begin(self, view: RoundView, task: int, state: Controls) -> Controls:
        """c = sum d c_i, with this round's shares."""
        state.clients.reweight(view.sizes_of(task))
        return Controls(state.clients, state.clients.mean(max(int(view.examples[task]), 1)).to(state.server))

    def correction(self, client: NDArray[np.int64], state: Controls) -> Tensor:
        """c - c_i."""
        return state.server - state.clients.stored.held_rows(client)

    def observe(self, updates: Updates, rates: NDArray[np.float64], view: RoundView, state: Controls) -> Controls:
        """c_i+ = c_i - c + G / (K lr) with K local steps of rate lr; c follows when the next round begins."""
        before = state.clients.stored.of(updates.client).matrix()
        after = before - state.server + updates.rows / rates
        state.clients.replace(updates, before, after, view.sizes_of(updates.task))
        return state
