"""Clusters of the clients' losses (Gong et al., Figure 3): how well they separate, and if the C-step finds them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

from mmfl.allocation.groups import Cycle, k_means, scaling, silhouette
from mmfl.engine import Simulation, Workload
from mmfl.federation import Federation
from mmfl.papers.evidence import greater, spread
from mmfl.papers.measurements import Watch
from mmfl.papers.reproduction import NOTES, Claim, Findings, Frames
from mmfl.report.plots import COLOURS, legend, panels
from mmfl.runs.results import Comparison
from mmfl.training import TrainingState

OBSERVED_ROUNDS = (5, 25)
"""The rounds of the paper's Figure 3."""

PLOTTED = {"consistent": "mmfl-group", "inconsistent": "mmfl-group-inconsistent"}
"""The settings of the figure, and the method whose losses it shows."""

_TITLES = {
    "silhouette": "silhouette of the true clusters",
    "agreement": "Rand index of K-means on these losses",
    "in force": "Rand index of the clusters in force",
    "clusters": "clusters in force",
}
_EVERY = 5  # rounds between two observations of the current clusters
_MARKS = "os^Dv"


Observation = tuple[Cycle | None, Sequence[Tensor] | None]
"""What is observed of a replica after a round: its cycle, if it has one, and after some rounds its weights."""


def observe(observed_rounds: Sequence[int], state: TrainingState) -> Observation:
    """Observes a replica; its weights are kept after the rounds in `observed_rounds`."""
    cycle = state.allocation if isinstance(state.allocation, Cycle) else None
    return cycle, [each.clone() for each in state.weights] if state.round in observed_rounds else None


def measure_clusters(watch: Watch[Observation], compared: Comparison, engine: Simulation) -> Frames:
    """What the observations say of clusters.

    `clusters` are those of group methods, every few rounds: their number and agreement with the true ones. All clients'
    losses with the weights that were kept give `structure`, how well they separate the true clusters, for every method
    and seed, and `losses`, those of group methods with the first seed: a row per client, with its true cluster.
    """
    clusters, distinct, losses = [], [], [pd.DataFrame()]
    seen = [(t, *pair) for t, seen in enumerate(watch.seen) for pair in zip(compared, seen, strict=True)]
    for t, run, (cycle, weights) in seen:
        key: dict[str, Any] = {"method": run.method, "seed": run.seed, "round": t}
        federation = run.federation
        assert federation is not None
        if cycle is not None and t > 0 and t % _EVERY == 0:
            clusters.append({**key, "clusters": len(cycle.centroids), "agreement": agreement(cycle, federation)})
        if weights is not None:
            everyone = np.arange(federation.clients)
            workloads = [Workload(federation, s, each, everyone) for s, each in enumerate(weights)]
            measured = np.stack(engine.losses(workloads), axis=1)
            distinct.append({**key, **distinctness(measured, federation)})
            if cycle is not None and run.seed == compared.runs[0].seed:
                frame = pd.DataFrame(measured.round(4), columns=federation.task_names)
                losses.append(frame.assign(truth=federation.groups[0], **key))
    together = pd.concat(losses, ignore_index=True)
    return {"clusters": pd.DataFrame(clusters), "structure": pd.DataFrame(distinct), "losses": together}


def agreement(cycle: Cycle, federation: Federation) -> float:
    """Adjusted Rand index of a cycle's clusters and the true ones, averaged over the tasks used for clustering.

    1 is full agreement, 0 what chance would give. Clients that have not arrived do not count.
    """
    present = cycle.cluster >= 0
    formed_by = [federation.groups[s] for s in np.flatnonzero(np.isfinite(cycle.scale))]
    found = [rand_index(truth[present], cycle.cluster[present]) for truth in formed_by if truth is not None]
    return float(np.mean(found)) if found else np.nan


def distinctness(losses: NDArray[np.float64], federation: Federation) -> dict[str, float]:
    """How well losses [clients, tasks] separate the true clusters of the first task.

    Tasks whose clusters are others are left out. `silhouette` is that of the true clusters, `agreement` the adjusted
    Rand index of the clusters that K-means makes, if told their number.
    """
    truth = federation.groups[0]
    assert truth is not None
    alike = [s for s, groups in enumerate(federation.groups) if np.array_equal(groups, truth)]  # type: ignore[arg-type]
    points = standardise(losses[:, alike])
    found = k_means(points, len(np.unique(truth)), seed=0)
    return {"silhouette": silhouette(points, truth), "agreement": rand_index(truth, found)}


def rand_index(truth: NDArray[np.int64], found: NDArray[np.int64]) -> float:
    """The adjusted Rand index of two clusterings."""
    from sklearn.metrics import adjusted_rand_score  # takes a second to import

    return float(adjusted_rand_score(truth, found))


def standardise(losses: NDArray[np.float64]) -> NDArray[np.float64]:
    """Losses [clients, tasks] standardised as in the C-step: every task has mean 0 and variance 1."""
    mean, scale = scaling(losses, np.ones(losses.shape, dtype=bool), True)
    return np.asarray((losses - mean) / scale)


def principal_components(points: NDArray[np.float64]) -> NDArray[np.float64]:
    """The first two principal components of points, [points, 2]."""
    centred = points - points.mean(0)
    return np.asarray(centred @ np.linalg.svd(centred, full_matrices=False)[2][:2].T)


def with_clusters_in_force(frames: Frames) -> pd.DataFrame:
    """A row per setting, method, seed and observed round; `in force` is the agreement of the current clusters."""
    clusters = frames["clusters"].rename(columns={"agreement": "in force"})
    return frames["structure"].merge(clusters, how="left", on=["setting", "method", "seed", "round"])


def find(frames: Frames) -> Findings:
    """Whether later losses separate the true clusters better, and whether methods find them."""
    seen = with_clusters_in_force(frames)
    table = pd.DataFrame(
        [
            {"setting": setting, "method": method, "after round": round}
            | {title: spread(of[column]) for column, title in _TITLES.items()}
            for (setting, method, round), of in seen.groupby(["setting", "method", "round"], sort=False)
        ]
    )
    return Findings(table, [claim for setting in PLOTTED for claim in claims(seen, setting)], [NOTES["clusters"]])


def claims(seen: pd.DataFrame, setting: str) -> list[Claim]:
    """The claims that later losses separate the clusters of a setting better."""
    subset = seen[(seen["setting"] == setting) & (seen["method"] == PLOTTED[setting])]
    rounds = sorted(subset["round"].unique())
    first, last = (subset[subset["round"] == t].set_index("seed") for t in (rounds[0], rounds[-1]))
    paper = "more distinct in round 25 than in round 5"
    texts = {name: f"{setting} clusters: larger {_TITLES[name]} after round {rounds[-1]}" for name in list(_TITLES)[:3]}
    return [greater(text, paper, last[column], first[column]) for column, text in texts.items()]


def draw(frames: Frames) -> Figure:
    """Clients by their losses, in two dimensions: a row per setting, a column per round, a colour per true cluster."""
    losses, seen = frames["losses"], with_clusters_in_force(frames)
    shown = [
        (setting, round, part)
        for setting, method in PLOTTED.items()
        for round, part in losses[(losses["setting"] == setting) & (losses["method"] == method)].groupby("round")
    ]
    labels = {"xlabel": "first component", "ylabel": "second component"}
    figure, axes = panels(len(shown), columns=2, height=3.4, **labels)
    for panel, (setting, round, part) in zip(axes, shown, strict=True):
        scatter(panel, part)
        same = (seen["setting"] == setting) & (seen["method"] == PLOTTED[setting]) & (seen["round"] == round)
        silhouette, found = seen.loc[same, ["silhouette", "in force"]].mean()
        panel.set_title(f"{setting} clusters, after round {round}\nsilhouette {silhouette:.2f}, Rand index {found:.2f}")
    legend(figure, axes[0])
    return figure


def scatter(axes: Axes, part: pd.DataFrame) -> None:
    """The clients of one replica and round by the principal components of their losses."""
    losses = part.drop(columns=["setting", "method", "seed", "round", "truth"]).dropna(axis=1, how="all")
    place = principal_components(standardise(losses.to_numpy(dtype=float)))
    for cluster, (colour, mark) in enumerate(zip(COLOURS, _MARKS, strict=False)):
        x, y = place[(part["truth"] == cluster).to_numpy()].T
        axes.scatter(x, y, s=26, color=colour, marker=mark, label=f"cluster {cluster}")
