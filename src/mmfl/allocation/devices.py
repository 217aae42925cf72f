"""Allocations that match devices with tasks: Venn's scheduling by what devices are eligible for, and BODS."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mmfl.allocation.base import Allocation, AllocationRule
from mmfl.allocation.irs import intersection_resource_schedule
from mmfl.allocation.probabilities import ByKind
from mmfl.allocation.sampling import clients_to_draw
from mmfl.checks import check, is_number, is_whole
from mmfl.federation import RoundView
from mmfl.randomness import Purpose, generator


class Venn(AllocationRule):
    """Clients that can train few tasks train those; who can train what nobody else can is kept for it.

    In each round every task asks for an equal share of the clients that the budget pays for (by priority, if there are
    some). Clients check in, in random order, and intersection resource scheduling says which task each serves, if any:
    clients that lack a task's data, or the memory for its model, never serve it. (Liu et al. 2023, without tier
    matching; groups absorb only kinds of clients that they can use.)

    The probability that is reported is that of a client given how many of its kind serve each task. An aggregation that
    divides by it is unbiased over the clients of the kinds that serve the task; other kinds have probability 0.
    """

    def allocate(self, view: RoundView, state: None) -> tuple[Allocation, None]:
        """The next clients, until every task has as many as it asks for, or nobody is left who could serve it."""
        kinds = view.kinds
        clients = np.flatnonzero(view.present)
        clients = clients[np.argsort(view.uniform(Purpose.CLIENTS)[clients, 0], kind="stable")]
        demand, supply = demands(view), kinds.count.astype(np.float64)
        client, task = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.int64)]
        while demand.any() and len(clients):
            plan = intersection_resource_schedule(demand, np.arange(len(demand)), kinds.able.T, supply)
            serves = plan[kinds.of[clients]]
            if (serves < 0).all():
                break
            first = [np.flatnonzero(serves == s)[: demand[s]] for s in range(len(demand))]
            full = [places[-1] for s, places in enumerate(first) if 0 < demand[s] == len(places)]
            end = min(full, default=len(clients) - 1) + 1
            used = np.flatnonzero(serves[:end] >= 0)
            client.append(clients[used])
            task.append(serves[used])
            demand = demand - np.bincount(serves[used], minlength=len(demand))
            clients = np.delete(clients, used)
        served, what = np.concatenate(client), np.concatenate(task)
        each = np.zeros(kinds.able.shape)
        np.add.at(each, (kinds.of[served], what), 1.0)
        rows = each / np.maximum(kinds.count * np.maximum(kinds.capacity, 1), 1)[:, None]
        return Allocation.of_pairs(served, what, ByKind(rows, kinds)), state


def demands(view: RoundView) -> NDArray[np.int64]:
    """How many clients each task asks for, [tasks]: those that the budget pays for, divided by priority; those that are
    left over go to one task after another, from one round to the next."""
    weight = np.where(view.trainable, view.priority, 0.0)
    number = clients_to_draw(view) if view.number_present else 0
    exact = number * weight / max(weight.sum(), 1e-300)
    whole = np.floor(exact + 1e-9).astype(np.int64)
    turn = np.roll(np.flatnonzero(view.trainable), -view.round)
    whole[turn[: number - int(whole.sum())]] += 1
    return np.asarray(whole)


@dataclass
class Assignments:
    """What BODS remembers: how often each client was selected for each task, [clients, tasks]; of the last rounds the
    selected pairs client * tasks + task, [rounds, pairs] (-1: none), and what each assignment cost, [rounds]."""

    selected: NDArray[np.int64]
    pairs: NDArray[np.int64]
    cost: NDArray[np.float64]


class Bods(AllocationRule):
    """BODS: Bayesian optimisation of who trains what, by time and fairness (Zhou et al. 2022; as FedAST compares it).

    An assignment costs alpha sum_s max_i T[i,s] + (1 - alpha) sum_s Var_i(times that i was selected for s). A Gaussian
    process with a Matern kernel learns costs from past assignments; of `candidates` random ones, over a pool of five
    clients more than train, the one with the largest expected improvement is taken. T is the expected duration; without
    devices all are 1, and only fairness counts. The choice is not random in a way that has a simple probability: use it
    with `average`.
    """

    def __init__(self, alpha: float = 0.25, candidates: int = 75, pool: int = 5, memory: int = 50):
        where = "allocation 'bods'"
        check(is_number(alpha, 0, 1), where, "alpha", alpha, "a number in [0, 1]")
        for name, value, least in (("candidates", candidates, 1), ("pool", pool, 0), ("memory", memory, 1)):
            check(is_whole(value, least), where, name, value, f"a whole number, at least {least}")
        self.alpha, self.candidates, self.pool, self.memory = alpha, candidates, pool, memory

    def start(self, clients: int, tasks: int) -> Assignments:
        """Nobody selected."""
        return Assignments(np.zeros((clients, tasks), np.int64), np.zeros((0, 0), np.int64), np.zeros(0))

    def allocate(self, view: RoundView, state: Assignments) -> tuple[Allocation, Assignments]:
        """The candidate of largest expected improvement; the first round takes the first one."""
        candidates = self._draw(view)
        chosen = candidates[0]
        if len(state.cost):
            chosen = candidates[int(expected_improvement(state.pairs, state.cost, candidates).argmax())]
        count = np.zeros(view.sizes.shape, dtype=np.int64)
        client, task = np.divmod(chosen[chosen >= 0], view.sizes.shape[1])
        count[client, task] = 1
        selected = state.selected + count
        pairs = _stack(state.pairs, chosen)[-self.memory :]
        cost = np.append(state.cost, self.cost(count, selected, view))[-self.memory :]
        probabilities = count / np.maximum(view.capacity, 1)[:, None]
        return Allocation.of(count, probabilities), Assignments(selected, pairs, cost)

    def cost(self, count: NDArray[np.int64], selected: NDArray[np.int64], view: RoundView) -> float:
        """alpha sum max T + (1 - alpha) sum Var(times selected)."""
        seconds = np.ones(count.shape) if view.seconds is None else view.seconds
        longest = np.where(count > 0, seconds, 0.0).max(0).sum()
        return float(self.alpha * longest + (1 - self.alpha) * selected.var(0).sum())

    def _draw(self, view: RoundView) -> NDArray[np.int64]:
        """Random assignments of clients of a random pool, each to one task at most, [candidates, pairs]; -1: none."""
        demand, present = demands(view), np.flatnonzero(view.present)
        tasks = len(demand)
        wanted = np.repeat(np.arange(tasks), demand)
        rng = generator(view.seed, Purpose.PARTS, view.round)
        pool = rng.permutation(present)[: len(wanted) + self.pool]
        order = np.argsort(rng.random((self.candidates, len(pool))), axis=1)[:, : len(wanted)]
        client, task = pool[order], wanted[: order.shape[1]]
        return np.asarray(np.where(view.able[client, task], client * tasks + task, -1))


def expected_improvement(
    pairs: NDArray[np.int64], cost: NDArray[np.float64], candidates: NDArray[np.int64]
) -> NDArray[np.float64]:
    """How far below the least cost so far each candidate is expected to be, by a Gaussian process over which pairs
    train (one column for each), [candidates]."""
    from scipy.stats import norm  # these take a second to import
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import Matern

    columns = np.unique(np.concatenate([pairs.ravel(), candidates.ravel()]))
    columns = columns[columns >= 0]
    if not len(columns):  # nobody has trained, and nobody can
        return np.zeros(len(candidates))

    def table(rows: NDArray[np.int64]) -> NDArray[np.float64]:
        marked = np.zeros((len(rows), len(columns) + 1))
        place = np.where(rows >= 0, np.searchsorted(columns, rows), len(columns))
        np.put_along_axis(marked, place, 1.0, axis=1)
        return marked[:, :-1]

    spread = cost.std() or 1.0
    scale = max(float(np.sqrt(2 * candidates.shape[1])), 1.0)  # about the distance of two random assignments
    process = GaussianProcessRegressor(Matern(scale, nu=2.5), alpha=1e-6, optimizer=None)
    process.fit(table(pairs), (cost - cost.mean()) / spread)
    mean, deviation = process.predict(table(candidates), return_std=True)
    gap = (cost.min() - cost.mean()) / spread - mean
    z = gap / np.maximum(deviation, 1e-12)
    return np.asarray(spread * (gap * norm.cdf(z) + deviation * norm.pdf(z)))


def _stack(rows: NDArray[np.int64], row: NDArray[np.int64]) -> NDArray[np.int64]:
    """One more row; shorter ones are filled with -1."""
    width = max(rows.shape[1], len(row))
    padded = np.full((len(rows) + 1, width), -1, dtype=np.int64)
    padded[:-1, : rows.shape[1]] = rows
    padded[-1, : len(row)] = row
    return padded
