"""The gain of training models together instead of one after another (Bhuyan, Moharir & Joshi 2022)."""

from math import sqrt

from mmfl.checks import check, check_positive
from mmfl.theory.bounds import ErrorBound, RandomSplitBound


def gain(bound: ErrorBound, epsilon: float, single: ErrorBound | None = None) -> float:
    """g(M, epsilon) = M T_1 / T_M: rounds to train M models one after another, divided by rounds to train them
    together.

    (Bhuyan et al. 2022, eq. 3.) T_1 comes from `single`, FedAvg's bound, or by default from `bound` with one model.
    Theorem 2 counts frames, so its T_M grows at least in proportion to M, and MFA-RR compared with itself gains
    nothing. Compared with FedAvg's `RandomSplitBound` its gain grows as epsilon falls, since 1 / t is the faster rate.
    """
    single = bound.with_models(1) if single is None else single
    models = single.problem.models
    check(models == 1, "gain", "the number of models of FedAvg's bound", models, "1")
    return bound.problem.models * single.rounds(epsilon) / bound.rounds(epsilon)


def theorem_3_applies(bound: RandomSplitBound, epsilon: float) -> bool:
    """Whether Theorem 3's conditions, as printed, are met (Bhuyan et al. 2022).

    They are epsilon < Delta(1), M <= N / 2, and for E = 1 also N > 1 + 6 L Gamma / G^2. Under them the gain is supposed
    to exceed 1 and to grow with M; `gain_threshold` gives the epsilon below which that is certain.
    """
    p = bound.problem
    check_positive("Theorem 3", "epsilon", epsilon)
    enough_clients = p.clients > 1 + 6 * p.smoothness * p.heterogeneity / p.gradient_bound**2
    return epsilon < bound.start and p.models <= p.clients / 2 and (p.local_steps >= 2 or enough_clients)


def gain_threshold(bound: RandomSplitBound) -> float:
    """The epsilon below which MFA-Rand's gain exceeds 1 for every M > 1 and grows with M.

    A new derivation of Theorem 3: T_M is proportional to nu_M - gamma epsilon^2, and the gain grows with M if this
    grows by a smaller factor than M. The contribution of the start to nu_M is constant, and exceeds gamma epsilon^2 if
    epsilon < Delta(1). The contribution of the noise is linear in M; extrapolated to M = 0 it must exceed gamma
    epsilon^2. The printed conditions do not require this, so close to Delta(1) the gain can be below 1. As beta2 >= 1,
    the extrapolated noise is positive for all N and E: E = 1 needs no separate condition.
    """
    at_zero = bound.noise_scale * (bound.training_noise - bound.noise_per_model)
    return min(bound.start, sqrt(at_zero / bound.gamma))
