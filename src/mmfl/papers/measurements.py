"""What is kept of a comparison: tidy data frames with a row per method, seed and round."""

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import pandas as pd
from matplotlib.figure import Figure

from mmfl.record import RoundRecord
from mmfl.report.plots import curve, legend, panels
from mmfl.runs.listener import Listener, RunInfo
from mmfl.runs.results import Comparison, Run
from mmfl.training import TrainingState

KEYS = ["method", "seed", "round"]
LAST = 20  # rounds that final accuracies are averaged over, all of them tested
Seen = TypeVar("Seen")


def tidy(comparison: Comparison, table: Callable[[Run], pd.DataFrame]) -> pd.DataFrame:
    """The tables of all runs in one frame: method, seed, round and the columns of the table."""
    frames = [table(run).reset_index().assign(method=run.method, seed=run.seed) for run in comparison]
    together = pd.concat(frames, ignore_index=True)
    return together[[*KEYS, *(column for column in together if column not in KEYS)]]


def accuracy(comparison: Comparison) -> pd.DataFrame:
    """Test metric of each task and their `mean`, in the rounds that were tested."""
    return tidy(comparison, lambda run: run.accuracy.assign(mean=run.summary["mean"]))


def mean_costs(comparison: Comparison) -> pd.DataFrame:
    """Mean costs per round, and the stored memory at the end. A row per method and seed."""
    rows = []
    for run in comparison:
        costs = run.costs.astype(float)
        mean = costs.mean().to_dict() | {"stored_bytes": costs["stored_bytes"].iloc[-1]}
        rows.append({"method": run.method, "seed": run.seed, **mean})
    return pd.DataFrame(rows)


def final(accuracies: pd.DataFrame, rounds: int = LAST) -> pd.DataFrame:
    """Each column averaged over the last rounds that were tested: a row per method and seed."""
    last = accuracies.groupby("method")["round"].transform("max") - rounds
    return accuracies[accuracies["round"] > last].drop(columns="round").groupby(["method", "seed"]).mean()


def by_round(frame: pd.DataFrame, column: str, method: str) -> pd.DataFrame:
    """One method's column, [rounds, seeds], from which a curve with its band is drawn."""
    return frame[frame["method"] == method].pivot(index="round", columns="seed", values=column)


def draw_by_round(tests: pd.DataFrame, columns: Sequence[str], methods: Sequence[str]) -> Figure:
    """Test accuracy by round: a panel for each column, a task or the mean, and a curve for each method."""
    figure, axes = panels(len(columns), xlabel="round", ylabel="test accuracy")
    for panel, column in zip(axes, columns, strict=True):
        for n, method in enumerate(methods):
            if method in set(tests["method"]):
                curve(panel, by_round(tests, column, method), method, n)
        panel.set_title("mean of the tasks" if column == "mean" else column)
    legend(figure, axes[-1])
    return figure


class Watch(Listener, Generic[Seen]):
    """A listener that observes the state of every replica before the first round and after every round.

    `replicas` are the pairs of method and seed; `seen[t][n]` is the result of `look` for replica n after round t.
    """

    def __init__(self, look: Callable[[TrainingState], Seen]):
        self.look = look
        self.replicas: Sequence[tuple[str, int]] = ()
        self.seen: list[list[Seen]] = []

    def begin(self, info: RunInfo) -> None:
        """Observes the replicas at the start."""
        self.info, self.replicas = info, info.replicas
        self.seen = [self._look()]

    def round(self, records: Sequence[RoundRecord]) -> None:
        """Observes the replicas after a round."""
        self.seen.append(self._look())

    def _look(self) -> list[Seen]:
        return [self.look(self.info.state(method, seed)) for method, seed in self.replicas]
