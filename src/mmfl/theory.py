"""What the papers prove: bounds on the distance to the optimum, computed from the constants they are stated in.

MFA-Rand and MFA-RR (Bhuyan, Moharir & Joshi 2022): describe the federation with a `Problem`, choose the learning rate
with beta and gamma, and read the bound off `RandomSplitBound` (Theorem 1) or `RotatingSplitBound` (Theorem 2,
Corollary 1); `gain`, `theorem_3_applies` and `gain_threshold` compare training models together with training them in
turn. Sampling with any probabilities (Zhang et al. 2025): `SamplingProblem` and `SamplingRound` give Theorem 1's gamma,
V_tau and three variance terms.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from math import isfinite, sqrt
from typing import ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mmfl.errors import UserError


def _require(holds: bool | np.bool_, where: str, what: str, expected: str) -> None:
    if not holds:
        raise UserError(f"{where}: {what}; expected {expected}.")


def _require_number(where: str, name: str, value: float, least: float, strictly: bool = False) -> None:
    inside = value > least if strictly else value >= least
    sign = ">" if strictly else ">="
    _require(inside and isfinite(value), where, f"{name} is {value}", f"a finite number {sign} {least:g}")


def _require_count(where: str, name: str, value: int) -> None:
    whole = isinstance(value, int | np.integer)
    _require(whole and value >= 1, where, f"{name} is {value}", "a whole number >= 1")


def _require_curvature(where: str, smoothness: float, strong_convexity: float) -> None:
    _require_number(where, "strong_convexity (mu)", strong_convexity, 0, strictly=True)
    _require_number(where, "smoothness (L)", smoothness, 0, strictly=True)
    what = f"smoothness (L) is {smoothness:g}, strong_convexity (mu) is {strong_convexity:g}"
    _require(smoothness >= strong_convexity, where, what, "L >= mu, as no function is more convex than smooth")


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One of the models of a federation, as Assumptions 1 to 4 describe it (Bhuyan et al. 2022, Section 2).

    `smoothness` L and `strong_convexity` mu hold for every client's loss; `gradient_bound` G bounds the root mean
    square of its stochastic gradients; `heterogeneity` Gamma is the least global loss minus the mean of the clients'
    least losses. The gradient of a single example obeys |grad f|^2 <= beta1 + beta2 |grad F_k|^2: `example_offset` and
    `example_factor`, by default those of clients whose examples are all alike. The `clients` (N) are dealt evenly to
    the `models` (M) and take `local_steps` (E) a round.

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
        _require_curvature(where, self.smoothness, self.strong_convexity)
        _require_number(where, "gradient_bound (G)", self.gradient_bound, 0, strictly=True)
        _require_number(where, "heterogeneity (Gamma)", self.heterogeneity, 0)
        _require_number(where, "example_offset (beta1)", self.example_offset, 0)
        _require_number(where, "example_factor (beta2)", self.example_factor, 1)
        _require_count(where, "local_steps (E)", self.local_steps)
        _require_count(where, "clients (N)", self.clients)
        _require_count(where, "models (M)", self.models)
        what = f"{self.clients} clients for {self.models} models"
        _require(self.clients % self.models == 0, where, what, "parts of equal size: N a multiple of M")

    @property
    def example_gradient_square(self) -> float:
        """beta1 + beta2 G^2: bounds the squared gradient of a single example."""
        return self.example_offset + self.example_factor * self.gradient_bound**2


@dataclass(frozen=True, kw_only=True)
class ErrorBound(ABC):
    """A bound on the mean distance of the global weights to the optimum, under a decaying learning rate.

    `beta` and `gamma` shape the learning rate; `start` is the distance before round 1 (for a random start its root
    mean square). Rounds t count from 1, and the distance at t is that of the weights with which round t begins.
    """

    problem: Problem
    beta: float
    gamma: float
    start: float

    theorem: ClassVar[str]
    caution: ClassVar[int]  # the first learning rate, beta / (1 + gamma), must be below 1 / (caution L)

    def __post_init__(self) -> None:
        p, where = self.problem, self.theorem
        _require_number(where, "start", self.start, 0)
        good = isfinite(self.beta) and self.beta * p.strong_convexity > 1
        _require(good, where, f"beta is {self.beta}", f"beta > 1 / mu = {1 / p.strong_convexity:g}")
        least = self.caution * p.smoothness * self.beta - 1
        good = isfinite(self.gamma) and self.gamma > least
        symbols = "L beta - 1" if self.caution == 1 else f"{self.caution} L beta - 1"
        _require(good, where, f"gamma is {self.gamma}", f"gamma > {symbols} = {least:g}")

    @abstractmethod
    def learning_rate(self, rounds: ArrayLike) -> NDArray[np.float64]:
        """eta_t in the given rounds."""

    @abstractmethod
    def error(self, rounds: ArrayLike) -> NDArray[np.float64]:
        """The bound on Delta(t) in the given rounds."""

    @abstractmethod
    def rounds(self, epsilon: float) -> float:
        """T(epsilon): the t at which the bound meets `epsilon`, a real number; 1 where it does from the start."""

    def with_models(self, models: int) -> Self:
        """The same bound for another number of models."""
        return replace(self, problem=replace(self.problem, models=models))

    def _since_one(self, rounds: ArrayLike) -> NDArray[np.float64]:
        t = np.asarray(rounds, dtype=float)
        _require((t >= 1).all(), self.theorem, f"round {t.min(initial=1)}", "rounds counted from 1")
        return t

    def _positive(self, epsilon: float) -> float:
        _require_number(self.theorem, "epsilon", epsilon, 0, strictly=True)
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
        """B: what heterogeneity, mini-batches and local drift add to the error even if every client takes part."""
        p = self.problem
        minibatch = 4 * p.example_gradient_square / p.clients
        return 6 * p.smoothness * p.heterogeneity + minibatch + 8 * (p.local_steps - 1) ** 2 * p.gradient_bound**2

    @property
    def split_noise(self) -> float:
        """C: the variance of an update that only N / M clients, drawn without replacement, make up."""
        return (self.problem.models - 1) * self.noise_per_model

    @property
    def noise_per_model(self) -> float:
        """What each further model adds to C: E^2 G^2 / (N - 1)."""
        p = self.problem
        return (p.local_steps * p.gradient_bound) ** 2 / (p.clients - 1) if p.clients > 1 else 0.0

    @property
    def noise_scale(self) -> float:
        """beta^2 / (beta mu - 1): how the noise of a round enters nu."""
        return self.beta**2 / (self.beta * self.problem.strong_convexity - 1)

    @property
    def nu(self) -> float:
        """The larger of what noise and what the start contributes."""
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

    Needs beta > 1 / mu and gamma > beta L - 1. `sample_error` V measures what local steps may leave out of their
    client's data (see `left_out`); 0 means full gradients.

    Y and Z follow if an update counts 1 / N, so that the M rounds of a frame add up to one step of all clients. A
    server that averages its N / M clients walks M times as far: it has the bound for learning rates of eta_t / M.

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
        _require_number(self.theorem, "sample_error (V)", self.sample_error, 0)

    @property
    def frame_drift(self) -> float:
        """Y: the weights move on while a frame's parts take their turns."""
        p = self.problem
        return p.smoothness * p.gradient_bound * p.local_steps**2 * (p.models - 1) / (2 * p.models)

    @property
    def local_drift(self) -> float:
        """Z: a client's weights move away from the others' during its local steps."""
        p = self.problem
        return p.smoothness * p.gradient_bound * p.local_steps * (p.local_steps - 1)

    @property
    def phi(self) -> float:
        """The drift within a frame, plus the larger of what errors and what the start contributes."""
        # beta mu - 1 divides: from D' <= (1 - eta mu) D + eta^2 (Y + Z + V) for a frame with eta = beta / (l + gamma),
        # D <= psi / (l + gamma) follows by induction over l if psi (beta mu - 1) >= beta^2 (Y + Z + V).
        p = self.problem
        within_frame = self.beta * p.local_steps * p.gradient_bound * (p.models - 1) / p.models
        errors = self.beta**2 * (self.frame_drift + self.local_drift + self.sample_error)
        return within_frame + max(errors / (self.beta * p.strong_convexity - 1), (1 + self.gamma) * self.start)

    def learning_rate(self, rounds: ArrayLike) -> NDArray[np.float64]:
        """beta / (l + gamma) in all rounds of frame l = 1, 2, ...

        The paper has 1 + floor(t / M) for l; as its rounds count from 1, t - 1 keeps the rate constant in a frame.
        """
        frame = 1 + (self._since_one(rounds) - 1) // self.problem.models
        return self.beta / (frame + self.gamma)

    def left_out(self, rounds: ArrayLike) -> NDArray[np.float64]:
        """The largest share of its client's examples that a local step may leave out, as Theorem 2 requires.

        It is eta_t V / (2 E sqrt(beta1 + beta2 G^2)), at most 1, and falls to 0: mini-batches grow to all the data.
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


def gain(bound: ErrorBound, epsilon: float, single: ErrorBound | None = None) -> float:
    """g(M, epsilon) = M T_1 / T_M: rounds for M models in turn over rounds for all at once (Bhuyan et al. 2022, eq. 3).

    T_1 comes from `single`, FedAvg's bound, or else from `bound` with one model. Theorem 2 counts frames, so its T_M
    grows with M at least in proportion, and MFA-RR compared with itself gains nothing by it; compared with FedAvg's
    `RandomSplitBound` it gains as epsilon falls, 1 / t being the faster rate.
    """
    single = bound.with_models(1) if single is None else single
    if single.problem.models != 1:
        raise UserError(f"gain: the bound for FedAvg has {single.problem.models} models; expected 1.")
    return bound.problem.models * single.rounds(epsilon) / bound.rounds(epsilon)


def theorem_3_applies(bound: RandomSplitBound, epsilon: float) -> bool:
    """Whether Theorem 3's conditions, as printed, are met (Bhuyan et al. 2022).

    They are epsilon < Delta(1), M <= N / 2, and for E = 1 also N > 1 + 6 L Gamma / G^2. They are meant to make the gain
    exceed 1 and grow with M; `gain_threshold` says where that is certain.
    """
    p = bound.problem
    _require_number("Theorem 3", "epsilon", epsilon, 0, strictly=True)
    enough_clients = p.clients > 1 + 6 * p.smoothness * p.heterogeneity / p.gradient_bound**2
    return epsilon < bound.start and p.models <= p.clients / 2 and (p.local_steps >= 2 or enough_clients)


def gain_threshold(bound: RandomSplitBound) -> float:
    """The epsilon below which MFA-Rand's gain exceeds 1 for every M > 1 and grows with M.

    Theorem 3, derived anew: T_M is proportional to nu_M - gamma epsilon^2, and the gain grows where that grows by a
    smaller factor than M. The part of nu_M that the start contributes is constant, and above gamma epsilon^2 if
    epsilon < Delta(1). The part that noise contributes is linear in M; continued to M = 0 it must exceed
    gamma epsilon^2. The printed conditions do not ask for this, and close to Delta(1) the gain can then be below 1. As
    beta2 >= 1, the continued noise is positive whatever N and E are: E = 1 needs no condition of its own.
    """
    at_zero = bound.noise_scale * (bound.training_noise - bound.noise_per_model)
    return min(bound.start, sqrt(at_zero / bound.gamma))


@dataclass(frozen=True, kw_only=True)
class SamplingProblem:
    """What Assumptions 1 to 5 and Definition 1 say of a model's federation (Zhang et al. 2025, Section 3.3).

    `smoothness` L, `strong_convexity` mu, `gradient_bound` sigma-bar (root mean square of stochastic gradients),
    `local_steps` K, `probability_floor` theta, and the least distances that heterogeneous data keep up: `optimum_gap`
    e_w between a client's optimum and the global one, `gradient_gap` e_f of a client's gradient from zero.
    """

    smoothness: float
    strong_convexity: float
    gradient_bound: float
    local_steps: int
    probability_floor: float
    optimum_gap: float
    gradient_gap: float

    def __post_init__(self) -> None:
        where = "sampling constants"
        _require_curvature(where, self.smoothness, self.strong_convexity)
        _require_number(where, "gradient_bound (sigma-bar)", self.gradient_bound, 0, strictly=True)
        _require_count(where, "local_steps (K)", self.local_steps)
        _require_number(where, "optimum_gap (e_w)", self.optimum_gap, 0, strictly=True)
        _require_number(where, "gradient_gap (e_f)", self.gradient_gap, 0, strictly=True)
        floor = self.probability_floor
        _require(0 < floor <= 1, where, f"probability_floor (theta) is {floor}", "a number in (0, 1]")
        what = f"gradient_gap (e_f) is {self.gradient_gap:g}, gradient_bound (sigma-bar) is {self.gradient_bound:g}"
        _require(self.gradient_gap <= self.gradient_bound, where, what, "e_f <= sigma-bar")

    def gamma(self, step_size: float) -> float:
        """gamma_tau = max(32 L / mu, 4 K ||H||_1), where `step_size` is the round's sum of aggregation weights."""
        _require_number("gamma_tau", "step_size (||H||_1)", step_size, 0)
        return max(32 * self.smoothness / self.strong_convexity, 4 * self.local_steps * step_size)

    def learning_rate(self, rounds: int, gamma: float) -> float:
        """eta_tau = 16 / (mu ((tau + 1) K + gamma)) after `rounds` = tau rounds."""
        return 16 / (self.strong_convexity * ((rounds + 1) * self.local_steps + gamma))

    def v_tau(self, gamma: float, start: float, noise: ArrayLike) -> float:
        """V_tau = max(gamma^2 E|w_0 - w*|^2, (16 / mu)^2 sum of z).

        `start` is the root mean square distance at first, `noise` holds z = Z_g + Z_l + Z_p of each round so far.
        """
        least = 32 * self.smoothness / self.strong_convexity
        _require(isfinite(gamma) and gamma >= least, "V_tau", f"gamma is {gamma}", f"gamma >= 32 L / mu = {least:g}")
        _require_number("V_tau", "start", start, 0)
        z = np.asarray(noise, dtype=float)
        good = z.ndim == 1 and bool((np.isfinite(z) & (z >= 0)).all())
        _require(good, "V_tau", f"noise (z) is {z.tolist()}", "one finite number >= 0 for each round")
        return max((gamma * start) ** 2, (16 / self.strong_convexity) ** 2 * float(z.sum()))

    def squared_error(self, gamma: float, start: float, noise: ArrayLike) -> float:
        """The bound V_tau / (tau K + gamma)^2 on E|w_tau - w*|^2 after as many rounds tau as `noise` has (eq. 6)."""
        return self.v_tau(gamma, start, noise) / (np.size(noise) * self.local_steps + gamma) ** 2


@dataclass(frozen=True, eq=False)
class SamplingRound:
    """A round's sampling for one model, and the three variance terms of Theorem 1 that follow (Zhang et al. 2025).

    `share` d, `capacity` B and `probability` p (that one given processor trains the model) are [clients]; processors
    draw independently, and expectations over the draw are exact. List only clients that can train the model.

    >>> problem = SamplingProblem(smoothness=4, strong_convexity=1, gradient_bound=2, local_steps=1,
    ...                           probability_floor=0.1, optimum_gap=0.5, gradient_gap=0.5)
    >>> half = np.array([0.5, 0.5])
    >>> sampling = SamplingRound(problem, share=half, capacity=np.array([1, 2]), probability=half)
    >>> print(sampling.z_l(losses=np.array([1.0, 2.0])), sampling.z_p())
    2880.0 118.5
    """

    problem: SamplingProblem
    share: NDArray[np.float64]
    capacity: NDArray[np.int64]
    probability: NDArray[np.float64]

    def __post_init__(self) -> None:
        _require(np.ndim(self.share) == 1, "sampling round", f"share has {np.ndim(self.share)} dimensions", "1")
        d, B, p, floor = self.share, self.capacity, self.probability, self.problem.probability_floor
        self._require_each("share (d)", d, np.greater(d, 0), "> 0: only clients that can train the model")
        _require(np.isclose(d.sum(), 1), "sampling round", f"shares (d) sum to {d.sum():g}", "1")
        self._require_each("capacity (B)", B, np.greater_equal(B, 1), "at least 1 processor")
        expected = f"theta = {floor:g} <= p <= 1 (Assumption 5)"
        self._require_each("probability (p)", p, np.greater_equal(p, floor) & np.less_equal(p, 1), expected)

    def z_g(
        self,
        minibatch_noise: NDArray[np.float64],
        heterogeneity: NDArray[np.float64],
        gradient_squares: NDArray[np.float64],
    ) -> float:
        """E[Z_g]: mini-batches, heterogeneous data and the variance of sampled updates.

        Each argument is [clients]: `minibatch_noise` sigma (standard deviation of stochastic gradients),
        `heterogeneity` Gamma (loss at the global optimum minus the client's least loss), `gradient_squares` the mean
        sum of |grad f|^2 over the K local steps.
        """
        c, K, p = self.problem, self.problem.local_steps, self.probability
        most = K * c.gradient_bound**2 * (1 + 1e-9)  # equal up to rounding is equal
        squares = np.greater_equal(gradient_squares, 0) & np.less_equal(gradient_squares, most)
        self._require_each("minibatch_noise", minibatch_noise, np.greater_equal(minibatch_noise, 0), ">= 0")
        self._require_each("heterogeneity", heterogeneity, np.greater_equal(heterogeneity, 0), ">= 0")
        self._require_each("gradient_squares", gradient_squares, squares, f"0 to K sigma-bar^2 = {most:g}")
        return (
            K * self._over_processors(minibatch_noise**2 / p)
            + 4 * c.smoothness * K * float(self.share @ heterogeneity)
            + float((self.capacity / self.share).max()) * self._over_processors(gradient_squares / p)
        )

    def z_l(self, losses: NDArray[np.float64]) -> float:
        """E[Z_l]: the variance of the sampled loss, which MMFL-LVR minimises; `losses` f is [clients]."""
        c = self.problem
        self._require_each("losses (f)", losses, np.isfinite(losses), "a finite number")
        gaps = (c.optimum_gap * c.gradient_gap) ** 2
        R = 2 * c.local_steps**3 * c.gradient_bound**2 / (gaps * c.probability_floor)
        return R * int(self.capacity.sum()) * self._over_processors(losses**2 * (1 / self.probability - 1))

    def z_p(self) -> float:
        """E[Z_p]: a constant, and the variance of the step size ||H||_1 around its mean, 1."""
        c, K, theta = self.problem, self.problem.local_steps, self.problem.probability_floor
        constant = 2 / theta + K * (2 + c.strong_convexity / (2 * c.smoothness))
        variance = self._over_processors(1 / self.probability - 1)
        return K**2 * c.gradient_bound**2 * (constant + 2 * K / theta * variance)

    def _over_processors(self, values: NDArray[np.float64]) -> float:
        """Sum over processors of (d / B)^2 `values`; those of a client are alike."""
        return float((self.share**2 / self.capacity * values).sum())

    def _require_each(
        self, name: str, values: NDArray[np.float64 | np.int64], holds: NDArray[np.bool_], expected: str
    ) -> None:
        shapes = f"{name} has shape {np.shape(values)}", f"{np.shape(self.share)}, as share has"
        _require(np.shape(values) == np.shape(self.share), "sampling round", *shapes)
        for i in np.flatnonzero(~(holds & np.isfinite(values)))[:1]:
            raise UserError(f"sampling round: {name} of client {i} is {values[i]:g}; expected {expected}.")
