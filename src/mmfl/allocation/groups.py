"""MMFL-Group sampling: clients of like losses form clusters, over which the tasks rotate.

After Gong, Zhang, Siew, Joe-Wong and El-Azouzi, "Group-based Client Sampling in Multi-Model Federated Learning".
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from mmfl.allocation.base import Allocation, AllocationRule
from mmfl.allocation.plane import plane
from mmfl.errors import UserError, nearest
from mmfl.federation import RoundView
from mmfl.randomness import Purpose, bits

_METRICS = ("cosine", "euclidean")
_DIGITS = 6  # of a loss that count; beyond are the rounding errors of a forward pass
_HEARD = 2000  # clients whose silhouettes are averaged: the cost is quadratic


@dataclass
class Cycle:
    """A clustering and the rotation over it, which lasts as many rounds as `tasks` has entries.

    `number` counts cycles and `round` is that of the C-step (both 0 before the first). `tasks` [L] are the cycle's
    tasks, first every real one, then the pseudo tasks as the tasks they copy. `cluster` [clients] is -1 for who was
    not there yet. `centroids` [clusters, tasks] are mean losses as measured; `mean` and `scale` [tasks] standardise a
    loss, with an infinite scale where the losses say nothing about the clusters.
    """

    number: int
    round: int
    tasks: NDArray[np.int64]
    cluster: NDArray[np.int64]
    centroids: NDArray[np.float64]
    mean: NDArray[np.float64]
    scale: NDArray[np.float64]

    def over(self, round: int) -> bool:
        """Whether every task has met every cluster before this round."""
        return round - self.round >= len(self.tasks)

    def newcomers(self, view: RoundView) -> NDArray[np.bool_]:
        """The pairs [clients, tasks] of the cycle's tasks whose clients can train them but have no cluster yet."""
        rotates = np.isin(np.arange(view.sizes.shape[1]), self.tasks)
        return view.able & rotates & (self.cluster < 0)[:, None]


class Groups(AllocationRule):
    """MMFL-Group: in each round a task trains on one cluster of clients, in a cycle on every cluster once.

    - C-step, in the first round of a cycle: every client reports its losses, K-means groups the loss vectors, and
      the number of clusters L with the best silhouette among S .. min(2 S, N / 2) becomes the cycle's length, for S
      tasks and N clients that are there. The L - S tasks of largest mean loss get a pseudo task each, a copy that
      trains the same model.
    - T-steps tau = 0 .. L - 1, from that round on: task s trains on cluster (s + tau) mod L, on a uniform sample of
      its clients, as many as the rate (budget / processors) says and at least one. A client trains one task at a
      time, whatever its capacity.

    A client that arrives within a cycle joins the cluster with the nearest centroid; a task waits for the next
    C-step. Use it where data comes in kinds of clients: a task then sees one kind after the other, in regular turns.

    Options:

    - `consistent=False`, for tasks that group the clients differently: cycle c clusters by the losses of task
      (c - 1) mod S alone. Everybody still reports all losses, since pseudo tasks need them.
    - `standardise`: tasks count alike, however large their losses. A missing loss is the task's mean.
    - `metric` by which newcomers find their cluster: "cosine" of the losses as they are, as in the paper, or the
      "euclidean" distance that K-means used; the latter always where a single task decides, as its cosines are all 1.
    - `largest` number of clusters to try, in place of 2 S.

    With fewer than 2 S clients there are still S clusters. Where the losses tell fewer than S kinds of clients apart
    (too few clients, or untrained models that treat all alike), clients are dealt at random into S even parts.

    >>> losses = np.array([[1.0, 5.0], [5.0, 1.0], [1.1, 5.0], [5.0, 1.1]])
    >>> sizes = np.full((4, 2), 10)
    >>> view = RoundView(1, 0, sizes, sizes / 40, np.ones(4, dtype=int), 4.0, {"losses": losses})
    >>> allocation, cycle = Groups().allocate(view, Groups().start(4, 2))
    >>> cycle.cluster
    array([0, 1, 0, 1])
    """

    needs = frozenset({"losses"})

    def __init__(
        self,
        consistent: bool = True,
        standardise: bool = True,
        metric: Literal["cosine", "euclidean"] = "cosine",
        largest: int | None = None,
    ):
        if metric not in _METRICS:
            raise UserError(f"groups: unknown metric '{metric}': {nearest(str(metric), _METRICS)}")
        if largest is not None and (not isinstance(largest, int) or isinstance(largest, bool) or largest < 1):
            raise UserError(f"groups: largest is {largest!r}; expected a whole number of clusters, at least 1.")
        self.consistent = consistent
        self.standardise = standardise
        self.metric = metric
        self.largest = largest

    def start(self, clients: int, tasks: int) -> Cycle:
        """An empty cycle, over at once."""
        return Cycle(
            0,
            0,
            np.zeros(0, dtype=np.int64),
            np.full(clients, -1, dtype=np.int64),
            np.zeros((0, tasks)),
            np.zeros(tasks),
            np.full(tasks, np.inf),
        )

    def asks(self, view: RoundView, state: Cycle) -> Mapping[str, NDArray[np.bool_]]:
        """All losses at a C-step, those of newcomers within a cycle; mostly nothing."""
        pairs = view.able if state.over(view.round) else state.newcomers(view)
        return {"losses": pairs} if pairs.any() else {}

    def allocate(self, view: RoundView, state: Cycle) -> tuple[Allocation, Cycle]:
        """C-step or newcomers, then the T-step. A C-step waits for a round in which somebody is there."""
        if state.over(view.round) and view.present.any():
            state = self.clustered(view, state)
        elif state.newcomers(view).any():
            state = self.welcomed(view, state)
        return rotated(view, state), state

    def report(self, view: RoundView, state: Cycle) -> Mapping[str, Any]:
        """After a C-step, the clients' loss vectors as K-means saw them, in the plane, with their clusters."""
        if state.round != view.round:
            return {}
        losses = np.where(view.able, finite(view.losses, view.able), state.mean)
        clients = np.flatnonzero(state.cluster >= 0)
        clusters = plane(clients, ((losses - state.mean) / state.scale)[clients], state.cluster[clients])
        return {"clusters": clusters} if clusters else {}

    def clustered(self, view: RoundView, state: Cycle) -> Cycle:
        """The C-step: a new cycle of clusters and tasks."""
        here, clients = np.flatnonzero(view.able.any(0)), np.flatnonzero(view.present)
        losses = finite(view.losses, view.able)
        mean, scale = scaling(losses, view.able, self.standardise)
        if not self.consistent:
            scale[np.arange(len(scale)) != here[state.number % len(here)]] = np.inf
        losses = np.where(view.able, losses, mean)
        cluster = np.full(len(losses), -1, dtype=np.int64)
        cluster[clients] = self.partition((losses[clients] - mean) / scale, len(here), view)
        clusters = int(cluster.max()) + 1
        centroids = np.stack([losses[cluster == k].mean(0) for k in range(clusters)])
        tasks = with_pseudo_tasks(here, (view.share * losses).sum(0), clusters)
        return Cycle(state.number + 1, view.round, tasks, cluster, centroids, mean, scale)

    def partition(self, points: NDArray[np.float64], tasks: int, view: RoundView) -> NDArray[np.int64]:
        """The cluster of each point, [points]: K-means with the K of best silhouette, or a random deal."""
        points = points.round(_DIGITS)
        order = np.argsort(view.uniform(Purpose.PARTS)[view.present, 0], kind="stable")
        top = max(tasks, min(self.largest or 2 * tasks, len(points) // 2))
        choices = range(tasks, min(top, len(np.unique(points, axis=0))) + 1)
        if not choices:
            return numbered(order.argsort() % tasks)
        seed = int(bits(view.seed, Purpose.PARTS, view.round)) % 2**31
        labels = [numbered(k_means(points, clusters, seed)) for clusters in choices]
        heard = order[:_HEARD]
        return max(labels, key=lambda label: silhouette(points[heard], label[heard]))

    def welcomed(self, view: RoundView, state: Cycle) -> Cycle:
        """The cycle with every newcomer in the cluster of the nearest centroid."""
        measured = state.newcomers(view)
        clients = np.flatnonzero(measured.any(1))
        losses = finite(view.losses, measured, largest=state.centroids.max())
        losses = np.where(measured, losses, state.mean)[clients]
        if self.metric == "cosine" and self.consistent and len(np.unique(state.tasks)) > 1:
            similarity = unit(losses) @ unit(state.centroids).T
        else:
            difference = (losses[:, None] - state.centroids) / state.scale
            similarity = -(difference**2).sum(2)
        cluster = state.cluster.copy()
        cluster[clients] = similarity.argmax(1)
        return replace(state, cluster=cluster)


def rotated(view: RoundView, cycle: Cycle) -> Allocation:
    """The T-step: each task of the cycle on a sample of the cluster whose turn it is."""
    count = np.zeros(view.sizes.shape, dtype=np.int64)
    probabilities = np.zeros(view.sizes.shape)
    rate = view.budget / max(view.processors, 1)
    chance = view.uniform(Purpose.CLIENTS)[:, 0]
    for s, task in enumerate(cycle.tasks):
        turn = (s + view.round - cycle.round) % len(cycle.tasks)
        members = np.flatnonzero(view.present & (cycle.cluster == turn))
        able = members[view.able[members, task]]
        if len(able):
            size = min(max(1, round(rate * len(members))), len(able))
            count[able[np.argsort(chance[able], kind="stable")[:size]], task] = 1
            probabilities[able, task] = size / len(able) / view.capacity[able]
    return Allocation.of(count, probabilities)


def with_pseudo_tasks(tasks: NDArray[np.int64], losses: NDArray[np.float64], clusters: int) -> NDArray[np.int64]:
    """The tasks of a cycle: `tasks`, and copies of those of largest loss until there is one for each cluster."""
    worst = tasks[np.argsort(-losses[tasks], kind="stable")]
    return np.concatenate([tasks, np.resize(worst, max(clusters - len(tasks), 0))])


def finite(losses: NDArray[np.float64], able: NDArray[np.bool_], largest: float = 0.0) -> NDArray[np.float64]:
    """The losses; one that is no finite number (a model that diverged there) is like the largest."""
    known = np.isfinite(losses)
    return np.where(known, losses, losses[known & able].max(initial=largest))


def scaling(
    losses: NDArray[np.float64], able: NDArray[np.bool_], standardise: bool
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean and scale [tasks] of the losses of those who can train each task.

    The scale is the standard deviation, or for all tasks the largest one: K-means does not mind a common factor. It
    is infinite where the losses differ by no more than rounding errors.
    """
    number = np.maximum(able.sum(0), 1)
    mean = np.where(able, losses, 0.0).sum(0) / number
    deviation = np.sqrt((np.where(able, losses - mean, 0.0) ** 2).sum(0) / number)
    tells = deviation > 10.0**-_DIGITS * np.abs(mean)
    return mean, np.where(tells, deviation if standardise else deviation.max(), np.inf)


def numbered(label: NDArray[np.int64]) -> NDArray[np.int64]:
    """The same clusters numbered by their first clients, so that clusters which last keep their place in the turns."""
    _, first, place = np.unique(label, return_index=True, return_inverse=True)
    return first.argsort().argsort()[place]


def k_means(points: NDArray[np.float64], clusters: int, seed: int) -> NDArray[np.int64]:
    """The cluster of each point in the best of many runs of K-means: ten from k-means++ and, as these alone miss the
    best clustering of few points now and then, forty from random points, which cost less."""
    from sklearn.cluster import KMeans  # takes a second to import

    starts = {"k-means++": 10, "random": 40} if len(points) <= 10_000 else {"k-means++": 10}
    runs = [KMeans(clusters, init=way, n_init=number, random_state=seed).fit(points) for way, number in starts.items()]
    label: NDArray[np.int64] = min(runs, key=lambda run: float(run.inertia_)).labels_.astype(np.int64)
    return label


def silhouette(points: NDArray[np.float64], label: NDArray[np.int64]) -> float:
    """How well the clusters are kept apart, in [-1, 1]; 0 where all are one or each is alone."""
    from sklearn.metrics import silhouette_score

    return float(silhouette_score(points, label)) if 1 < len(np.unique(label)) < len(points) else 0.0


def unit(vectors: NDArray[np.float64]) -> NDArray[np.float64]:
    """The vectors (rows) at length one, zero vectors as they are."""
    length = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.where(length > 0, length, 1.0)
