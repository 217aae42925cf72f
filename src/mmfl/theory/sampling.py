"""The variance terms of sampling clients with given probabilities (Zhang et al. 2025, Theorem 1)."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mmfl.checks import check, check_at_least, check_positive, check_whole, is_number
from mmfl.theory.bounds import check_curvature


@dataclass(frozen=True, kw_only=True)
class SamplingProblem:
    """The constants of Assumptions 1 to 5 and Definition 1 for one model (Zhang et al. 2025, Section 3.3).

    `smoothness` L, `strong_convexity` mu, `gradient_bound` sigma-bar (root mean square of stochastic gradients),
    `local_steps` K, `probability_floor` theta, and two lower bounds due to heterogeneous data: `optimum_gap` e_w on the
    distance between a client's optimum and the global one, `gradient_gap` e_f on the norm of a client's gradient.
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
        check_curvature(where, self.smoothness, self.strong_convexity)
        check_positive(where, "gradient_bound (sigma-bar)", self.gradient_bound)
        check_whole(where, "local_steps (K)", self.local_steps)
        check_positive(where, "optimum_gap (e_w)", self.optimum_gap)
        check_positive(where, "gradient_gap (e_f)", self.gradient_gap)
        floor, gap, most = self.probability_floor, self.gradient_gap, self.gradient_bound
        check(0 < floor <= 1, where, "probability_floor (theta)", floor, "a number in (0, 1]")
        check(gap <= most, where, "gradient_gap (e_f)", gap, f"e_f <= sigma-bar = {most:g}")

    def gamma(self, step_size: float) -> float:
        """gamma_tau = max(32 L / mu, 4 K ||H||_1), where `step_size` is the round's sum of aggregation weights."""
        check_at_least("gamma_tau", "step_size (||H||_1)", step_size, 0)
        return max(32 * self.smoothness / self.strong_convexity, 4 * self.local_steps * step_size)

    def learning_rate(self, rounds: int, gamma: float) -> float:
        """eta_tau = 16 / (mu ((tau + 1) K + gamma)) after `rounds` = tau rounds."""
        return 16 / (self.strong_convexity * ((rounds + 1) * self.local_steps + gamma))

    def v_tau(self, gamma: float, start: float, noise: ArrayLike) -> float:
        """V_tau = max(gamma^2 E|w_0 - w*|^2, (16 / mu)^2 sum of z).

        `start` is the root mean square distance at the start, `noise` holds z = Z_g + Z_l + Z_p of each round so far.
        """
        minimum = 32 * self.smoothness / self.strong_convexity
        check(is_number(gamma, minimum, np.inf), "V_tau", "gamma", gamma, f"gamma >= 32 L / mu = {minimum:g}")
        check_at_least("V_tau", "start", start, 0)
        z = np.asarray(noise, dtype=float)
        valid = z.ndim == 1 and bool((np.isfinite(z) & (z >= 0)).all())
        check(valid, "V_tau", "noise (z)", z.tolist(), "one finite number >= 0 for each round")
        return max((gamma * start) ** 2, (16 / self.strong_convexity) ** 2 * float(z.sum()))

    def squared_error(self, gamma: float, start: float, noise: ArrayLike) -> float:
        """The bound V_tau / (tau K + gamma)^2 on E|w_tau - w*|^2 after as many rounds tau as `noise` has (eq. 6)."""
        return self.v_tau(gamma, start, noise) / (np.size(noise) * self.local_steps + gamma) ** 2


@dataclass(frozen=True, eq=False)
class SamplingRound:
    """The sampling of one model in one round, and the three variance terms of Theorem 1 (Zhang et al. 2025).

    `share` d, `capacity` B and `probability` p (that one particular processor trains the model) are [clients].
    Processors draw independently, and expectations over the draw are exact. List only clients that can train the model.

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
        d, B, p, floor = self.share, self.capacity, self.probability, self.problem.probability_floor
        check(np.ndim(d) == 1, "sampling round", "the number of dimensions of share", np.ndim(d), "1")
        self._check_each("share (d)", d, np.greater(d, 0), "> 0: only clients that can train the model")
        check(bool(np.isclose(d.sum(), 1)), "sampling round", "the sum of shares (d)", d.sum(), "1")
        self._check_each("capacity (B)", B, np.greater_equal(B, 1), "at least 1 processor")
        expected = f"theta = {floor:g} <= p <= 1 (Assumption 5)"
        self._check_each("probability (p)", p, np.greater_equal(p, floor) & np.less_equal(p, 1), expected)

    def z_g(
        self,
        minibatch_noise: NDArray[np.float64],
        heterogeneity: NDArray[np.float64],
        gradient_squares: NDArray[np.float64],
    ) -> float:
        """E[Z_g]: mini-batches, heterogeneous data and the variance of sampled updates.

        Each argument is [clients]: `minibatch_noise` sigma (standard deviation of stochastic gradients),
        `heterogeneity` Gamma (loss at the global optimum minus the client's minimum loss), `gradient_squares` the mean
        sum of |grad f|^2 over the K local steps.
        """
        c, K, p = self.problem, self.problem.local_steps, self.probability
        maximum = K * c.gradient_bound**2 * (1 + 1e-9)  # equal up to rounding is equal
        squares = np.greater_equal(gradient_squares, 0) & np.less_equal(gradient_squares, maximum)
        self._check_each("minibatch_noise", minibatch_noise, np.greater_equal(minibatch_noise, 0), ">= 0")
        self._check_each("heterogeneity", heterogeneity, np.greater_equal(heterogeneity, 0), ">= 0")
        self._check_each("gradient_squares", gradient_squares, squares, f"0 to K sigma-bar^2 = {maximum:g}")
        return (
            K * self._over_processors(minibatch_noise**2 / p)
            + 4 * c.smoothness * K * float(self.share @ heterogeneity)
            + float((self.capacity / self.share).max()) * self._over_processors(gradient_squares / p)
        )

    def z_l(self, losses: NDArray[np.float64]) -> float:
        """E[Z_l]: the variance of the sampled loss, which MMFL-LVR minimises; `losses` f is [clients]."""
        c = self.problem
        self._check_each("losses (f)", losses, np.isfinite(losses), "a finite number")
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
        """The sum over processors of (d / B)^2 `values`; all processors of a client have the same value."""
        return float((self.share**2 / self.capacity * values).sum())

    def _check_each(
        self, name: str, values: NDArray[np.float64 | np.int64], holds: NDArray[np.bool_], expected: str
    ) -> None:
        where, shape, clients = "sampling round", np.shape(values), np.shape(self.share)
        check(shape == clients, where, f"the shape of {name}", shape, f"{clients}, as share has")
        for i in np.flatnonzero(~(holds & np.isfinite(values)))[:1]:
            check(False, where, f"{name} of client {i}", values[i], expected)
