"""MMFL-Group sampling: clients with similar losses form clusters, and the tasks rotate over the clusters.

After Gong, Zhang, Siew, Joe-Wong and El-Azouzi, "Group-based Client Sampling in Multi-Model Federated Learning".
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from mmfl.allocation.base import Allocation, AllocationRule
from mmfl.allocation.plane import project
from mmfl.allocation.variance import replace_non_finite
from mmfl.checks import check, is_whole
from mmfl.errors import UserError, nearest
from mmfl.federation import RoundView
from mmfl.randomness import Purpose, bits

_METRICS = ("cosine", "euclidean")
_DIGITS = 6  # of a loss that are significant; the rest is rounding error of the forward pass
_SILHOUETTE_CLIENTS = 2000  # at most so many, as the cost is quadratic


@dataclass
class Cycle:
    """A clustering and the rotation over it, which lasts as many rounds as `tasks` has entries.

    `number` counts the cycles and `round` is the round of the C-step (both 0 before the first). `tasks` [L] are the
    cycle's tasks: first every real task, then the pseudo tasks, each as the number of the task it copies. `cluster`
    [clients] is -1 for clients without a cluster. `centroids` [clusters, tasks] are mean losses, not standardised;
    `mean` and `scale` [tasks] standardise a loss, with an infinite scale for tasks that do not count.
    """

    number: int
    round: int
    tasks: NDArray[np.int64]
    cluster: NDArray[np.int64]
    centroids: NDArray[np.float64]
    mean: NDArray[np.float64]
    scale: NDArray[np.float64]

    def is_over(self, round: int) -> bool:
        """Whether every task has trained on every cluster before this round."""
        return round - self.round >= len(self.tasks)

    def newcomers(self, view: RoundView) -> NDArray[np.bool_]:
        """The pairs [clients, tasks] that can train in this cycle but whose clients have no cluster yet."""
        in_cycle = np.isin(np.arange(view.sizes.shape[1]), self.tasks)
        return view.able & in_cycle & (self.cluster < 0)[:, None]


class Groups(AllocationRule):
    """MMFL-Group: in each round a task trains on one cluster of clients, and in a cycle on each cluster once.

    - C-step, in the first round of a cycle: every client reports its losses and K-means clusters the loss vectors. Of
      the numbers of clusters from S to min(2 S, N / 2), for S tasks and N clients that are present, the one with the
      best silhouette is chosen; it is also the length L of the cycle. The L - S tasks with the largest priority times
      mean loss get a pseudo task each, a copy that trains the same model.
    - T-steps tau = 0 .. L - 1, from that round on: task s trains on a uniform sample of the clients of cluster
      (s + tau) mod L. The sample is the share budget / processors of the cluster, at least one client. A client trains
      one task at a time, whatever its capacity.

    A client that arrives during a cycle joins the cluster with the nearest centroid; a task that arrives waits for the
    next C-step. Use this rule if there are different kinds of clients: each task then trains on one kind after another.

    Options:

    - `consistent=False` is for tasks whose clusters differ: cycle c clusters by the losses of task (c - 1) mod S alone.
      Clients still report all losses, since pseudo tasks need them.
    - `standardise`: tasks have the same weight, however large their losses. A missing loss counts as the task's mean.
    - `metric` assigns newcomers to a cluster: "cosine" similarity of the raw losses, as in the paper, or the
      "euclidean" distance that K-means uses. With a single task it is always the latter, as all cosines would be 1.
    - `largest` is the largest number of clusters to try, in place of 2 S.

    With fewer than 2 S clients there are still S clusters. If fewer than S loss vectors differ (too few clients, or
    models that are not trained yet), clients are divided at random into S parts of equal size.

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
        valid = largest is None or is_whole(largest, 1)
        check(valid, "groups", "largest", largest, "a whole number of clusters, at least 1")
        self.consistent = consistent
        self.standardise = standardise
        self.metric = metric
        self.largest = largest

    def start(self, clients: int, tasks: int) -> Cycle:
        """An empty cycle, which is over at once."""
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
        """All losses at a C-step, and the losses of newcomers during a cycle."""
        pairs = view.able if state.is_over(view.round) else state.newcomers(view)
        return {"losses": pairs} if pairs.any() else {}

    def allocate(self, view: RoundView, state: Cycle) -> tuple[Allocation, Cycle]:
        """A C-step or the assignment of newcomers, then the T-step. A C-step waits until some client is present."""
        if state.is_over(view.round) and view.present.any():
            state = self.cluster_clients(view, state)
        elif state.newcomers(view).any():
            state = self.add_newcomers(view, state)
        return rotate(view, state), state

    def report(self, view: RoundView, state: Cycle) -> Mapping[str, Any]:
        """After a C-step: the clients' standardised loss vectors, projected onto a plane, with their clusters."""
        if state.round != view.round:
            return {}
        losses = np.where(view.able, replace_non_finite(view.losses, view.able), state.mean)
        clients = np.flatnonzero(state.cluster >= 0)
        clusters = project(clients, ((losses - state.mean) / state.scale)[clients], state.cluster[clients])
        return {"clusters": clusters} if clusters else {}

    def cluster_clients(self, view: RoundView, state: Cycle) -> Cycle:
        """The C-step: a new cycle of clusters and tasks."""
        present_tasks, clients = np.flatnonzero(view.able.any(0)), np.flatnonzero(view.present)
        losses = replace_non_finite(view.losses, view.able)
        mean, scale = scaling(losses, view.able, self.standardise)
        if not self.consistent:
            scale[np.arange(len(scale)) != present_tasks[state.number % len(present_tasks)]] = np.inf
        losses = np.where(view.able, losses, mean)
        cluster = np.full(len(losses), -1, dtype=np.int64)
        cluster[clients] = self.partition((losses[clients] - mean) / scale, len(present_tasks), view)
        clusters = int(cluster.max()) + 1
        centroids = np.stack([losses[cluster == k].mean(0) for k in range(clusters)])
        tasks = with_pseudo_tasks(present_tasks, view.priority * (view.share * losses).sum(0), clusters)
        return Cycle(state.number + 1, view.round, tasks, cluster, centroids, mean, scale)

    def partition(self, points: NDArray[np.float64], tasks: int, view: RoundView) -> NDArray[np.int64]:
        """The cluster of each point, [points]: K-means with the K of the best silhouette, or a random partition."""
        points = points.round(_DIGITS)
        order = np.argsort(view.uniform(Purpose.PARTS)[view.present, 0], kind="stable")
        top = max(tasks, min(self.largest or 2 * tasks, len(points) // 2))
        choices = range(tasks, min(top, len(np.unique(points, axis=0))) + 1)
        if not choices:
            return renumber(order.argsort() % tasks)
        seed = int(bits(view.seed, Purpose.PARTS, view.round)) % 2**31
        labels = [renumber(k_means(points, clusters, seed)) for clusters in choices]
        sample = order[:_SILHOUETTE_CLIENTS]
        return max(labels, key=lambda label: silhouette(points[sample], label[sample]))

    def add_newcomers(self, view: RoundView, state: Cycle) -> Cycle:
        """The cycle with every newcomer added to the cluster with the nearest centroid."""
        measured = state.newcomers(view)
        clients = np.flatnonzero(measured.any(1))
        losses = replace_non_finite(view.losses, measured, minimum=state.centroids.max())
        losses = np.where(measured, losses, state.mean)[clients]
        if self.metric == "cosine" and self.consistent and len(np.unique(state.tasks)) > 1:
            similarity = normalise_rows(losses) @ normalise_rows(state.centroids).T
        else:
            difference = (losses[:, None] - state.centroids) / state.scale
            similarity = -(difference**2).sum(2)
        cluster = state.cluster.copy()
        cluster[clients] = similarity.argmax(1)
        return replace(state, cluster=cluster)


def rotate(view: RoundView, cycle: Cycle) -> Allocation:
    """The T-step: each task of the cycle trains on a sample of the cluster whose turn it is."""
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


def with_pseudo_tasks(tasks: NDArray[np.int64], weight: NDArray[np.float64], clusters: int) -> NDArray[np.int64]:
    """The tasks of a cycle: `tasks`, and copies of those with the largest weights until there is one per cluster."""
    first = tasks[np.argsort(-weight[tasks], kind="stable")]
    return np.concatenate([tasks, np.resize(first, max(clusters - len(tasks), 0))])


def scaling(
    losses: NDArray[np.float64], able: NDArray[np.bool_], standardise: bool
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean and scale [tasks] of the losses of the clients that can train each task.

    The scale is the task's standard deviation or, without `standardise`, the largest one for all tasks, since a common
    factor does not affect K-means. It is infinite if the losses differ by no more than rounding errors.
    """
    number = np.maximum(able.sum(0), 1)
    mean = np.where(able, losses, 0.0).sum(0) / number
    deviation = np.sqrt((np.where(able, losses - mean, 0.0) ** 2).sum(0) / number)
    differs = deviation > 10.0**-_DIGITS * np.abs(mean)
    return mean, np.where(differs, deviation if standardise else deviation.max(), np.inf)


def renumber(label: NDArray[np.int64]) -> NDArray[np.int64]:
    """The same clusters, numbered in the order of their first clients, so that equal clusterings get equal numbers."""
    _, first, place = np.unique(label, return_index=True, return_inverse=True)
    return first.argsort().argsort()[place]


def k_means(points: NDArray[np.float64], clusters: int, seed: int) -> NDArray[np.int64]:
    """The cluster of each point, from the best of several runs of K-means: ten that start with k-means++ and, since
    these alone sometimes miss the best clustering of few points, forty that start with random points, which are
    cheaper."""
    from sklearn.cluster import KMeans  # takes a second to import

    starts = {"k-means++": 10, "random": 40} if len(points) <= 10_000 else {"k-means++": 10}
    runs = [KMeans(clusters, init=way, n_init=number, random_state=seed).fit(points) for way, number in starts.items()]
    label: NDArray[np.int64] = min(runs, key=lambda run: float(run.inertia_)).labels_.astype(np.int64)
    return label


def silhouette(points: NDArray[np.float64], label: NDArray[np.int64]) -> float:
    """How well the clusters are separated, in [-1, 1]; 0 if there is one cluster, or one per point."""
    from sklearn.metrics import silhouette_score

    return float(silhouette_score(points, label)) if 1 < len(np.unique(label)) < len(points) else 0.0


def normalise_rows(vectors: NDArray[np.float64]) -> NDArray[np.float64]:
    """The rows scaled to length 1; zero rows stay zero."""
    length = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.where(length > 0, length, 1.0)
