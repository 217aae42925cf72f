"""Zhang et al. 2025 on last updates: how much weight a client's last one deserves (Figure 3), and what that gains (5).

Both figures are of one setting, a single task whose clients take part with fixed probabilities, so they share a part.
Figure 3 is drawn in the paper's three-task setting besides, where the probabilities follow the losses.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from mmfl.aggregation import FedStale, FedVARP, StaleVR, StaleVRE, Unbiased
from mmfl.allocation import Fixed, Full
from mmfl.methods import Method
from mmfl.papers.evidence import greater, spread
from mmfl.papers.measurements import Watch, accuracy, by_round, final
from mmfl.papers.panels import panels
from mmfl.papers.reproduction import Findings, Frames, Part, Trainer, as_published, federations, reproduction
from mmfl.papers.variance import aging
from mmfl.report.differences import difference
from mmfl.report.plots import COLOURS, curve, legend
from mmfl.runs.results import Comparison, Run

STATIC = {0.0: "unbiased", **{beta: f"FedStale {beta:g}" for beta in aging.CONSTANTS[1:-1]}, 1.0: "FedVARP"}
"""The rules with the same constant beta for all clients."""

_RATE = 0.1
_EVERY = 2  # rounds between two tests


@dataclass(frozen=True)
class Form:
    """A federation in its full or quick form; `groups` divides the clients into two kinds."""

    name: str
    preset: str
    rounds: int
    seeds: range
    groups: Callable[[Run], dict[str, NDArray[np.bool_]]]
    settings: Sequence[str] = ()


def participation(clients: int) -> NDArray[np.float64]:
    """Half of the clients train in 4% of the rounds, the other half in 16%."""
    return np.repeat([0.04, 0.16], [clients // 2, clients - clients // 2])


def rare_and_frequent(run: Run) -> dict[str, NDArray[np.bool_]]:
    """The two halves of the single task's clients."""
    rare = participation(run.clients) < _RATE
    return {"in 4% of the rounds": rare, "in 16% of the rounds": ~rare}


def small_and_large(run: Run) -> dict[str, NDArray[np.bool_]]:
    """The clients with few and with many examples of the first task."""
    assert run.federation is not None
    sizes = run.federation.sizes[:, 0]
    large = sizes > sizes.max() / 2
    return {"few examples": (sizes > 0) & ~large, "many examples": large}


def _digits(task: str) -> list[str]:
    """Settings that replace a task by a linear model of the embedded digits."""
    return [f"tasks.{task}.data=digits", f"tasks.{task}.model=logistic", f"tasks.{task}.lr=0.3"]


def methods_of(clients: int) -> list[Method]:
    """The methods of Figure 5, all with the same draws; also StaleVRE and full participation, for reference."""
    static = {name: FedStale(beta) for beta, name in STATIC.items()}
    rules = {"StaleVR": StaleVR(), "StaleVRE": StaleVRE(), **static, "unbiased": Unbiased(), "FedVARP": FedVARP()}
    fixed = Fixed(participation(clients))
    return [*(Method(name, fixed, rule) for name, rule in rules.items()), Method("full", Full(), Unbiased())]


def train_one(form: Form, trainer: Trainer) -> Frames:
    """Trains all rules on the single task, and observes StaleVR."""
    federation_of, watch = federations(form.preset, form.settings), Watch(aging.betas_of)
    methods, tested = methods_of(federation_of(form.seeds[0]).clients), {"evaluate_every": _EVERY, "evaluate_last": 20}
    comparison = trainer.compare(federation_of, methods, form.rounds, _RATE, form.seeds, watch=watch, **tested)
    means = accuracy(comparison)[["method", "seed", "round", "mean"]]
    return {"accuracy": means, **ages(form, comparison, "StaleVR", watch)}


def train_three(form: Form, trainer: Trainer) -> Frames:
    """Trains and observes MMFL-StaleVR."""
    federation_of, watch = federations(form.preset, form.settings), Watch(aging.betas_of)
    methods, tested = [as_published("mmfl-stalevr")], {"evaluate_every": form.rounds}
    comparison = trainer.compare(federation_of, methods, form.rounds, _RATE, form.seeds, watch=watch, **tested)
    return ages(form, comparison, "mmfl-stalevr", watch)


def ages(form: Form, comparison: Comparison, method: str, watch: Watch[list[NDArray[np.float64]]]) -> Frames:
    """StaleVR's observed betas: two clients of the first seed, and statistics of all clients by seed."""
    curves, idle, worths = [], [], []
    data = {task.data.name for run in comparison if run.federation for task in run.federation.tasks}
    for n, run in enumerate(comparison):
        if run.method == method:
            betas = np.array([replicas[n] for replicas in watch.seen[1:]])
            histories = {task: aging.history_of(run, betas[:, s], task) for s, task in enumerate(run.tasks)}
            known = pd.concat([frame.assign(task=task) for task, frame in histories.items()]).dropna(subset="beta")
            idle.append(aging.by_idle(known).assign(seed=run.seed))
            worths.append({"setting": form.name, "seed": run.seed, **aging.worth(known)})
            if run.seed == form.seeds[0]:
                first = histories[run.tasks[0]].drop(columns=["idle", "trained"])
                curves = [typical(first, group).assign(group=name) for name, group in form.groups(run).items()]
    return {
        "curves": pd.concat(curves).assign(setting=form.name),
        "idle": pd.concat(idle).assign(setting=form.name),
        "worth": pd.DataFrame(worths),
        "data": pd.DataFrame({"setting": form.name, "data": sorted(data)}),
    }


def typical(frame: pd.DataFrame, group: NDArray[np.bool_]) -> pd.DataFrame:
    """The rounds of the client of a group that trained the median number of times."""
    trained = frame.groupby("client")["active"].sum().to_numpy()
    members = np.flatnonzero(group)
    chosen = int(members[np.argsort(trained[members], kind="stable")[len(members) // 2]])
    return frame.loc[frame["client"] == chosen]


def find_accuracy(frames: Frames) -> Findings:
    """Final accuracy of each rule, and StaleVR compared with each constant beta."""
    ends = final(frames["accuracy"])["mean"].unstack("method")
    trusting = [name for beta, name in STATIC.items() if beta > 0]
    table = pd.DataFrame(
        [
            {
                "method": name,
                "paper": "0.74" if name == "StaleVR" else "at most 0.71" if name in trusting else "",
                "final accuracy": spread(ends[name]),
                "of full participation": spread(ends[name] / ends["full"]),
                "StaleVR is ahead by": "" if name == "StaleVR" else str(difference(ends["StaleVR"], ends[name])),
            }
            for name in frames["accuracy"]["method"].unique()
        ]
    )
    claims = [
        greater(f"StaleVR ends above {name}", "0.74 > 0.71, the best of these", ends["StaleVR"], ends[name])
        for name in trusting
    ]
    return Findings(table, claims, [aging.data_note(frames)])


def draw_accuracy(frames: Frames) -> Figure:
    """Accuracy by round, and the difference between each constant beta and StaleVR."""
    regular = frames["accuracy"].query(f"round % {_EVERY} == 0")
    figure, (left, right) = panels(2, height=4.2)
    for n, name in enumerate(regular["method"].unique()):
        runs = by_round(regular, "mean", name).rolling(5, min_periods=1).mean()
        curve(left, runs.mean(axis=1).to_frame(), name, n)
    left.set(xlabel="round", ylabel="test accuracy", title=f"mean over seeds and {5 * _EVERY} rounds")
    _draw_lead(right, final(frames["accuracy"])["mean"].unstack("method"))
    legend(figure, left)
    return figure


def _draw_lead(axes: Axes, ends: pd.DataFrame) -> None:
    """Final accuracy minus StaleVR's by beta, with 95% intervals over paired seeds."""
    gaps = {beta: difference(ends[name], ends["StaleVR"]) for beta, name in STATIC.items()}
    axes.errorbar(
        list(gaps),
        [gap.mean for gap in gaps.values()],
        [gap.half if np.isfinite(gap.half) else 0.0 for gap in gaps.values()],
        fmt="o-", color=COLOURS[6], capsize=3, label="one beta for everyone",
    )  # fmt: skip
    axes.axhline(0, color=COLOURS[0], label="StaleVR")
    axes.axhline(difference(ends["StaleVRE"], ends["StaleVR"]).mean, color=COLOURS[1], ls="--", label="StaleVRE")
    axes.set(xlabel="beta", ylabel="final accuracy minus StaleVR's", title="paired over seeds, 95% intervals")
    axes.legend(fontsize=8)


def staleness_parts(quick: bool) -> list[Part]:
    """The part of the single task, EMNIST alone."""
    rounds, seeds, settings = (40, range(3), _digits("emnist")) if quick else (150, range(5), [])
    form = Form("one task", "fig5-staleness", rounds, seeds, rare_and_frequent, settings)
    return [Part("staleness/one-task", rounds, seeds, partial(train_one, form))]


def beta_parts(quick: bool) -> list[Part]:
    """The parts of the single task and of the three tasks, Fashion-MNIST three times."""
    small = ["federation.clients=40", *_digits("fashion-a"), *_digits("fashion-b"), *_digits("fashion-c")]
    rounds, seeds, settings = (40, range(3), small) if quick else (150, range(3), [])
    form = Form("three tasks", "lvr-3tasks", rounds, seeds, small_and_large, settings)
    return [*staleness_parts(quick), Part("staleness/three-tasks", rounds, seeds, partial(train_three, form))]


REPRODUCTIONS = (
    reproduction("fig3-beta", beta_parts, aging.find, aging.draw),
    reproduction("fig5-staleness", staleness_parts, find_accuracy, draw_accuracy),
)
