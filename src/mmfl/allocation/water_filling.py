"""The probabilities under which a sampled sum varies least, within a budget of trainings, device-seconds or bytes."""

from dataclasses import dataclass
from math import ceil
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmfl.allocation.sampling import ascending

_PRECISION = 1e-13
_BLOCK = 2**13  # clients looked at together, in the processor's cache
_STEPS = 200  # of Newton's method; a dozen are usual, more only where the budget is within 1e-9 of what can be spent


def least_variance(
    importance: NDArray[np.float64],
    capacity: NDArray[np.int64],
    budget: float,
    cost: NDArray[np.float64] | None = None,
    limit: NDArray[np.float64] | None = None,
) -> NDArray[np.float64]:
    """The p[i, s] that minimise sum_i B_i sum_s U[i,s]^2 / p[i,s] with B p c summing to `budget` (Theorem 2, eq. 13).

    `importance` U is [clients, tasks] for one processor of each client, `capacity` B counts a client's processors.
    Every processor has sum_s p <= 1, or the client's `limit` [clients]. Without `cost` c [clients, tasks] the budget is
    a number of trainings; with seconds or bytes a training it is one of device-seconds or bytes.

    Where only a share q of trainings comes back, an update is weighted by 1 / (p q): give U / sqrt(q) for U.

    With M_i = sum_s U[i,s], processors with a high M are always active and the others share the rest of the budget in
    proportion to U: p = U / max(M, level), at the level that spends the whole budget. With costs, those of the others
    are in proportion to U / sqrt(c).
    """
    if cost is not None or limit is not None:
        priced = np.ones_like(importance) if cost is None else np.broadcast_to(cost, importance.shape)
        return _least_variance_at_cost(importance, capacity, budget, priced, limit)
    total = importance @ np.ones(importance.shape[1])  # several times as fast as sum(1) where tasks are few
    active = (capacity > 0) & (total > 0)
    budget = min(budget, float(capacity[active].sum()))
    if budget <= 0:
        return np.zeros_like(importance)
    level = _level(total[active], capacity[active], budget)
    return importance / np.where(active, np.maximum(total, level), np.inf)[:, None]


def _level(total: NDArray[np.float64], capacity: NDArray[np.int64], budget: float) -> float:
    """(sum of the k smallest M) / (m - V + k), of V processors in all, for the largest k with M_(k) at most that.

    All processors of a client have the same M, so the inequality holds for all of them or for none, and it is enough to
    search over clients. Fewer than m processors are always active, so only that many of the largest M are sorted.
    """
    rivals = min(len(total), ceil(budget))
    below = total < np.partition(total, -rivals)[-rivals]
    order = np.flatnonzero(~below)
    order = order[ascending(total[order])]
    M, B = total[order], capacity[order]
    processors = capacity[below].sum() + np.cumsum(B)
    sums = (capacity[below] * total[below]).sum() + np.cumsum(B * M)
    shared = budget - (processors[-1] - processors)
    last = int(np.flatnonzero((shared > 0) & (shared * M <= sums))[-1])
    return float(sums[last] / shared[last])


def _least_variance_at_cost(
    importance: NDArray[np.float64],
    capacity: NDArray[np.int64],
    budget: float,
    cost: NDArray[np.float64],
    limit: NDArray[np.float64] | None,
) -> NDArray[np.float64]:
    """p = y U / sqrt(c + t_i), where y spends the budget, and t_i >= 0 is the price of client i's time: 0 if sum_s p is
    below its limit."""
    limit = np.ones(len(importance)) if limit is None else limit
    active = np.flatnonzero((capacity > 0) & (limit > 0) & (importance @ np.ones(importance.shape[1]) > 0))
    p = np.zeros_like(importance)
    if budget > 0 and len(active):
        important, priced = importance[active].T.copy(), cost[active].T.copy()
        unit = priced[important > 0].max()
        clients = _Clients.of(important / important.max(), priced / unit, capacity[active], limit[active])
        p[active] = clients.probabilities(budget / unit).T
    return p


@dataclass(frozen=True, eq=False)
class _Clients:
    """Clients that all have some importance: tables [tasks, clients] of U and c, and of B and the limits [clients]."""

    importance: NDArray[np.float64]
    cost: NDArray[np.float64]
    capacity: NDArray[np.int64]
    limit: NDArray[np.float64]

    @classmethod
    def of(cls, importance: NDArray[np.float64], cost: NDArray[np.float64], *clients: NDArray[Any]) -> "_Clients":
        """What costs without importance are does not matter."""
        return cls(importance, np.where(importance > 0, cost, 1.0), *clients)

    def __getitem__(self, some: slice | NDArray[np.int64]) -> "_Clients":
        return _Clients(self.importance[:, some], self.cost[:, some], self.capacity[some], self.limit[some])

    def probabilities(self, budget: float) -> NDArray[np.float64]:
        """p, [tasks, clients]."""
        most: NDArray[np.float64] = self.limit * self.importance / self.importance.sum(0)
        spent = self.capacity * (self.cost * most).sum(0)
        if budget >= spent.sum() * (1 - _PRECISION):
            return most
        y = 0.0
        if (step := len(self.limit) // _BLOCK) > 1:  # begin where some of the clients would end
            some = slice(step // 2, None, step)
            y, _ = self[some].prices(budget * min(spent[some].sum() / spent.sum(), 1 - _PRECISION))
        y, time = self.prices(budget, y)
        p = y * self.importance / np.sqrt(self.cost + time)
        return np.asarray(p / np.maximum(p.sum(0) / self.limit, 1.0))

    def prices(self, budget: float, start: float = 0.0) -> tuple[float, NDArray[np.float64]]:
        """The y that spends the budget, and the t of every client.

        What is spent grows with y, and all but linearly until clients reach their limits one after another, so Newton's
        method finds y in a few steps, from a guess or from the y at which nobody's limit counts. (It is kept within the
        bounds known.)
        """
        root = np.sqrt(self.cost)
        free = self.capacity * (self.importance * root).sum(0)  # spent for each unit of y by a client below its limit
        reached = self.limit / (self.importance / root).sum(0)  # the y at which a client reaches it
        time = np.zeros(len(self.limit))
        low, high = budget / free.sum(), np.inf
        y = max(start, low)
        for _ in range(_STEPS):
            full = np.flatnonzero(reached < y)
            growth = free[reached >= y].sum()
            surplus = y * growth - budget
            for begin in range(0, len(full), _BLOCK):
                part = full[begin : begin + _BLOCK]
                time[part], spent, slope = self[part].price_of_time(y, time[part])
                surplus, growth = surplus + spent, growth + slope
            if abs(surplus) <= _PRECISION * budget or high - low <= _PRECISION * y:
                break
            low, high = (low, y) if surplus > 0 else (y, high)
            step = y - surplus / growth if growth > 0 else np.inf
            y = step if low < step < high else (low + high) / 2 if np.isfinite(high) else 2 * y
        return y, np.where(reached < y, time, 0.0)

    def price_of_time(self, y: float, time: NDArray[np.float64]) -> tuple[NDArray[np.float64], float, float]:
        """The t at which y sum_s U / sqrt(c + t) is the limit, for clients that reach it; what they spend, and its
        slope in y.

        (sum_s U / sqrt(c + t))^-2 is concave in t, and linear if the costs of a client are equal, so Newton's method is
        exact then and otherwise comes from below.
        """
        target = (y / self.limit) ** 2
        weight = self.importance.sum(0)
        below = target * weight**2 - (self.importance * self.cost).sum(0) / weight  # by Jensen's inequality
        time = np.maximum(time, below)
        for _ in range(_STEPS):
            inverse = 1 / (self.cost + time)
            terms = self.importance * np.sqrt(inverse)
            total, curve = terms.sum(0), (terms * inverse).sum(0)
            missing = target * total**2 - 1
            if np.abs(missing).max() <= _PRECISION:
                break
            time = np.maximum(time + missing * total / curve, 0.0)
        most = self.capacity * self.limit
        spent = most * (self.cost * terms).sum(0) / total
        slope = spent - most * (self.cost * terms * inverse).sum(0) / curve
        return time, float(spent.sum()), float(slope.sum()) / y
