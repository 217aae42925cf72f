"""Group sampling compared with random allocation and round-robin (Gong et al., Figures 2 to 4)."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import pandas as pd
from matplotlib.figure import Figure

from mmfl.papers.evidence import above_each, alike, fact, greater, spread
from mmfl.papers.group import clusters
from mmfl.papers.group.runs import BASELINES, FIVE_CLUSTERS, GROUP, ONE_TASK, parts
from mmfl.papers.measurements import LAST, draw_by_round, final
from mmfl.papers.reproduction import NOTES, OWN, Claim, Findings, Frames, Reproduction, reproduction
from mmfl.report.differences import difference

_METHODS = (*BASELINES, GROUP, ONE_TASK, FIVE_CLUSTERS)
_BEHIND = {"consistent": "more than 0.100", "inconsistent": "at least 0.040", "everyone": "not tried"}


@dataclass(frozen=True, eq=False)
class Measured:
    """The measurements in one setting, and the methods compared there."""

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
        found = final(self.frame("accuracy"))
        return {method: pd.DataFrame(found.loc[method]) for method in _METHODS if method in found.index}

    @property
    def group(self) -> str:
        """The group method of the paper in this setting."""
        return ONE_TASK if self.setting == "inconsistent" else GROUP

    def rivals(self, column: str) -> list[str]:
        """The baselines, the best in a column first."""
        return sorted(BASELINES, key=lambda method: -float(self.scores[method][column].mean()))

    def swing(self, method: str) -> float:
        """Standard deviation of a task's accuracy over the last rounds of a run, averaged over tasks and seeds."""
        known = self.frame("accuracy")
        known = known[(known["method"] == method) & (known["round"] > known["round"].max() - LAST)]
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
            if method in BASELINES:
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
    """Claims that group sampling is better than both baselines by at least a margin, for each task or the mean."""
    by = f"at least {100 * margin:g} points " if margin else ""
    for column in columns:
        rivals = {method: results.scores[method][column] for method in BASELINES}
        where = "on average over the tasks" if column == "mean" else f"on {column}"
        text = f"{results.setting}: {results.group} is {by}ahead of both baselines {where}"
        yield above_each(text, paper, results.scores[results.group][column], rivals, margin)


def equal_costs(results: Measured) -> Claim:
    """The claim that the compared methods train equally many clients, within 2%."""
    trained = {method: results.average(method, "trainings") for method in results.scores}
    ours = ", ".join(f"{method} {number:.2f}" for method, number in trained.items())
    text = f"{results.setting}: all methods train equally many clients in a round"
    equal = max(trained.values()) <= 1.02 * min(trained.values())
    return fact(text, OWN, ours, equal)


def notes_on(results: Measured) -> list[str]:
    """Notes on the columns of the tables, the models and the data."""
    tasks = results.frame("tasks").itertuples()
    trained = [f"{task.task} ({task.data}, {task.model}, learning rate {task.lr:g})" for task in tasks]
    return [NOTES["group_columns"], f"Trained: {', '.join(trained)}."]


def draw(setting: str, frames: Frames) -> Figure:
    """Test accuracy by round; dashed lines are the arrivals of tasks, and of the first seed's clients."""
    results = Measured(setting, frames)
    figure = draw_by_round(results.frame("accuracy"), [*results.tasks, "mean"], _METHODS)
    tasks, clients = results.frame("tasks")["arrival"], results.frame("arrivals")
    first = clients[clients["seed"] == clients["seed"].min()] if len(clients) else clients
    for panel in figure.axes:
        for t in (*tasks[tasks > 1].astype(int), *first["round"].astype(int)):
            panel.axvline(t, color="grey", linestyle="--", linewidth=0.5, zorder=0)
        panel.set_xlim(left=0)
    return figure


def consistent_claims(results: Measured, _: Measured) -> Iterator[Claim]:
    """Figure 2a: group sampling leads by more than ten points."""
    paper = "ahead by more than 10 points"
    yield from ahead(results, results.tasks, paper)
    yield from ahead(results, ["mean"], paper, 0.1)
    yield equal_costs(results)


def inconsistent_claims(results: Measured, easier: Measured) -> Iterator[Claim]:
    """Figure 2b: group sampling leads by at least four points; everything is harder than with consistent clusters."""
    yield from ahead(results, results.tasks, "at least 4 points", 0.04)
    yield from ahead(results, ["mean"], "ahead")
    for rival in results.rivals("mean"):
        text = f"inconsistent: held to five clusters, {results.group} is ahead of {rival}, on average over the tasks"
        yield greater(text, OWN, results.scores[FIVE_CLUSTERS]["mean"], results.scores[rival]["mean"])
    yield equal_costs(results)
    for task, here, there in both_groups(results, easier):
        text = f"{results.group} is less accurate than {easier.group} with consistent clusters on {task}"
        yield greater(text, "a noticeable drop on all tasks", there, here)


def both_groups(results: Measured, other: Measured) -> Iterator[tuple[str, pd.Series, pd.Series]]:
    """Each task with the accuracies of group sampling in two settings."""
    for task in results.tasks:
        yield task, results.scores[results.group][task], other.scores[other.group][task]


def clients_claims(results: Measured, fewer: Measured) -> Iterator[Claim]:
    """Figure 4a: group sampling leads, and only it gains from more clients."""
    yield from ahead(results, results.tasks, "ahead")
    yield equal_costs(results)
    for method in results.scores:
        now, before = results.scores[method]["mean"], fewer.scores[method]["mean"]
        if method == results.group:
            yield greater(f"{method} gains by clients that arrive", "improves", now, before)
        else:
            text = f"{method} gains at most a point by clients that arrive"
            claim = greater(text, "similar or worse", before, now, margin=-0.01)
            yield replace(claim, ours=str(difference(now, before)))


def tasks_claims(results: Measured, usual: Measured) -> Iterator[Claim]:
    """Figure 4b: group sampling leads on late tasks too."""
    yield from ahead(results, results.tasks, "ahead")
    yield equal_costs(results)
    arrival = results.frame("tasks").set_index("task")["arrival"]
    for task, now, before in both_groups(results, usual):
        if arrival[task] > 1:
            text = f"{results.group}: {task}, which came in round {arrival[task]}, ends lower than from the start"
            yield greater(text, "degrades by the late start", before, now)
        else:
            text = f"{results.group}: {task} ends about where it does without late tasks"
            yield alike(text, "similar", now, before, 0.03)


def note_on_everyone(_: Measured, crowd: Measured) -> Iterator[str]:
    """What changes where all clients train in every round."""
    best = crowd.rivals("mean")[0]
    lead = difference(crowd.scores[crowd.group]["mean"], crowd.scores[best]["mean"])
    yield NOTES["everyone"].format(group=crowd.group, best=best, lead=lead)


def _figure(
    id: str,
    setting: str,
    beside: str,
    claims: Callable[[Measured, Measured], Iterator[Claim]],
    notes: Callable[[Measured, Measured], Iterable[str]] = lambda *_: (),
) -> Reproduction:
    """A figure of accuracy by round in a setting, with another beside it."""

    def find(frames: Frames) -> Findings:
        both = Measured(setting, frames), Measured(beside, frames)
        return Findings(table(both), list(claims(*both)), [*notes_on(both[0]), *notes(*both)])

    return reproduction(id, partial(parts, (setting, beside)), find, partial(draw, setting))


REPRODUCTIONS = (
    _figure("group-fig2a", "consistent", "everyone", consistent_claims, note_on_everyone),
    _figure("group-fig2b", "inconsistent", "consistent", inconsistent_claims, lambda *_: [NOTES["inconsistent"]]),
    reproduction("group-fig3", partial(parts, clusters.PLOTTED), clusters.find, clusters.draw),
    _figure("group-fig4a", "dynamic-clients", "consistent", clients_claims),
    _figure("group-fig4b", "dynamic-tasks", "consistent", tasks_claims),
)
