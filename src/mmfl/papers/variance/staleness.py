"""Zhang et al. 2025 on last updates: how much weight a client's last one deserves (Figure 3), and what that gains (5).

Both figures are of one setting, a single task whose clients take part with fixed probabilities, so they share a part.
Figure 3 is drawn in the paper's three-task setting besides, where the probabilities follow the losses.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from mmfl.aggregation import FedStale, FedVARP, StaleVR, StaleVRE, Unbiased
from mmfl.allocation import Fixed, Full
from mmfl.methods import Method
from mmfl.papers.evidence import greater_than_each, spread
from mmfl.papers.measurements import KEYS, LAST, Watch, accuracy, by_round, final
from mmfl.papers.reproduction import (
    OWN,
    Findings,
    Frames,
    PaperTrainer,
    Part,
    as_published,
    digits,
    federations,
    reproduction,
)
from mmfl.papers.variance import aging
from mmfl.papers.variance.table1 import SMALL3
from mmfl.report.differences import difference
from mmfl.report.plots import COLOURS, curve, legend, panels
from mmfl.runs.results import Comparison, Run

STATIC = {0.0: "unbiased", **{beta: f"FedStale {beta:g}" for beta in aging.CONSTANTS[1:-1]}, 1.0: "FedVARP"}
"""The rules with the same constant beta for all clients."""

_RATE = 0.1
_EVERY = 2  # rounds between two tests


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


def rules(clients: int) -> list[Method]:
    """The methods of Figure 5, all with the same draws; also StaleVRE and full participation, for reference."""
    static = {name: FedStale(beta) for beta, name in STATIC.items()}
    stale = {"StaleVR": StaleVR(), "StaleVRE": StaleVRE(), **static, "unbiased": Unbiased(), "FedVARP": FedVARP()}
    fixed = Fixed(participation(clients))
    return [*(Method(name, fixed, rule) for name, rule in stale.items()), Method("full", Full(), Unbiased())]


@dataclass(frozen=True)
class StalenessSetting:
    """A federation and the methods compared on it, of which `observed` is StaleVR.

    `groups` divides the clients into two kinds; `small` are the settings of the quick form.
    """

    name: str
    preset: str
    methods: Callable[[int], Sequence[Any]]
    observed: str
    groups: Callable[[Run], dict[str, NDArray[np.bool_]]]
    small: Sequence[str]
    seeds: range

    def part(self, quick: bool) -> Part:
        """The training in this setting, in its full or quick form."""
        rounds, seeds = (40, range(3)) if quick else (150, self.seeds)
        run = partial(self.run, self.small if quick else (), rounds, seeds)
        return Part(f"staleness/{self.name.replace(' ', '-')}", rounds, seeds, run)

    def run(self, settings: Sequence[str], rounds: int, seeds: range, trainer: PaperTrainer) -> Frames:
        """Trains all methods and observes StaleVR; keeps accuracies where there is something to compare."""
        federation_of, watch = federations(self.preset, settings), Watch(aging.betas_of)
        methods = self.methods(federation_of(seeds[0]).clients)
        tested = {"evaluate_every": _EVERY, "evaluate_last": LAST} if len(methods) > 1 else {"evaluate_every": rounds}
        comparison = trainer.compare(federation_of, methods, rounds, _RATE, seeds, watch=watch, **tested)
        frames = ages(self, comparison, watch)
        return frames | ({"accuracy": accuracy(comparison)[[*KEYS, "mean"]]} if len(methods) > 1 else {})


ONE_TASK = StalenessSetting(
    "one task", "fig5-staleness", rules, "StaleVR", rare_and_frequent, digits("emnist"), range(5)
)
THREE_TASKS = StalenessSetting(
    "three tasks", "lvr-3tasks", lambda _: [as_published("mmfl-stalevr")], "mmfl-stalevr", small_and_large, SMALL3,
    range(3),
)  # fmt: skip


def ages(setting: StalenessSetting, comparison: Comparison, watch: Watch[list[NDArray[np.float64]]]) -> Frames:
    """StaleVR's observed betas: two clients of the first seed, and statistics of all clients by seed."""
    curves: list[pd.DataFrame] = []
    idle, worths = [], []
    data = {task.data.name for run in comparison if run.federation for task in run.federation.tasks}
    for n, run in enumerate(comparison):
        if run.method == setting.observed:
            betas = np.array([replicas[n] for replicas in watch.seen[1:]])
            histories = {task: aging.history_of(run, betas[:, s], task) for s, task in enumerate(run.tasks)}
            known = pd.concat([frame.assign(task=task) for task, frame in histories.items()]).dropna(subset="beta")
            idle.append(aging.by_idle(known).assign(seed=run.seed))
            worths.append({"setting": setting.name, "seed": run.seed, **aging.worth(known)})
            if not curves:
                first = histories[run.tasks[0]].drop(columns=["idle", "trained"])
                curves = [typical(first, group).assign(group=name) for name, group in setting.groups(run).items()]
    return {
        "curves": pd.concat(curves).assign(setting=setting.name),
        "idle": pd.concat(idle).assign(setting=setting.name),
        "worth": pd.DataFrame(worths),
        "data": pd.DataFrame({"setting": setting.name, "data": sorted(data)}),
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
    rivals = {name: ends[name] for name in trusting}
    claims = [
        *greater_than_each("StaleVR ends above {}", "0.74 > 0.71, the best of these", ends["StaleVR"], rivals),
        *greater_than_each(
            "StaleVR ends above {}", OWN, ends["StaleVR"], {n: ends[n] for n in ("unbiased", "StaleVRE")}
        ),
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


REPRODUCTIONS = (
    reproduction("fig3-beta", lambda quick: [ONE_TASK.part(quick), THREE_TASKS.part(quick)], aging.find, aging.draw),
    reproduction("fig5-staleness", lambda quick: [ONE_TASK.part(quick)], find_accuracy, draw_accuracy),
)
