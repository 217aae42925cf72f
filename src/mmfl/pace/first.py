"""Rounds that end with the first updates."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from mmfl.aggregation import AggregationRule
from mmfl.allocation import AllocationRule
from mmfl.checks import check, check_whole, is_whole
from mmfl.errors import UserError
from mmfl.federation import Durations, Federation, RoundView
from mmfl.federation.durations import Certain, normal_cdf
from mmfl.pace.base import Ending, Numbers, Requests, RoundPace

_MANY = 200  # requests of a task from which on their number is taken as normal: the error is below 0.01
_GRID = 512  # times at which it is then known how many are expected


@dataclass(frozen=True, eq=False, kw_only=True)
class First(RoundPace):
    """The first `k` updates of each task are used; when every task has them, the round ends.

    `n` trainings of each task are drawn (by default as many as the rate says). Given who was drawn, each client is
    among the first k with a probability of its own, by which its update is divided.
    """

    name: ClassVar[str] = "first"

    k: int
    n: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        where = f"pace '{self.name}'"
        check_whole(where, "k", self.k)
        valid = self.n is None or is_whole(self.n, self.k)
        check(valid, where, "n", self.n, f"a whole number of at least k, {self.k}")

    def check(
        self, method: str, allocation: AllocationRule, aggregation: AggregationRule, federation: Federation
    ) -> None:
        """Durations must not be certain, and nothing must rest on the updates of everyone."""
        super().check(method, allocation, aggregation, federation)
        self.check_needs_everyone(method, allocation, aggregation, "clients are dropped once enough others are done")
        if isinstance(federation.durations(), Certain):
            raise UserError(
                f"method '{method}': pace '{self.name}': durations are certain, so the slowest clients would never be "
                "among the first; expected devices with jitter."
            )
        if self.serial and federation.capacity.max() > 1:
            raise UserError(
                f"method '{method}': pace '{self.name}': where clients train one task after another, who is first "
                "depends on what else they train; expected no serial=True."
            )

    def begin(self, view: RoundView, durations: Durations, reachable: Numbers, state: Any) -> RoundView:
        """The budget for n trainings of each task."""
        if self.n is not None:
            view = replace(view, budget=min(float(self.n * int(view.trainable.sum())), float(view.processors)))
        return super().begin(view, durations, reachable, state)

    def end(self, requests: Requests, view: RoundView, durations: Durations, state: Any) -> Ending:
        """Who is among the first of its task is used; the others are told to stop."""
        if (requests.start > 0).any():
            raise UserError(
                f"pace '{self.name}': clients train more tasks at a time than they have processors, so who is first "
                "depends on what else they train; expected pace 'barrier'."
            )
        used, completion = np.zeros(len(requests), dtype=bool), np.ones(len(requests))
        stop = np.full(len(requests), np.inf)
        for s in np.unique(requests.task):
            rows = np.flatnonzero(requests.task == s)
            done = rows[~requests.lost[rows]]
            first = done[np.argsort(requests.finish[done], kind="stable")][: self.k]
            used[first] = True
            law = durations.rows(requests.client[rows], requests.task[rows])
            completion[rows] = chance_among_first(law, requests.reachable[rows], self.k)
            if len(first) == self.k:
                stop[rows] = requests.finish[first[-1]]
        return Ending.of(requests, used, completion, "surplus", stop)


def chance_among_first(law: Durations, reachable: Numbers, k: int) -> Numbers:
    """The probability that each request [requests] of a law [requests, 1] is done before its client is out of
    `reachable` and among the first k: E over T_i of P(fewer than k others are faster).

    The expectation is an integral over the quantiles of T_i by Gauss and Legendre's rule; for equal laws it is exact,
    k / n. How many others are faster has a Poisson-binomial law.
    """
    n, limit = len(reachable), reachable[:, None]
    in_reach = np.where(np.isinf(limit), 1.0, law.completion(limit))[:, 0]
    if k >= n:
        return in_reach
    nodes, weights = np.polynomial.legendre.leggauss(min(max(n // 2 + 1, 16), 64))
    times = law.quantile(in_reach[:, None] * ((1 + nodes) / 2))
    fewer = _fewer_exact(law, limit, times, k) if n <= _MANY else _fewer_normal(law, limit, times, k)
    return np.asarray(in_reach * (fewer @ (weights / 2)))


def _fewer_exact(law: Durations, limit: Numbers, times: Numbers, k: int) -> Numbers:
    """P(fewer than k others are done by these times), [requests, times], request after request."""
    chance = np.zeros((k, *times.shape))
    chance[0] = 1
    for j, done in enumerate(_done_by(law, limit, times)):
        p = done.reshape(times.shape)
        p[j] = 0
        chance[1:] = chance[1:] * (1 - p) + chance[:-1] * p
        chance[0] *= 1 - p
    return np.asarray(chance.sum(0))


def _fewer_normal(law: Durations, limit: Numbers, times: Numbers, k: int) -> Numbers:
    """The same where there are many: their number is almost normal, with the mean and variance of its law."""
    grid = np.quantile(times, np.linspace(0, 1, _GRID))
    known = _done_by(law, limit, grid)
    mean, variance = known.sum(0), (known * (1 - known)).sum(0)
    own = np.where(limit >= times, (1 + np.polynomial.legendre.leggauss(times.shape[1])[0]) / 2, 0.0)
    others = np.interp(times, grid, mean) - own
    spread = np.sqrt(np.maximum(np.interp(times, grid, variance) - own * (1 - own), 1e-12))
    return normal_cdf((k - 0.5 - others) / spread)


def _done_by(law: Durations, limit: Numbers, times: Numbers) -> NDArray[np.float64]:
    """P(T <= t and within reach) of every request at every time, [requests, times]."""
    return law.completion(np.minimum(times.reshape(1, -1), limit))
