"""Bhuyan, Moharir & Joshi 2022, Tables 5 and 6: different tasks train together until each is as good as with FedAvg."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mmfl.federation.task import Task
from mmfl.papers.evidence import spread, spread_of_rounds
from mmfl.papers.mfa.goals import Gains, format_gain, smoothed_and_single, train_to_goals
from mmfl.papers.mfa.tasks import (
    face,
    faces,
    small_face,
    small_network,
    small_synthetic,
    synthetic,
    with_shared_clients,
    with_training_examples_as_test,
)
from mmfl.papers.reproduction import NOTES, Findings, Frames, PaperTrainer, Part, reproduction
from mmfl.report.plots import COLOURS, grid

METHOD = "mfa-rr"
SPLITS = {"train": "training", "test": "test"}


@dataclass(frozen=True)
class GainTable:
    """Different tasks, `models` (M) of them, over clients that all train in every round; FedAvg trains each by itself
    for `rounds` (T_1)."""

    name: str
    tasks: Callable[[], Sequence[Task]]
    models: int
    clients: int
    rounds: int
    seeds: Sequence[int] = range(5)

    def run(self, split: str, trainer: PaperTrainer) -> Frames:
        """`gains` in rounds, and the accuracies of the `tasks`."""
        tasks = [with_training_examples_as_test(task) if split == "train" else task for task in self.tasks()]
        federation = with_shared_clients(tasks, self.clients)
        fedavg = trainer.compare(federation, ["full"], self.rounds, 1.0, self.seeds)
        reached = train_to_goals(trainer, federation, {run.seed: run.accuracy for run in fedavg}, [METHOD], 1.0)
        data = {task.name: task.data.name for task in tasks}
        measured = reached.tasks().assign(data=lambda frame: frame["task"].map(data))
        return {"gains": reached.gains().assign(split=split), "tasks": measured.assign(split=split)}


@dataclass(frozen=True)
class Published:
    """A table of the paper: the rounds T_1 and T_M, and accuracies in percent after each, by task and split."""

    alone: int
    together: Mapping[str, int]
    accuracies: Mapping[str, Mapping[str, tuple[float, float]]]

    @property
    def rounds_alone(self) -> int:
        """M T_1."""
        return self.alone * len(self.accuracies)

    def gain(self, split: str) -> float:
        """M T_1 / T_M."""
        return self.rounds_alone / self.together[split]


_TABLE5 = {
    "eyeglasses": {"train": (74.7, 84.6), "test": (69.1, 71.9)},
    "bald": {"train": (74.0, 74.5), "test": (66.8, 69.4)},
    "goatee": {"train": (74.3, 83.5), "test": (64.7, 68.7)},
    "wearing-necklace": {"train": (73.3, 80.3), "test": (66.2, 72.6)},
    "smiling": {"train": (72.0, 78.7), "test": (76.0, 79.7)},
    "mustache": {"train": (74.1, 82.1), "test": (65.4, 72.1)},
    "male": {"train": (77.1, 85.0), "test": (58.7, 63.5)},
    "wearing-lipstick": {"train": (75.4, 83.8), "test": (65.9, 72.7)},
    "double-chin": {"train": (75.3, 83.9), "test": (63.9, 69.3)},
}
_TABLE6 = {
    "synthetic-a": {"train": (51.9, 52.4), "test": (52.8, 55.6)},
    "eyeglasses": {"train": (86.7, 87.2), "test": (75.8, 77.5)},
}
TABLE5 = Published(50, {"train": 117, "test": 126}, _TABLE5)
TABLE6 = Published(100, {"train": 100, "test": 142}, _TABLE6)


def find(paper: Published, frames: Frames) -> Findings:
    """The paper's table with our numbers, and the gains."""
    lines, claims = [], []
    for split in frames["gains"]["split"].unique():
        smooth, single = smoothed_and_single(frames["gains"].query("split == @split"))
        kind = SPLITS[split]
        for task, seeds in frames["tasks"].query("split == @split and window > 1").groupby("task", sort=False):
            before, after = paper.accuracies.get(str(task), {}).get(split, ("", ""))
            alone, together = spread(100 * seeds["alone"], 1), spread(100 * seeds["together"], 1)
            lines.append([kind, task, str(before), alone, str(after), together])
        rounds, theirs = (str(paper.rounds_alone), str(paper.together[split])), f"{paper.gain(split):.3f}"
        lines += [
            [kind, "rounds", rounds[0], spread(smooth["alone"], 1), rounds[1], spread_of_rounds(smooth["together"], 1)],
            [kind, "gain", "1", "1", theirs, format_gain(smooth, "gain")],
            [kind, "gain as published", "1", "1", theirs, format_gain(single, "published_gain")],
        ]
        text, lead = f"{kind} accuracy: gain - 1 is positive", f"{paper.gain(split) - 1:+.3f}"
        gains = Gains.of(smooth)
        claims.append(gains.above(text, lead, Gains.constant(1.0, gains.values.index)))
    names = ["accuracy", "task", "FedAvg, paper", "FedAvg", f"{METHOD}, paper", METHOD]
    return Findings(pd.DataFrame(lines, columns=names), claims, notes(frames))


def notes(frames: Frames) -> list[str]:
    """Notes on the data, and on seeds that did not reach the goal."""
    data = [f"{task.task}: {task.data}" for task in frames["tasks"].drop_duplicates("task").itertuples()]
    lines = [f"Data: {'; '.join(data)}."]
    late = frames["gains"].query("window > 1 and together != together")
    if len(late):
        counts = late["split"].map(SPLITS).value_counts()
        where = ", ".join(f"{split} accuracy: {n} seeds" for split, n in counts.items())
        lines.append(NOTES["late_seeds"].format(where=where))
    return lines


def draw(frames: Frames) -> Figure:
    """Accuracy of each task by itself and together, on training and test examples."""
    splits = list(dict.fromkeys(frames["tasks"]["split"]))
    figure, panels = grid(len(splits), columns=2, height=1.6 + 0.42 * frames["tasks"]["task"].nunique())
    gains, _ = smoothed_and_single(frames["gains"])
    for axes, split in zip(panels, splits, strict=True):
        draw_accuracies(axes, frames["tasks"].query("split == @split and window > 1"))
        gain = format_gain(gains.query("split == @split"), "gain")
        axes.set_title(f"{SPLITS[split]} examples: gain {gain}", fontsize=10)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=2, frameon=False)
    return figure


def draw_accuracies(axes: Axes, measured: pd.DataFrame) -> None:
    """Two bars for each task, with their spread over seeds."""
    labels = {"alone": "FedAvg on each task by itself", "together": f"{METHOD}, when all tasks are as good"}
    names = list(dict.fromkeys(measured["task"]))
    for n, (column, label) in enumerate(labels.items()):
        values = measured.groupby("task")[column].agg(["mean", "std"]).reindex(names) * 100
        place = [row + 0.4 * n - 0.2 for row in range(len(names))]
        axes.barh(place, values["mean"], 0.38, xerr=values["std"].fillna(0), color=COLOURS[n], label=label, capsize=2)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.grid(alpha=0.3, axis="x")
    axes.set(xlabel="accuracy, %", axisbelow=True)


_FEW = ("Eyeglasses", "Wearing_Hat", "Blond_Hair")
ATTRIBUTES = GainTable("mfa-attributes", faces, 9, 96, 50)
MIXED = GainTable("mfa-mixed", lambda: [synthetic(0, 96), face()], 2, 96, 100)
QUICK_ATTRIBUTES = GainTable("mfa-attributes", lambda: [small_face(each) for each in _FEW], 3, 24, 12, range(3))
QUICK_MIXED = GainTable("mfa-mixed", lambda: [small_synthetic(0, 16), small_network("Blond_Hair")], 2, 16, 10, range(2))


def parts(full: GainTable, small: GainTable, quick: bool) -> list[Part]:
    """A part for the accuracy on the training examples and one for that on the test examples."""
    setting = small if quick else full
    rounds, seeds = setting.rounds * setting.models, setting.seeds
    return [Part(f"{setting.name}/{split}", rounds, seeds, partial(setting.run, split)) for split in SPLITS]


REPRODUCTIONS = (
    reproduction("mfa-table5", partial(parts, ATTRIBUTES, QUICK_ATTRIBUTES), partial(find, TABLE5), draw),
    reproduction("mfa-table6", partial(parts, MIXED, QUICK_MIXED), partial(find, TABLE6), draw),
)
