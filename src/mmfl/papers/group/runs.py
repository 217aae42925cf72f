"""Runs of group sampling and the baselines (Gong et al.): what is trained, and what is kept."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from mmfl.engine import Simulation
from mmfl.federation import Federation
from mmfl.methods import make_method
from mmfl.papers.group.clusters import OBSERVED_ROUNDS, measure_clusters, observe
from mmfl.papers.measurements import LAST, Watch, accuracy, mean_costs
from mmfl.papers.reproduction import Frames, PaperTrainer, Part, digits, federations
from mmfl.runs.results import Comparison, Run

BASELINES = ("multi-fedavg", "mfa-rr")
GROUP, ONE_TASK = "mmfl-group", "mmfl-group-inconsistent"
_FIVE = {"method": ONE_TASK, "largest": 5}
FIVE_CLUSTERS = make_method(_FIVE).name
"""The one-task C-step limited to five clusters, so that it trains about as many clients as the baselines."""

_DIGITS = [
    *digits("0", "1", "2", "3", "4", lr=0.1),
    *(f"tasks.{n}.name=digits-{letter}" for n, letter in enumerate("abcde")),
    *(f'tasks.{n}.partition.sizes={{name="uniform", least=15, most=20}}' for n in range(5)),  # for 60 clients
]
_TESTED = {"evaluate_every": 3, "evaluate_last": LAST}  # not every 5, so that cycles are tested at different turns


@dataclass(frozen=True)
class GroupSetting:
    """A federation of the paper, the methods compared on it and the share of clients that train in a round.

    `quick` are `key=value` settings of the quick form. `observed_rounds` are rounds after which losses are measured.
    """

    name: str
    preset: str
    methods: Sequence[str | dict[str, Any]] = (*BASELINES, GROUP)
    rate: float = 1 / 6
    observed_rounds: Sequence[int] = ()
    quick: Sequence[str] = ()

    def federations(self, quick: bool) -> Callable[[int], Federation]:
        """The federation of each seed."""
        return federations(self.preset, [*_DIGITS, *self.quick] if quick else ())


SETTINGS: dict[str, GroupSetting] = {
    setting.name: setting
    for setting in (
        GroupSetting("consistent", "group-consistent", observed_rounds=OBSERVED_ROUNDS),
        GroupSetting("everyone", "group-consistent", rate=1.0),
        GroupSetting(
            "inconsistent", "group-inconsistent", (*BASELINES, GROUP, ONE_TASK, _FIVE), observed_rounds=OBSERVED_ROUNDS
        ),
        GroupSetting("dynamic-clients", "group-dynamic-clients", quick=["federation.arrivals.gap=0.6"]),
        GroupSetting(
            "dynamic-tasks", "group-dynamic-tasks", quick=["federation.task_arrivals={digits-d=9, digits-e=18}"]
        ),
    )
}


def parts(names: Iterable[str], quick: bool) -> list[Part]:
    """The runs of some settings: 100 rounds with 5 seeds, or the quick form of 25 rounds with 3 seeds on the digits."""
    rounds, seeds = (25, range(3)) if quick else (100, range(5))
    return [Part(f"group-{name}", rounds, seeds, partial(run, SETTINGS[name], quick, rounds, seeds)) for name in names]


def run(setting: GroupSetting, quick: bool, rounds: int, seeds: Sequence[int], trainer: PaperTrainer) -> Frames:
    """Trains all methods and seeds of a setting; its name is in the column `setting` of every frame."""
    federation_of, watch = setting.federations(quick), Watch(partial(observe, setting.observed_rounds))
    compared = trainer.compare(federation_of, setting.methods, rounds, setting.rate, seeds, watch=watch, **_TESTED)
    costs = mean_costs(compared)[["method", "seed", "trainings", "forward_passes"]]
    frames = {
        "accuracy": accuracy(compared).round(4),
        "rounds": costs.assign(met=[clusters_met(run) for run in compared]),
        "tasks": tasks(compared),
        "arrivals": arrivals(compared),
        **measure_clusters(watch, compared, Simulation(trainer.device)),
    }
    return {name: frame.assign(setting=setting.name) for name, frame in frames.items() if len(frame)}


def clusters_met(run: Run) -> float:
    """How many of the true clusters train a task within five rounds, averaged over tasks and rounds."""
    federation = run.federation
    assert federation is not None
    met = []
    for name, groups, arrival in zip(run.tasks, federation.groups, federation.task_arrivals, strict=True):
        assert groups is not None
        kinds = [set(groups[record.drawn_clients(name)]) for record in run.records[arrival - 1 :]]
        met += [len(set().union(*kinds[t : t + 5])) for t in range(0, len(kinds) - 4, 5)]
    return float(np.mean(met)) if met else np.nan


def tasks(compared: Comparison) -> pd.DataFrame:
    """A row per task: its model, its data, its training settings and its first round."""
    federation = compared.runs[0].federation
    assert federation is not None
    lines = [
        (task.name, task.data.name, type(task.build()).__name__, task.learning_rate(1), task.epochs, int(arrival))
        for task, arrival in zip(federation.tasks, federation.task_arrivals, strict=True)
    ]
    return pd.DataFrame(lines, columns=["task", "data", "model", "lr", "epochs", "arrival"])


def arrivals(compared: Comparison) -> pd.DataFrame:
    """The rounds in which clients arrived after the start, by seed."""
    found = {run.seed: run.federation.arrivals for run in compared if run.federation is not None}
    return pd.DataFrame([{"seed": seed, "round": int(t)} for seed, when in found.items() for t in when[when > 1]])
