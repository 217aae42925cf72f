"""Ranklist-Multi-UCB and Pareto-Multi-UCB: a bandit whose arms are the clients of each task (Bhuyan & Moharir 2022)."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from mmfl.allocation.base import Allocation, AllocationRule
from mmfl.errors import UserError
from mmfl.federation import RoundView
from mmfl.randomness import Purpose


@dataclass
class Bandit:
    """What was seen so far, a round counting gamma times as much as the one after it; the last round counts 1.

    `losses` L sums the losses [clients, tasks] seen in training, `trained` T counts the trainings [clients, tasks] and
    `total` T_total the rounds.
    """

    losses: NDArray[np.float64]
    trained: NDArray[np.float64]
    total: float


def index(bandit: Bandit, view: RoundView) -> NDArray[np.float64]:
    """A = d (L / T + sqrt(2 log(T_total) / T)), [clients, tasks]: mean loss and what is uncertain of it (eqs. 1 to 4).

    A pair that has never trained has +inf, one that cannot train this round -inf. The logarithm counts as 0 where
    T_total < 1, which is only before the first observation. T of a pair that pauses for long becomes so small that
    the quotient under the root would overflow; the quotient of two roots does not.
    """
    seen = bandit.trained > 0
    trained = np.where(seen, bandit.trained, 1.0)
    uncertainty = np.sqrt(2 * np.log(max(bandit.total, 1.0))) / np.sqrt(trained)
    score = np.where(seen, view.share * (bandit.losses / trained + uncertainty), np.inf)
    return np.where(view.able, score, -np.inf)


def fronts(scores: NDArray[np.float64]) -> Iterator[NDArray[np.int64]]:
    """The rows of `scores` [clients, tasks] front by front: first those that no row dominates, then those that only
    rows of the first front dominate, and so on.

    A row dominates another if it is nowhere smaller and somewhere larger. Equal rows share a front.

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
    """What both rules below share: they keep a `Bandit`, with discount `gamma` in (0, 1], 1 to forget nothing.

    As many clients as the budget allows train one task each. Who has never trained a task ranks first for it; to train
    all pairs once before the first decision is a warm-up, which is not part of the rule.
    """

    def __init__(self, gamma: float = 0.99):
        if not 0 < gamma <= 1:
            raise UserError(f"gamma is {gamma}; expected a discount in (0, 1].")
        self.gamma = gamma

    def start(self, clients: int, tasks: int) -> Bandit:
        """Nothing seen yet."""
        return Bandit(np.zeros((clients, tasks)), np.zeros((clients, tasks)), 0.0)

    def observe(self, losses: NDArray[np.float64], view: RoundView, state: Bandit) -> Bandit:
        """All sums discounted, then the round's losses added; one that is no finite number was not seen."""
        seen = np.isfinite(losses)
        return Bandit(
            self.gamma * state.losses + np.where(seen, losses, 0.0),
            self.gamma * state.trained + seen,
            self.gamma * state.total + 1.0,
        )


class Ranklist(UpperConfidence):
    """Ranklist-Multi-UCB: the tasks take turns, each picking the client that ranks highest for it among those left.

    Task t mod S begins round t, S being the tasks that someone can train; equal indices rank at random.
    (Bhuyan & Moharir 2022, Algorithm 3.)
    """

    def allocate(self, view: RoundView, state: Bandit) -> tuple[Allocation, Bandit]:
        """A ranklist per task; a task whose list is used up drops out of the turns."""
        lots = view.uniform(Purpose.CLIENTS, view.able.shape[1])
        order = np.lexsort((lots, -index(state, view)), axis=0)
        ranklist = [iter(order[:able, s].tolist()) for s, able in enumerate(view.able.sum(0))]
        tasks = np.flatnonzero(view.able.any(0))
        turns = deque(np.roll(tasks, -(view.round % max(len(tasks), 1))).tolist())
        picked: dict[int, int] = {}
        drawn = _budgeted(view)
        while turns and len(picked) < drawn:
            task = turns.popleft()
            client = next((client for client in ranklist[task] if client not in picked), None)
            if client is not None:
                picked[client] = task
                turns.append(task)
        return _each_on_one(view, np.array([*picked], np.int64), np.array([*picked.values()], np.int64)), state


class Pareto(UpperConfidence):
    """Pareto-Multi-UCB: random clients of the Pareto front of the indices, each on the task for which it ranks best.

    A smaller front trains alone, or with `fill` the next fronts complete it. A client's rank for a task is how many
    clients have a larger index there; of equal ranks one is taken at random. (Bhuyan & Moharir 2022, Algorithm 4, with
    dominance as usual: by the printed one, which compares each client with itself, nobody is ever selected.)
    """

    def __init__(self, gamma: float = 0.99, fill: bool = False):
        super().__init__(gamma)
        self.fill = fill

    def allocate(self, view: RoundView, state: Bandit) -> tuple[Allocation, Bandit]:
        """Clients from the front, then a task for each."""
        score = index(state, view)
        client = self.select(score, view)
        rank = np.column_stack([np.searchsorted(np.sort(-column), -column) for column in score.T])[client]
        rank = np.where(view.able[client], rank, len(score))
        lots = view.uniform(Purpose.TASKS, score.shape[1])[client]
        return _each_on_one(view, client, np.lexsort((lots, rank), axis=1)[:, 0]), state

    def select(self, score: NDArray[np.float64], view: RoundView) -> NDArray[np.int64]:
        """The clients that train: front after front in random order, up to the budget."""
        clients, lots = np.flatnonzero(view.present), view.uniform(Purpose.CLIENTS)[:, 0]
        selected, drawn = clients[:0], _budgeted(view)
        for front in islice(fronts(score[clients]), None if self.fill else 1):
            members = clients[front]
            selected = np.concatenate((selected, members[np.argsort(lots[members], kind="stable")]))
            if len(selected) >= drawn:
                break
        return selected[:drawn]


def _budgeted(view: RoundView) -> int:
    """K: how many clients train this round."""
    return min(int(view.present.sum()), max(1, round(view.budget)))


def _each_on_one(view: RoundView, client: NDArray[np.int64], task: NDArray[np.int64]) -> Allocation:
    """The clients on their tasks, one processor each.

    Whoever is picked counts as certain (expected count 1): true of the ranking, not of ties and of draws within a
    front, whose chances have no simple form. So an aggregation that divides by the probability is biased here.
    """
    count = np.zeros(view.sizes.shape, dtype=np.int64)
    count[client, task] = 1
    return Allocation.of(count, count / np.maximum(view.capacity, 1)[:, None])
