"""Bounds for MFA-Rand and MFA-RR (Bhuyan, Moharir & Joshi 2022)."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from math import isfinite, sqrt
from typing import ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mmfl.checks import check, check_at_least, check_positive, check_whole, is_number


def check_curvature(where: str, smoothness: float, strong_convexity: float) -> None:
    """Refuses constants that are not 0 < mu <= L."""
    check_positive(where, "strong_convexity (mu)", strong_convexity)
    expected = f"L >= mu = {strong_convexity:g}, as no function is more convex than smooth"
    check(is_number(smoothness, strong_convexity, np.inf), where, "smoothness (L)", smoothness, expected)


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One of the models of a federation, as Assumptions 1 to 4 describe it (Bhuyan et al. 2022, Section 2).

    `smoothness` L and `strong_convexity` mu hold for every client's loss; `gradient_bound` G bounds the root mean
    square of its stochastic gradients; `heterogeneity` Gamma is the minimum of the global loss minus the mean of the
    clients' minimum losses. The gradient of a single example satisfies |grad f|^2 <= beta1 + beta2 |grad F_k|^2:
    `example_offset` and `example_factor`, by default those of clients whose examples are all equal. The `clients` (N)
    are divided evenly among the `models` (M) and take `local_steps` (E) in a round.

    >>> Problem(smoothness=4, strong_convexity=1, gradient_bound=2, heterogeneity=0.1, local_steps=2, clients=24).models
    1
    """

    smoothness: float
    strong_convexity: float
    gradient_bound: float
    heterogeneity: float
    example_offset: float = 0.0
    example_factor: float = 1.0
    local_steps: int
    clients: int
    models: int = 1

    def __post_init__(self) -> None:
        where = "problem constants"
        check_curvature(where, self.smoothness, self.strong_convexity)
        check_positive(where, "gradient_bound (G)", self.gradient_bound)
        check_at_least(where, "heterogeneity (Gamma)", self.heterogeneity, 0)
        check_at_least(where, "example_offset (beta1)", self.example_offset, 0)
        check_at_least(where, "example_factor (beta2)", self.example_factor, 1)
        check_whole(where, "local_steps (E)", self.local_steps)
        check_whole(where, "clients (N)", self.clients)
        check_whole(where, "models (M)", self.models)
        expected = f"a multiple of models (M) = {self.models}: parts of equal size"
        check(self.clients % self.models == 0, where, "clients (N)", self.clients, expected)

    @property
    def example_gradient_square(self) -> float:
        """beta1 + beta2 G^2: bounds the squared gradient of a single example."""
        return self.example_offset + self.example_factor * self.gradient_bound**2


@dataclass(frozen=True, kw_only=True)
class ErrorBound(ABC):
    """A bound on the mean distance of the global weights to the optimum, under a decaying learning rate.

    `beta` and `gamma` determine the learning rate; `start` is the distance before round 1 (its root mean square if the
    start is random). Rounds t count from 1, and the distance at t is that of the weights at the beginning of round t.
    """

    problem: Problem
    beta: float
    gamma: float
    start: float

    theorem: ClassVar[str]
    caution: ClassVar[int]  # the first learning rate, beta / (1 + gamma), must be below 1 / (caution L)

    def __post_init__(self) -> None:
        p, where = self.problem, self.theorem
        check_at_least(where, "start", self.start, 0)
        valid = isfinite(self.beta) and self.beta * p.strong_convexity > 1
        check(valid, where, "beta", self.beta, f"beta > 1 / mu = {1 / p.strong_convexity:g}")
        minimum = self.caution * p.smoothness * self.beta - 1
        valid = isfinite(self.gamma) and self.gamma > minimum
        symbols = "L beta - 1" if self.caution == 1 else f"{self.caution} L beta - 1"
        check(valid, where, "gamma", self.gamma, f"gamma > {symbols} = {minimum:g}")

    @abstractmethod
    def learning_rate(self, rounds: ArrayLike) -> NDArray[np.float64]:
        """eta_t in the given rounds."""

    @abstractmethod
    def error(self, rounds: ArrayLike) -> NDArray[np.float64]:
        """The bound on Delta(t) in the given rounds."""

    @abstractmethod
    def rounds(self, epsilon: float) -> float:
        """T(epsilon): the t (a real number) at which the bound reaches `epsilon`; 1 if it holds from the start."""

    def with_models(self, models: int) -> Self:
        """The same bound for another number of models."""
        return replace(self, problem=replace(self.problem, models=models))

    def _since_one(self, rounds: ArrayLike) -> NDArray[np.float64]:
        t = np.asarray(rounds, dtype=float)
        check_at_least(self.theorem, "the first round", t.min(initial=1), 1)
        return t

    def _positive(self, epsilon: float) -> float:
        check_positive(self.theorem, "epsilon", epsilon)
        return epsilon


@dataclass(frozen=True, kw_only=True)
class RandomSplitBound(ErrorBound):
    """MFA-Rand: the distance falls as 1 / sqrt(t) (Bhuyan et al. 2022, Theorem 1 and Table 4).

    Needs beta > 1 / mu and gamma > 4 L beta - 1. With one model it is FedAvg's bound under full participation.

    >>> problem = Problem(smoothness=4, strong_convexity=1, gradient_bound=2, heterogeneity=0.1,
    ...                   local_steps=2, clients=24, models=4)
    >>> bound = RandomSplitBound(problem=problem, beta=2, gamma=32, start=1)
    >>> print(f"{bound.nu:.1f} {bound.error(1000):.3f} {bound.rounds(epsilon=0.1):.0f}")
    148.6 0.379 14829
    """

    theorem = "Theorem 1 (MFA-Rand)"
    caution = 4

    @property
    def training_noise(self) -> float:
        """B: the error from heterogeneity, mini-batches and local drift, even with full participation."""
        p = self.problem
        minibatch = 4 * p.example_gradient_square / p.clients
        return 6 * p.smoothness * p.heterogeneity + minibatch + 8 * (p.local_steps - 1) ** 2 * p.gradient_bound**2

    @property
    def split_noise(self) -> float:
        """C: the variance of an update by only N / M clients, drawn without replacement."""
        return (self.problem.models - 1) * self.noise_per_model

    @property
    def noise_per_model(self) -> float:
        """What each additional model adds to C: E^2 G^2 / (N - 1)."""
        p = self.problem
        return (p.local_steps * p.gradient_bound) ** 2 / (p.clients - 1) if p.clients > 1 else 0.0

    @property
    def noise_scale(self) -> float:
        """beta^2 / (beta mu - 1): the factor of the noise in nu."""
        return self.beta**2 / (self.beta * self.problem.strong_convexity - 1)

    @property
    def nu(self) -> float:
        """The larger of the contributions of the noise and of the start."""
        noise = self.noise_scale * (self.training_noise + self.split_noise)
        return max(noise, (1 + self.gamma) * self.start**2)

    def learning_rate(self, rounds: ArrayLike) -> NDArray[np.float64]:
        """beta / (t + gamma)."""
        return self.beta / (self._since_one(rounds) + self.gamma)

    def error(self, rounds: ArrayLike) -> NDArray[np.float64]:
        """sqrt(nu / (t + gamma))."""
        return np.sqrt(self.nu / (self._since_one(rounds) + self.gamma))

    def rounds(self, epsilon: float) -> float:
        """nu / epsilon^2 - gamma."""
        return max(1.0, self.nu / self._positive(epsilon) ** 2 - self.gamma)


@dataclass(frozen=True, kw_only=True)
class RotatingSplitBound(ErrorBound):
    """MFA-RR: the distance falls as 1 / t (Bhuyan et al. 2022, Theorem 2; with `sample_error` 0, Corollary 1).

    Needs beta > 1 / mu and gamma > beta L - 1. `sample_error` V limits how much of a client's data local steps may
    leave out (see `left_out`); 0 means full gradients.

    Y and Z assume that each update has weight 1 / N, so that the M rounds of a frame add up to one step of all clients.
    A server that averages its N / M clients takes steps M times as long: for it, the bound holds with learning rates
    eta_t / M.

    >>> problem = Problem(smoothness=4, strong_convexity=1, gradient_bound=2, heterogeneity=0.1,
    ...                   local_steps=2, clients=24, models=4)
    >>> bound = RotatingSplitBound(problem=problem, beta=2, gamma=8, start=1)
    >>> print(f"{bound.phi:.1f} {bound.error(1000):.3f} {bound.rounds(epsilon=0.1):.0f}")
    118.0 0.457 4688
    """

    sample_error: float = 0.0

    theorem = "Theorem 2 (MFA-RR)"
    caution = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self.theorem, "sample_error (V)", self.sample_error, 0)

    @property
    def frame_drift(self) -> float:
        """Y: the drift of the weights during a frame, while the parts take turns."""
        p = self.problem
        return p.smoothness * p.gradient_bound * p.local_steps**2 * (p.models - 1) / (2 * p.models)

    @property
    def local_drift(self) -> float:
        """Z: the drift of a client's weights from those of the others during its local steps."""
        p = self.problem
        return p.smoothness * p.gradient_bound * p.local_steps * (p.local_steps - 1)

    @property
    def phi(self) -> float:
        """The drift within a frame, plus the larger of the contributions of the errors and of the start."""
        # beta mu - 1 divides: from D' <= (1 - eta mu) D + eta^2 (Y + Z + V) for a frame with eta = beta / (l + gamma),
        # D <= psi / (l + gamma) follows by induction over l if psi (beta mu - 1) >= beta^2 (Y + Z + V).
        p = self.problem
        within_frame = self.beta * p.local_steps * p.gradient_bound * (p.models - 1) / p.models
        errors = self.beta**2 * (self.frame_drift + self.local_drift + self.sample_error)
        return within_frame + max(errors / (self.beta * p.strong_convexity - 1), (1 + self.gamma) * self.start)

    def learning_rate(self, rounds: ArrayLike) -> NDArray[np.float64]:
        """beta / (l + gamma) in all rounds of frame l = 1, 2, ...

        The paper has l = 1 + floor(t / M). Since rounds count from 1, t - 1 in place of t keeps the rate constant in a
        frame.
        """
        frame = 1 + (self._since_one(rounds) - 1) // self.problem.models
        return self.beta / (frame + self.gamma)

    def left_out(self, rounds: ArrayLike) -> NDArray[np.float64]:
        """The largest share of its client's examples that a local step may leave out, as Theorem 2 requires.

        It is eta_t V / (2 E sqrt(beta1 + beta2 G^2)), at most 1, and falls to 0: mini-batches grow to the whole data.
        """
        p = self.problem
        per_step = self.sample_error / (2 * p.local_steps * sqrt(p.example_gradient_square))
        return np.minimum(1.0, self.learning_rate(rounds) * per_step)

    def error(self, rounds: ArrayLike) -> NDArray[np.float64]:
        """phi / (t / M + gamma)."""
        bound: NDArray[np.float64] = self.phi / (self._since_one(rounds) / self.problem.models + self.gamma)
        return bound

    def rounds(self, epsilon: float) -> float:
        """M (phi / epsilon - gamma)."""
        return max(1.0, self.problem.models * (self.phi / self._positive(epsilon) - self.gamma))
