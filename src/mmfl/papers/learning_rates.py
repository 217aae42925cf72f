"""Learning rates: one sweep per data set and network, with full participation, on seeds that no result uses."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import pandas as pd
from matplotlib.figure import Figure

from mmfl.federation import Federation
from mmfl.papers.evidence import spread
from mmfl.papers.measurements import LAST, accuracy, final
from mmfl.papers.reproduction import Findings, Frames, PaperTrainer, Part, federations, reproduction
from mmfl.partition import Split
from mmfl.report.plots import COLOURS, panels
from mmfl.runs.config import read
from mmfl.runs.presets import path_of

SEEDS = (1000, 1001)
_TOLERANCE = 0.05  # by how much accuracy may fall at the next larger rate


@dataclass(frozen=True)
class RateSweep:
    """A task of a preset, and the learning rates to try for it."""

    preset: str
    task: str
    rates: Sequence[float]
    rounds: int
    settings: Sequence[str] = ()


SWEEPS: dict[str, RateSweep] = {
    "fashion-mnist": RateSweep("lvr-3tasks", "fashion-a", (0.05, 0.1, 0.2, 0.4, 0.8), 150, ["federation.lacks=0.0"]),
    "cifar10": RateSweep("lvr-5tasks", "cifar10", (0.05, 0.1, 0.2, 0.4), 60, ["federation.lacks=0.0"]),
    "emnist": RateSweep("lvr-5tasks", "emnist", (0.1, 0.2, 0.4, 0.8), 150, ["federation.lacks=0.0"]),
    "shakespeare": RateSweep("lvr-5tasks", "shakespeare", (1.0, 2.0, 4.0, 8.0), 40, ["federation.lacks=0.0"]),
    "group mnist": RateSweep("group-consistent", "mnist", (0.02, 0.05, 0.1, 0.2), 100),
    "group fashion": RateSweep("group-consistent", "fashion", (0.02, 0.05, 0.1, 0.2), 100),
    "group cifar10": RateSweep("group-consistent", "cifar10", (0.02, 0.05, 0.1, 0.2), 100),
    "group emnist": RateSweep("group-consistent", "emnist-a", (0.02, 0.05, 0.1, 0.2), 100),
    "synthetic-a": RateSweep("mfa-synthetic", "synthetic-a", (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05), 70),
    "synthetic-b": RateSweep("mfa-synthetic", "synthetic-b", (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05), 70),
    "faces": RateSweep("mfa-faces", "eyeglasses", (0.05, 0.1, 0.2, 0.4, 0.8), 75),
    "faces, one epoch": RateSweep("ucb-faces", "eyeglasses", (0.05, 0.1, 0.2, 0.4, 0.8), 75),
}
_QUICK = {"digits": RateSweep("demo", "digits-linear", (0.05, 0.5, 5.0), 10, ["federation.lacks=0.0"])}


def parts(quick: bool) -> list[Part]:
    """One part per data set."""
    return [
        Part("learning-rates/" + re.sub("[ ,]+", "-", data), sweep.rounds, SEEDS, partial(_run, data, sweep))
        for data, sweep in (_QUICK if quick else SWEEPS).items()
    ]


def _run(data: str, sweep: RateSweep, trainer: PaperTrainer) -> Frames:
    """Trains all rates together: each is a task of one federation."""
    preset = federations(sweep.preset, sweep.settings)

    def by_rate(seed: int) -> Federation:
        return one_task_per_rate(preset(seed), sweep)

    compared = trainer.compare(by_rate, ["full"], sweep.rounds, 1.0, SEEDS, evaluate_every=10, evaluate_last=LAST)
    last = final(accuracy(compared)).drop(columns="mean").reset_index()
    table = last.melt(["method", "seed"], var_name="rate", value_name="accuracy").drop(columns="method")
    return {"sweep": table.assign(data=data)}


def one_task_per_rate(preset: Federation, sweep: RateSweep) -> Federation:
    """The task of a preset once for every rate, over the same clients."""
    s = preset.task_names.index(sweep.task)
    split = Split(preset.shards[s], preset.test_shards[s])
    tasks = [replace(preset.tasks[s], name=f"{rate:g}", lr=rate) for rate in sweep.rates]
    return Federation(tasks, preset.clients, partition=lambda *_: split, seed=preset.seed)


def find(frames: Frames) -> Findings:
    """The best rate of each data set, beside the rate in the presets."""
    rows = []
    for name, table in frames["sweep"].groupby("data", sort=False):
        best = choose(table)
        sweep = (SWEEPS | _QUICK)[str(name)]
        preset_rate = next(task.lr for task in read(path_of(sweep.preset)).tasks if task.name == sweep.task)
        shown = ", ".join(f"{rate:g}: {spread(runs['accuracy'])}" for rate, runs in table.groupby("rate"))
        rows.append([name, shown, f"{best:g}", preset_rate])
    return Findings(pd.DataFrame(rows, columns=["data", "final accuracy by rate", "best", "in the preset"]), [])


def choose(table: pd.DataFrame) -> float:
    """The best rate among those that are not at the edge of stability.

    At the next larger rate that was tried, accuracy must fall by at most five points: sampling makes steps of varying
    length, so at the edge of stability the outcome would be a matter of luck.

    >>> choose(pd.DataFrame({"rate": [0.1, 0.2, 0.4], "accuracy": [0.70, 0.72, 0.10]}))
    0.1
    """
    mean = table.groupby("rate")["accuracy"].mean()
    stable = mean[mean.shift(-1) >= mean - _TOLERANCE]
    return float(str(stable.idxmax())) if len(stable) else float("nan")


def draw(frames: Frames) -> Figure:
    """Final accuracy against learning rate, a line per data set."""
    figure, (axes,) = panels(1, xscale="log", xlabel="learning rate", ylabel="final test accuracy")
    for n, (name, table) in enumerate(frames["sweep"].groupby("data", sort=False)):
        mean = table.groupby("rate")["accuracy"].mean()
        axes.plot(mean.index, mean, "o-", color=COLOURS[n % len(COLOURS)], label=str(name), markersize=3)
    figure.legend(loc="outside right center", frameon=False, fontsize=8)
    return figure


REPRODUCTIONS = (reproduction("learning-rates", parts, find, draw),)
