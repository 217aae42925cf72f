"""Gain: rounds to train tasks in turn with FedAvg over rounds to train them together (Bhuyan et al. 2022, eq. 3)."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from mmfl.federation import Federation
from mmfl.papers.evidence import decide, greater, spread
from mmfl.papers.reproduction import Claim, PaperTrainer
from mmfl.record import RoundRecord
from mmfl.runs.listener import Listener, RunInfo

_ROUNDING = 1e-9  # means of the same accuracies may differ by as much


@dataclass(frozen=True)
class Goal:
    """What FedAvg reached on each task by itself, and after how many rounds, [tasks].

    Accuracies are means over a `window` of rounds: the one that ends with FedAvg's last round sets the `accuracy`, and
    `rounds` counts to the end of the first window that is as good. Windows of one round are the accuracies themselves.
    """

    window: int
    accuracy: NDArray[np.float64]
    rounds: NDArray[np.int64]

    @classmethod
    def of(cls, curves: pd.DataFrame, window: int) -> "Goal":
        """The goal that follows from FedAvg's accuracies, [rounds, tasks].

        >>> Goal.of(pd.DataFrame({"digits": [0.1, 0.5, 0.4, 0.5, 0.4]}, index=range(1, 6)), window=2)
        Goal(window=2, accuracy=array([0.45]), rounds=array([3]))
        """
        means = curves.rolling(window).mean()
        accuracy = means.iloc[-1].to_numpy(dtype=float)
        first = (means >= accuracy - _ROUNDING).idxmax()
        return cls(window, accuracy, np.asarray(first, dtype=np.int64))

    def met(self, accuracies: Sequence[NDArray[np.float64]]) -> bool:
        """Whether all tasks, with these accuracies by round, have now reached their goals at the same time."""
        if len(accuracies) < self.window:
            return False
        return bool((np.mean(accuracies[-self.window :], axis=0) >= self.accuracy - _ROUNDING).all())


Curves = Mapping[int, pd.DataFrame]
"""FedAvg on each task by itself: test accuracies by seed, [rounds, tasks]."""


def windows(rounds: int) -> tuple[int, int]:
    """Windows to average over: single rounds, and a tenth of FedAvg's rounds (T_1)."""
    return 1, max(2, rounds // 10)


class GoalListener(Listener):
    """Follows tasks that train together until every method and seed has met FedAvg's goals; then it stops the run.

    `accuracies[method, seed]` are those of all tasks, round by round; `met[method, seed, window]` is the round in which
    the goal of that window was met.
    """

    def __init__(self, alone: Curves):
        self.alone = alone
        self.rounds = len(next(iter(alone.values())))
        self.goals = {
            seed: [Goal.of(curve, window) for window in windows(self.rounds)] for seed, curve in alone.items()
        }
        self.accuracies: dict[tuple[str, int], list[NDArray[np.float64]]] = {}
        self.met: dict[tuple[str, int, int], int] = {}

    def begin(self, info: RunInfo) -> None:
        """Remembers the run, to stop it."""
        self.info = info

    def round(self, records: Sequence[RoundRecord]) -> None:
        """Checks which replicas have reached their goals."""
        for record in records:
            method, seed = record.method, record.seed
            so_far = self.accuracies.setdefault((method, seed), [])
            so_far.append(np.array([task.metric for task in record.tasks.values()], dtype=float))
            for goal in self.goals[seed]:
                if (method, seed, goal.window) not in self.met and goal.met(so_far):
                    self.met[method, seed, goal.window] = record.round
        if len(self.met) == sum(len(self.goals[record.seed]) for record in records):
            self.info.request_stop("all goals are met")

    def gains(self) -> pd.DataFrame:
        """A row per method, seed and window: `published`, T_1 times the number of tasks; `alone`, the rounds until
        FedAvg met its goals, one task after another; `together`, those of the method, nan where it took more than
        `published`."""
        lines = [
            {"method": method, "seed": seed, "window": goal.window, "models": len(goal.rounds)}
            | {"published": len(goal.rounds) * self.rounds, "alone": goal.rounds.sum()}
            | {"together": self.met.get((method, seed, goal.window), np.nan)}
            for method, seed in self.accuracies
            for goal in self.goals[seed]
        ]
        return pd.DataFrame(lines)

    def tasks(self) -> pd.DataFrame:
        """A row per method, seed, window and task: its accuracy `alone`, and `together` when the goals of all tasks
        were met (at the end, where they were not)."""
        lines = []
        for (method, seed), curve in self.accuracies.items():
            for goal in self.goals[seed]:
                end = self.met.get((method, seed, goal.window), len(curve))
                mean = np.mean(curve[:end][-goal.window :], axis=0)
                for task, before, after in zip(self.alone[seed], goal.accuracy, mean, strict=True):
                    key = {"method": method, "seed": seed, "window": goal.window, "task": task}
                    lines.append(key | {"alone": before, "together": after})
        return pd.DataFrame(lines)

    def curves(self, method: str) -> list[pd.DataFrame]:
        """Accuracies of a method, rounds x tasks, a frame per seed."""
        return [
            pd.DataFrame(np.array(curve), index=range(1, len(curve) + 1))
            for (name, _), curve in self.accuracies.items()
            if name == method
        ]


def worst(curves: Iterable[pd.DataFrame], window: int) -> pd.Series:
    """Accuracy of the least accurate task by round, each a mean over a window, averaged over seeds (a frame each)."""
    least = [curve.rolling(window).mean().min(axis=1) for curve in curves]
    mean: pd.Series = pd.concat(least, axis=1).mean(axis=1)
    return mean.dropna()


def train_to_goals(
    trainer: PaperTrainer, federation: Callable[[int], Federation], alone: Curves, methods: Sequence[str], rate: float
) -> GoalListener:
    """Trains all tasks together until they are as accurate as FedAvg made each by itself, or have taken more rounds
    than FedAvg took one after another: then the gain is below 1, however far."""
    listener = GoalListener(alone)
    tasks = next(iter(alone.values())).shape[1]
    trainer.compare(federation, methods, listener.rounds * tasks, rate, list(alone), watch=listener)
    return listener


def smoothed_and_single(measured: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Gains from accuracies averaged over several rounds, and from those of single rounds.

    `gain` is the rounds alone over those together, the same way on both sides; `published_gain`, M T_1 over the rounds
    together. Where the goals were not met, the largest that they can be.
    """
    together = measured["together"].fillna(measured["published"] + 1)
    gains = measured.assign(gain=measured["alone"] / together, published_gain=measured["published"] / together)
    return gains.query("window > 1"), gains.query("window == 1")


def format_gain(measured: pd.DataFrame, column: str, digits: int = 3) -> str:
    """A gain with its spread over seeds; a bound, which has none, if a seed did not reach the goals."""
    if measured["together"].isna().any():
        return f"at most {measured[column].mean():.{digits}f}"
    return spread(measured[column], digits)


@dataclass(frozen=True)
class Gains:
    """Gains by seed; those of seeds that are `late`, without having met their goals, are the largest they can be."""

    values: pd.Series
    late: pd.Series

    @classmethod
    def of(cls, measured: pd.DataFrame) -> "Gains":
        """The gains of some rows, one per seed."""
        by_seed = measured.set_index("seed")
        return cls(by_seed["gain"], by_seed["together"].isna())

    @classmethod
    def constant(cls, value: float, seeds: pd.Index) -> "Gains":
        """The same for all seeds."""
        return cls(pd.Series(value, seeds), pd.Series(False, seeds))

    def above(self, text: str, paper: str, others: "Gains") -> Claim:
        """The claim that these gains exceed others.

        Bounds have no interval. Where there are some, the claim holds or fails if it surely does with every seed.
        """
        if not (self.late.any() or others.late.any()):
            return greater(text, paper, self.values, others.values)
        higher = ~self.late & (self.values > others.values)
        lower = ~others.late & (self.values <= others.values)
        enough, late = len(higher) > 1, int((self.late | others.late).sum())
        shown = (
            f"more in {higher.sum()}, less in {lower.sum()} of {len(higher)} seeds, of which {late} missed the target: "
            "of their gain only a bound is known"
        )
        return Claim(text, paper, shown, decide(enough and bool(higher.all()), enough and bool(lower.all())))
