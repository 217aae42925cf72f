"""Attacks, for simulations: clients that send false updates or train on false labels, to measure what that costs.

A run without an attack is the same, bit for bit, as before there were any. Attackers do nothing else: they can be drawn
like all others, report true losses and numbers of examples, and send true statistics of batch norm.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmfl.checks import check, check_at_least, is_number, is_whole
from mmfl.errors import UserError
from mmfl.randomness import Purpose, bits, clients_uniform, normal
from mmfl.tensors import to_device


@dataclass(frozen=True, eq=False)
class AttackerView:
    """What the attackers among the clients that train a task in a round know.

    `updates` [attackers, parameters] are those that they would send if they were honest, `client` their numbers.
    `honest` are the mean and the standard deviation of the others' updates, [parameters] each: None where the attack
    does not ask for them (`needs_honest`) or nobody else trains.
    """

    seed: int
    round: int
    task: int
    client: NDArray[np.int64]
    updates: Tensor
    honest: tuple[Tensor, Tensor] | None = None


@dataclass(frozen=True)
class Attack:
    """What some of the clients do instead of what they should. Subclass it and override `poison` or `flip`.

    `clients` is the share of the clients that attack, chosen at random by the seed of the federation, or a list of
    their numbers.

    >>> SignFlip(clients=0.2).attackers(10, seed=0).sum()
    np.int64(2)
    """

    clients: float | Sequence[int]

    needs_honest = False

    def __post_init__(self) -> None:
        whole = isinstance(self.clients, list | tuple) and all(is_whole(each, 0) for each in self.clients)
        expected = "the share of the clients that attack, in [0, 1], or a list of their numbers"
        check(whole or is_number(self.clients, 0, 1), self.where, "clients", self.clients, expected)

    @property
    def where(self) -> str:
        """What errors call it."""
        return f"attack {type(self).__name__}"

    def attackers(self, clients: int, seed: int) -> NDArray[np.bool_]:
        """Which clients attack, [clients]."""
        marks = np.zeros(clients, dtype=bool)
        if not isinstance(self.clients, Sequence):
            order = np.argsort(clients_uniform(clients, seed, Purpose.ATTACK)[:, 0], kind="stable")
            marks[order[: round(self.clients * clients)]] = True
            return marks
        beyond = next((each for each in self.clients if each >= clients), None)
        if beyond is not None:
            raise UserError(f"{self.where}: client {beyond} of {clients}; expected numbers from 0 to {clients - 1}.")
        marks[list(self.clients)] = True
        return marks

    def poison(self, view: AttackerView) -> Tensor:
        """What the attackers send, [attackers, parameters]."""
        return view.updates

    def flip(self, labels: Tensor, classes: int) -> Tensor:
        """What the attackers take for the labels of their examples, [examples]."""
        return labels

    @property
    def flips_labels(self) -> bool:
        """Whether it changes labels."""
        return type(self).flip is not Attack.flip


@dataclass(frozen=True)
class SignFlip(Attack):
    """Attackers send their update with the opposite sign, times `factor`."""

    factor: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self.where, "factor", self.factor, 0)

    def poison(self, view: AttackerView) -> Tensor:
        """- factor G."""
        return view.updates * -self.factor


@dataclass(frozen=True)
class Scaling(Attack):
    """Attackers send their update times `factor`."""

    factor: float = 10.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check(is_number(self.factor, -math.inf, math.inf), self.where, "factor", self.factor, "a number")

    def poison(self, view: AttackerView) -> Tensor:
        """factor G."""
        return view.updates * self.factor


@dataclass(frozen=True)
class GaussianNoise(Attack):
    """Attackers add Gaussian noise to their update, about `factor` times as long as the update itself."""

    factor: float = 10.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self.where, "factor", self.factor, 0)

    def poison(self, view: AttackerView) -> Tensor:
        """G + factor ||G|| / sqrt(P) N(0, 1)."""
        updates = view.updates
        client = to_device(view.client, updates.device)
        key = bits(view.seed, Purpose.ATTACK, view.round, view.task, client)
        noise = normal(bits(key[:, None], torch.arange(updates.shape[1], device=updates.device)))
        deviation = updates.norm(dim=1, keepdim=True) * (self.factor / math.sqrt(updates.shape[1]))
        return torch.addcmul(updates, deviation, noise.to(updates))


@dataclass(frozen=True)
class LabelFlip(Attack):
    """Attackers train on their examples with false labels: class c of C is taken for C - 1 - c."""

    def flip(self, labels: Tensor, classes: int) -> Tensor:
        """C - 1 - c."""
        return classes - 1 - labels


@dataclass(frozen=True)
class LittleIsEnough(Attack):
    """Attackers all send the mean of the honest updates less `z` standard deviations (Baruch et al. 2019): close enough
    not to be noticed, far enough to do harm.

    They know the honest updates of the round. Where no honest client trains, they send what they have.
    """

    z: float = 1.5

    needs_honest = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check(is_number(self.z, -math.inf, math.inf), self.where, "z", self.z, "a number")

    def poison(self, view: AttackerView) -> Tensor:
        """mean - z deviation."""
        if view.honest is None:
            return view.updates
        mean, deviation = view.honest
        return (mean - self.z * deviation).expand_as(view.updates)


ATTACKS: dict[str, Callable[..., Attack]] = {
    "sign-flip": SignFlip,
    "scaling": Scaling,
    "gaussian-noise": GaussianNoise,
    "label-flip": LabelFlip,
    "little-is-enough": LittleIsEnough,
}
