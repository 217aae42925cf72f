"""Optimisers of local training: what a client subtracts from its weights at a step, given the gradient.

They work on flat rows, [jobs, piece], so that one line serves a single client and a cohort alike; the state of a piece
is its own rows of the state vectors, which are zero at first.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from torch import Tensor

from mmfl.checks import check, check_positive, is_number

StateLifetime = Literal["training", "client"]
"""How long the state of an optimiser lives.

- "training": every local training begins without any.
- "client": a client goes on with the state, and the number of steps, that its last training of the task ended with.
"""


@dataclass(frozen=True, kw_only=True)
class Optimiser:
    """How a client turns gradients into steps; those that compare equal share a cohort.

    Gradients are clipped first: entries to `clip_value`, then the whole gradient to length `clip_norm`, as torch's
    `clip_grad_value_` and `clip_grad_norm_` do. `weight_decay` adds that multiple of the weights to the gradient. A
    subclass says in `state_vectors` how many vectors it keeps, and changes them in `direction`.
    """

    weight_decay: float = 0.0
    clip_norm: float | None = None
    clip_value: float | None = None

    def __post_init__(self) -> None:
        self._check("weight_decay", 0, np.inf)
        for name in ("clip_norm", "clip_value"):
            if getattr(self, name) is not None:
                check_positive(self._where, name, getattr(self, name))

    @property
    def state_vectors(self) -> int:
        """Vectors as long as the weights that are kept from step to step."""
        return 0

    def state_values(self, parameters: int) -> int:
        """Numbers in the state of one job: the vectors, one after another, and the steps that were taken with them."""
        return self.state_vectors * parameters + 1

    @property
    def is_plain(self) -> bool:
        """Whether a step subtracts the gradient itself."""
        return self == SGD()

    def direction(self, gradient: Tensor, weights: Tensor, state: Sequence[Tensor], number: Tensor) -> Tensor:
        """What a step subtracts before it is scaled by the learning rate, [jobs, piece], element by element.

        `number` [jobs, 1] counts the steps of each job with this state, 1 for the first, in double precision.
        """
        raise TypeError(f"optimiser {type(self).__name__} does not say how to step.")

    @property
    def _where(self) -> str:
        return f"optimiser {type(self).__name__}"

    def _check(self, name: str, least: float, below: float) -> None:
        value = getattr(self, name)
        valid = is_number(value, least, below) and value < below
        expected = f"a number of at least {least}" + ("" if below == np.inf else f" and below {below}")
        check(valid, self._where, name, value, expected)


@dataclass(frozen=True, kw_only=True)
class SGD(Optimiser):
    """Stochastic gradient descent, optionally with momentum or Nesterov momentum.

    >>> SGD(momentum=0.9).state_vectors
    1
    """

    momentum: float = 0.0
    nesterov: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check("momentum", 0, 1)
        needed = "a momentum above 0 with nesterov = true"
        check(self.momentum > 0 or not self.nesterov, self._where, "momentum", self.momentum, needed)

    @property
    def state_vectors(self) -> int:
        """The momentum."""
        return 1 if self.momentum else 0

    def direction(self, gradient: Tensor, weights: Tensor, state: Sequence[Tensor], number: Tensor) -> Tensor:
        """m = momentum m + g, and that; with Nesterov g + momentum m."""
        gradient = gradient + self.weight_decay * weights if self.weight_decay else gradient
        if not self.momentum:
            return gradient
        state[0].mul_(self.momentum).add_(gradient)
        return gradient + self.momentum * state[0] if self.nesterov else state[0]


@dataclass(frozen=True, kw_only=True)
class Adam(Optimiser):
    """Adam (Kingma & Ba 2015), with decay rates `beta1` of the mean and `beta2` of the squares of gradients."""

    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check("beta1", 0, 1)
        self._check("beta2", 0, 1)
        check_positive(self._where, "eps", self.eps)

    @property
    def state_vectors(self) -> int:
        """Means of the gradients and of their squares."""
        return 2

    def direction(self, gradient: Tensor, weights: Tensor, state: Sequence[Tensor], number: Tensor) -> Tensor:
        """Mean over root of mean square, both corrected for their start at zero."""
        gradient = gradient + self.weight_decay * weights if self.weight_decay else gradient
        return self._adam_direction(gradient, state, number)

    def _adam_direction(self, gradient: Tensor, state: Sequence[Tensor], number: Tensor) -> Tensor:
        mean, square = state
        mean.lerp_(gradient, 1 - self.beta1)
        square.mul_(self.beta2).addcmul_(gradient, gradient, value=1 - self.beta2)
        corrections = (1 - self.beta1**number).to(gradient), (1 - self.beta2**number).sqrt().to(gradient)
        return mean / corrections[0] / (square.sqrt() / corrections[1] + self.eps)


@dataclass(frozen=True, kw_only=True)
class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov & Hutter 2019), which is not adapted; 0.01 by default."""

    weight_decay: float = 0.01

    def direction(self, gradient: Tensor, weights: Tensor, state: Sequence[Tensor], number: Tensor) -> Tensor:
        """Adam's, plus the decay."""
        return self._adam_direction(gradient, state, number) + self.weight_decay * weights


OPTIMISERS: dict[str, Callable[..., Optimiser]] = {"sgd": SGD, "adam": Adam, "adamw": AdamW}
