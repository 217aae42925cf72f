"""Ranklist-Multi-UCB and Pareto-Multi-UCB: a bandit whose arms are the clients of each task (Bhuyan & Moharir 2022)."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from mmfl.allocation.base import Allocation, AllocationRule
from mmfl.allocation.sampling import clients_to_draw
from mmfl.allocation.slots import slots_of
from mmfl.checks import check
from mmfl.federation import RoundView
from mmfl.randomness import Purpose


@dataclass
class Bandit:
    """Discounted sums of past observations: each round counts gamma times as much as the round after it.

    `losses` L is the sum of training losses, `trained` T the number of trainings (both [clients, tasks]), `total`
    T_total the number of rounds.
    """

    losses: NDArray[np.float64]
    trained: NDArray[np.float64]
    total: float


def ucb_index(bandit: Bandit, view: RoundView) -> NDArray[np.float64]:
    """A = d (L / T + sqrt(2 log(T_total) / T)), [clients, tasks]: mean loss plus its uncertainty (eqs. 1 to 4).

    It is +inf for a pair that has never trained and -inf for one that cannot train this round. The logarithm is taken
    as 0 if T_total < 1, which happens only before the first observation. T of a pair that has not trained for long is
    so small that 2 log(T_total) / T would overflow; the quotient of the two square roots does not.
    """
    seen = bandit.trained > 0
    trained = np.where(seen, bandit.trained, 1.0)
    uncertainty = np.sqrt(2 * np.log(max(bandit.total, 1.0))) / np.sqrt(trained)
    score = np.where(seen, view.share * (bandit.losses / trained + uncertainty), np.inf)
    return np.where(view.able, score, -np.inf)


def fronts(scores: NDArray[np.float64]) -> Iterator[NDArray[np.int64]]:
    """The Pareto fronts of the rows of `scores` [clients, tasks]: first the rows that no row dominates, then those that
    only rows of the first front dominate, and so on.

    A row dominates another if no entry is smaller and some entry is larger. Equal rows are in the same front.

    >>> [front.tolist() for front in fronts(np.array([[3, 1], [1, 3], [2, 0], [1, 3]]))]
    [[0, 1, 3], [2]]
    """
    rows, kind = np.unique(scores, axis=0, return_inverse=True)
    left = np.arange(len(rows))[::-1]  # the rows are sorted, so none is dominated by a later one in this order
    while len(left):
        best, rivals = [], left
        while len(rivals):
            best.append(rivals[0])
            rivals = rivals[(rows[rivals] > rows[rivals[0]]).any(1)]
        yield np.flatnonzero(np.isin(kind.reshape(-1), best))
        left = left[~np.isin(left, best)]


class UpperConfidence(AllocationRule):
    """The base of both rules below: a `Bandit` with discount `gamma` in (0, 1]; with 1 nothing is forgotten.

    As many clients as the budget allows train one task each. A client that has never trained a task ranks first for it.
    Training all pairs once before the first decision is a separate rule, `WarmUp`.
    """

    def __init__(self, gamma: float = 0.99):
        check(0 < gamma <= 1, "", "gamma", gamma, "a discount in (0, 1]")
        self.gamma = gamma

    def start(self, clients: int, tasks: int) -> Bandit:
        """No observations yet."""
        return Bandit(np.zeros((clients, tasks)), np.zeros((clients, tasks)), 0.0)

    def observe(self, losses: NDArray[np.float64], view: RoundView, state: Bandit) -> Bandit:
        """Discounts all sums and adds the round's losses; losses that are not finite are ignored."""
        seen = np.isfinite(losses)
        return Bandit(
            self.gamma * state.losses + np.where(seen, losses, 0.0),
            self.gamma * state.trained + seen,
            self.gamma * state.total + 1.0,
        )


class Ranklist(UpperConfidence):
    """Ranklist-Multi-UCB: the tasks take turns to pick the highest-ranking client that is still free.

    Task t mod S begins in round t, where S counts the tasks that some client can train. With priorities the tasks take
    turns as `slots_of` says, beginning with slot t mod L of a frame of L. Ties are broken at random. (Bhuyan & Moharir
    2022, Algorithm 3.)
    """

    def allocate(self, view: RoundView, state: Bandit) -> tuple[Allocation, Bandit]:
        """One ranked list of clients per task; a task whose list is exhausted drops out."""
        lots = view.uniform(Purpose.CLIENTS, view.able.shape[1])
        order = np.lexsort((lots, -ucb_index(state, view)), axis=0)
        ranklist = [iter(order[:able, s].tolist()) for s, able in enumerate(view.able.sum(0))]
        slots = slots_of(view.priority, view.trainable)
        turns = deque(np.roll(slots, -(view.round % max(len(slots), 1))).tolist())
        picked: dict[int, int] = {}
        drawn = clients_to_draw(view)
        while turns and len(picked) < drawn:
            task = turns.popleft()
            client = next((client for client in ranklist[task] if client not in picked), None)
            if client is not None:
                picked[client] = task
                turns.append(task)
        return _allocate_one_task_each(
            view, np.array([*picked], np.int64), np.array([*picked.values()], np.int64)
        ), state


class Pareto(UpperConfidence):
    """Pareto-Multi-UCB: random clients from the Pareto front of the indices, each on the task for which it ranks best.

    If the front has fewer clients than the budget allows, only these train, or, with `fill`, clients of the next fronts
    too. A client's rank for a task is one more than the number of clients with a larger index, divided by the task's
    priority; ties are broken at random. Priorities do not change the front. (Bhuyan & Moharir 2022, Algorithm 4, with
    the usual definition of dominance: by the printed one, which compares each client with itself, nobody is ever
    selected.)
    """

    def __init__(self, gamma: float = 0.99, fill: bool = False):
        super().__init__(gamma)
        self.fill = fill

    def allocate(self, view: RoundView, state: Bandit) -> tuple[Allocation, Bandit]:
        """Selects clients from the front, then a task for each."""
        score = ucb_index(state, view)
        client = self.select(score, view)
        above = np.column_stack([np.searchsorted(np.sort(-column), -column) for column in score.T])[client]
        rank = np.where(view.able[client], (above + 1) / view.priority, np.inf)
        lots = view.uniform(Purpose.TASKS, score.shape[1])[client]
        return _allocate_one_task_each(view, client, np.lexsort((lots, rank), axis=1)[:, 0]), state

    def select(self, score: NDArray[np.float64], view: RoundView) -> NDArray[np.int64]:
        """The clients that train: one front after another, each in random order, up to the budget."""
        clients, lots = np.flatnonzero(view.present), view.uniform(Purpose.CLIENTS)[:, 0]
        selected, drawn = clients[:0], clients_to_draw(view)
        for front in islice(fronts(score[clients]), None if self.fill else 1):
            members = clients[front]
            selected = np.concatenate((selected, members[np.argsort(lots[members], kind="stable")]))
            if len(selected) >= drawn:
                break
        return selected[:drawn]


def _allocate_one_task_each(view: RoundView, client: NDArray[np.int64], task: NDArray[np.int64]) -> Allocation:
    """The allocation of one task to each of these clients, with one processor each.

    Their expected count is set to 1. That is right for the ranking, but not for ties and for draws within a front,
    whose probabilities have no simple form. So an aggregation that divides by the probability is biased with these
    rules.
    """
    count = np.zeros(view.sizes.shape, dtype=np.int64)
    count[client, task] = 1
    return Allocation.of(count, count / np.maximum(view.capacity, 1)[:, None])
