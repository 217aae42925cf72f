"""Accuracy of group sampling and the baselines (Gong et al., Figures 2 and 4): tables, claims and curves."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import pandas as pd
from matplotlib.figure import Figure

from mmfl.papers.evidence import fact, greater, spread
from mmfl.papers.group.runs import BASELINES, FIVE_CLUSTERS, GROUP, ONE_TASK
from mmfl.papers.measurements import by_round, final
from mmfl.papers.panels import panels
from mmfl.papers.reproduction import NOTES, Claim, Frames
from mmfl.report.plots import curve, legend

_METHODS = (*BASELINES, GROUP, ONE_TASK, FIVE_CLUSTERS)
_BEHIND = {"consistent": "more than 0.100", "inconsistent": "at least 0.040", "everyone": "not tried"}
_LAST = 20  # rounds that results are averaged over


@dataclass(frozen=True, eq=False)
class Measured:
    """The measurements in one setting, and the methods compared there: none if it was not run."""

    setting: str
    frames: Frames

    def frame(self, name: str) -> pd.DataFrame:
        """The rows of a frame for this setting; possibly none."""
        frame = self.frames.get(name, pd.DataFrame({"setting": [], "round": []}))
        return frame[frame["setting"] == self.setting].drop(columns="setting")

    @cached_property
    def tasks(self) -> list[str]:
        """The tasks' names, in order."""
        return [str(name) for name in self.frame("tasks")["task"]]

    @cached_property
    def scores(self) -> dict[str, pd.DataFrame]:
        """By method: accuracy of each task and their `mean`, averaged over the last rounds; a row per seed."""
        found = final(self.frame("accuracy"), _LAST).reset_index("method")
        return {
            method: found[found["method"] == method].drop(columns="method")
            for method in _METHODS
            if method in set(found["method"])
        }

    @property
    def group(self) -> str:
        """The group method of the paper in this setting."""
        return ONE_TASK if self.setting == "inconsistent" else GROUP

    def rivals(self, column: str) -> list[str]:
        """The baselines, the best in a column first; none if group sampling was not run."""
        known = [method for method in BASELINES if method in self.scores and self.group in self.scores]
        return sorted(known, key=lambda method: -float(self.scores[method][column].mean()))

    def swing(self, method: str) -> float:
        """Standard deviation of a task's accuracy over the last rounds of a run, averaged over tasks and seeds."""
        known = self.frame("accuracy")
        known = known[(known["method"] == method) & (known["round"] > known["round"].max() - _LAST)]
        return float(known.groupby("seed")[self.tasks].std().to_numpy().mean())

    def average(self, method: str, kind: str) -> float:
        """Mean over the rounds of a method: of its `trainings`, `forward_passes` or clusters `met`."""
        known = self.frame("rounds")
        return float(known.loc[known["method"] == method, kind].mean())


def table(settings: Iterable[Measured]) -> pd.DataFrame:
    """A row per setting and method: accuracy, difference from group sampling, and mean costs of a round."""
    lines = []
    for results in settings:
        for method, score in results.scores.items():
            behind = ""
            if method in results.rivals("mean"):
                behind = f"{(results.scores[results.group] - score)['mean'].mean():.3f}"
            lines.append(
                {
                    "setting": results.setting,
                    "method": method,
                    **{column: spread(score[column]) for column in (*results.tasks, "mean")},
                    "behind group": behind,
                    "paper": _BEHIND.get(results.setting, "behind") if behind else "",
                    "swing": f"{results.swing(method):.3f}",
                    "clusters met": f"{results.average(method, 'met'):.2f}",
                    "trainings": f"{results.average(method, 'trainings'):.2f}",
                    "forward passes": f"{results.average(method, 'forward_passes'):.1f}",
                }
            )
    return pd.DataFrame(lines)


def ahead(results: Measured, columns: Sequence[str], paper: str, margin: float = 0.0) -> Iterator[Claim]:
    """Claims that group sampling is better than the better baseline by at least a margin, for each task or the mean."""
    by = f"at least {100 * margin:g} points " if margin else ""
    for column in columns:
        for best in results.rivals(column)[:1]:
            where = "on average over the tasks" if column == "mean" else f"on {column}"
            text = f"{results.setting}: {results.group} is {by}ahead of both baselines {where}"
            claim = greater(text, paper, results.scores[results.group][column], results.scores[best][column], margin)
            yield replace(claim, ours=f"{claim.ours} over {best}")


def equal_costs(results: Measured) -> Iterator[Claim]:
    """The claim that the compared methods train equally many clients, within 2%."""
    trained = {method: results.average(method, "trainings") for method in results.scores}
    if trained:
        ours = ", ".join(f"{method} {number:.2f}" for method, number in trained.items())
        text = f"{results.setting}: all methods train equally many clients in a round"
        equal = max(trained.values()) <= 1.02 * min(trained.values())
        yield fact(text, "a sixth of each group, or of all clients", ours, equal)


def notes_on(settings: Iterable[Measured]) -> list[str]:
    """Notes on the columns of the tables, the models and the data."""
    tasks = next((results.frame("tasks") for results in settings if results.scores), pd.DataFrame())
    trained = [f"{task.task} ({task.data}, {task.model}, learning rate {task.lr:g})" for task in tasks.itertuples()]
    return [NOTES["group_columns"], *([f"Trained: {', '.join(trained)}."] if trained else [])]


def draw(setting: str, frames: Frames) -> Figure:
    """Test accuracy by round, a panel per task and one for the mean; dashed lines are arrivals."""
    results = Measured(setting, frames)
    columns = [*results.tasks, "mean"]
    figure, axes = panels(len(columns), xlabel="round", ylabel="test accuracy")
    for panel, column in zip(axes, columns, strict=True):
        for n, method in enumerate(_METHODS):
            if method in results.scores:
                curve(panel, by_round(results.frame("accuracy"), column, method), method, n)
        for t in arrivals(results):
            panel.axvline(t, color="grey", linestyle="--", linewidth=0.5, zorder=0)
        panel.set_title("mean of the tasks" if column == "mean" else column)
        panel.set_xlim(left=0)
    legend(figure, axes[-1])
    return figure


def arrivals(results: Measured) -> list[int]:
    """The rounds in which tasks arrived, and the first seed's clients."""
    tasks, clients = results.frame("tasks"), results.frame("arrivals")
    first = clients[clients["seed"] == clients["seed"].min()] if len(clients) else clients
    return [*tasks.loc[tasks["arrival"] > 1, "arrival"].astype(int), *first["round"].astype(int)]
