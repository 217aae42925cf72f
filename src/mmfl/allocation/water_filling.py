"""The probabilities under which a sampled sum varies least, within a budget of trainings, device-seconds or bytes."""

from math import ceil

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
    bound = np.ones(len(importance)) if limit is None else limit
    active = np.flatnonzero((capacity > 0) & (bound > 0) & (importance @ np.ones(importance.shape[1]) > 0))
    p = np.zeros_like(importance)
    if budget > 0 and len(active):
        U, c = importance[active].T.copy(), cost[active].T.copy()
        unit = c[U > 0].max()
        p[active] = _probabilities(U / U.max(), c / unit, capacity[active], bound[active], budget / unit).T
    return p


def _probabilities(
    U: NDArray[np.float64], c: NDArray[np.float64], B: NDArray[np.int64], bound: NDArray[np.float64], budget: float
) -> NDArray[np.float64]:
    """The probabilities [tasks, clients] of clients that all have some importance."""
    c = np.where(U > 0, c, 1.0)
    most = bound * U / U.sum(0)
    spent = B * (c * most).sum(0)
    if budget >= spent.sum() * (1 - _PRECISION):
        return most
    y = None
    if (step := len(bound) // _BLOCK) > 1:  # begin where some of the clients would end
        some = slice(step // 2, None, step)
        share = spent[some].sum() / spent.sum()
        y, _ = _prices(U[:, some], c[:, some], B[some], bound[some], min(share, 1 - _PRECISION) * budget)
    y, time = _prices(U, c, B, bound, budget, y)
    p: NDArray[np.float64] = y * U / np.sqrt(c + time)
    return p / np.maximum(p.sum(0) / bound, 1.0)


def _prices(
    U: NDArray[np.float64],
    c: NDArray[np.float64],
    B: NDArray[np.int64],
    bound: NDArray[np.float64],
    budget: float,
    start: float | None = None,
) -> tuple[float, NDArray[np.float64]]:
    """The y that spends the budget, and the t of every client.

    What is spent grows with y, and all but linearly until clients reach their limits one after another, so Newton's
    method finds y in a few steps, from a guess or from the y at which nobody's limit counts. (It is kept within the
    bounds known.)
    """
    root = np.sqrt(c)
    free = B * (U * root).sum(0)  # spent for each unit of y by a client below its limit
    reached = bound / (U / root).sum(0)  # the y at which a client reaches it
    time = np.zeros(len(bound))
    low, high = budget / free.sum(), np.inf
    y = low if start is None else max(start, low)
    for _ in range(_STEPS):
        full = np.flatnonzero(reached < y)
        growth = free[reached >= y].sum()
        surplus = y * growth - budget
        for begin in range(0, len(full), _BLOCK):
            part = full[begin : begin + _BLOCK]
            time[part], spent, slope = _price_of_time(U[:, part], c[:, part], B[part], bound[part], y, time[part])
            surplus, growth = surplus + spent, growth + slope
        if abs(surplus) <= _PRECISION * budget or high - low <= _PRECISION * y:
            break
        low, high = (low, y) if surplus > 0 else (y, high)
        step = y - surplus / growth if growth > 0 else np.inf
        y = step if low < step < high else (low + high) / 2 if np.isfinite(high) else 2 * y
    return y, np.where(reached < y, time, 0.0)


def _price_of_time(
    U: NDArray[np.float64],
    c: NDArray[np.float64],
    B: NDArray[np.int64],
    bound: NDArray[np.float64],
    y: float,
    time: NDArray[np.float64],
) -> tuple[NDArray[np.float64], float, float]:
    """The t at which y sum_s U / sqrt(c + t) is the limit, for clients that reach it; what they spend, and its slope in
    y.

    (sum_s U / sqrt(c + t))^-2 is concave in t, and linear if the costs of a client are equal, so Newton's method is
    exact then and otherwise comes from below.
    """
    if not len(bound):
        return time, 0.0, 0.0
    target = (y / bound) ** 2
    weight = U.sum(0)
    time = np.maximum(time, target * weight**2 - (U * c).sum(0) / weight)  # still below, by Jensen's inequality
    for _ in range(_STEPS):
        inverse = 1 / (c + time)
        terms = U * np.sqrt(inverse)
        total, curve = terms.sum(0), (terms * inverse).sum(0)
        missing = target * total**2 - 1
        if np.abs(missing).max() <= _PRECISION:
            break
        time = np.maximum(time + missing * total / curve, 0.0)
    spent = bound * (c * terms).sum(0) / total
    slope = spent - bound * (c * terms * inverse).sum(0) / curve
    return time, float(B @ spent), float(B @ slope) / y
