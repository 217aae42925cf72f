"""Bhuyan, Moharir & Joshi 2022, Section 7: the gain on Synthetic(1,1) and faces (Figures 3 and 4, Tables 5 and 6)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import pandas as pd

from mmfl.federation.task import Task
from mmfl.papers.measurements import rows
from mmfl.papers.mfa import gain_tables
from mmfl.papers.mfa.gain_findings import draw, find_full, find_partial
from mmfl.papers.mfa.goals import alone, chase, worst
from mmfl.papers.mfa.tasks import CAP, copies, faces, named, sharing, small_faces, synthetic
from mmfl.papers.reproduction import Frames, Part, Reproduction, Trainer

METHODS = ("mfa-rr", "mfa-rand")
_NAMES = {"synthetic-a": "Synthetic(1,1)-A", "synthetic-b": "Synthetic(1,1)-B"}
_POINTS = 10  # of a curve that are kept for each T_1 rounds


@dataclass(frozen=True)
class Setting:
    """Copies of one task: how it is made, over how many clients, of which `rate` takes part in a round; FedAvg trains
    it for `rounds` (T_1), and there are as many copies as `models` (M) says, one number after the other."""

    name: str
    task: Callable[[], Task]
    clients: int
    rate: float
    rounds: int
    models: Sequence[int] = (2, 3, 4, 6, 8, 10)
    seeds: Sequence[int] = range(5)

    def part(self) -> Part:
        """The setting as a part; its rounds are the limit for the largest number of models."""
        return Part(f"mfa-gain/{self.name}", self.rounds * max(self.models), self.seeds, self.run)

    def run(self, trainer: Trainer) -> Frames:
        """Trains FedAvg on the task, then its copies together: `gains`, and `curves` of the least accurate copy."""
        task = self.task()
        label = f"{_NAMES.get(task.name, task.data.name)}, lr {task.learning_rate(1):g}"
        fedavg = alone(trainer, sharing([task], self.clients), "multi-fedavg", self.rounds, self.rate, self.seeds)
        window = fedavg.windows[1]
        gains, curves = [], {1: worst(fedavg.curves.values(), window)}
        for models in self.models:
            tasks = copies(task, models)
            goals = fedavg.with_copies([each.name for each in tasks])
            followed = chase(trainer, sharing(tasks, self.clients), goals, METHODS, self.rate)
            gains.append(followed.gains())
            curves[models] = worst(followed.curves(METHODS[0]), window)
        kept = [thin_out(curve, self.rounds).assign(models=models) for models, curve in curves.items()]
        found = {"gains": pd.concat(gains, ignore_index=True), "curves": pd.concat(kept, ignore_index=True)}
        return {name: frame.assign(data=label) for name, frame in found.items()}


def thin_out(curve: pd.Series, rounds: int) -> pd.DataFrame:
    """A curve at regular intervals, and its last round."""
    every = max(1, rounds // _POINTS)
    kept = curve[(curve.index % every == 0) | (curve.index == curve.index.max())]
    return rows([{"round": t, "accuracy": accuracy} for t, accuracy in kept.items()])


def _small_set(number: int) -> Task:
    return replace(synthetic(number, clients=40, cap=100), lr=0.01)


def _face() -> Task:
    return named(faces(), "eyeglasses")


def _small_face() -> Task:
    return small_faces("Blond_Hair")[0]


FULL = (
    Setting("full-synthetic-a", partial(synthetic, 0, 100), 100, 1.0, 70),
    Setting("full-synthetic-b", partial(synthetic, 1, 100), 100, 1.0, 70),
    Setting("full-faces", _face, 96, 1.0, 75),
)
PARTIAL = (
    Setting("partial-synthetic-a", partial(synthetic, 0, 200), 200, 0.16, 200, (2, 4, 8)),
    Setting("partial-synthetic-b", partial(synthetic, 1, 200), 200, 0.16, 200, (2, 4, 8)),
    Setting("partial-faces", _face, 96, 0.25, 75, (2, 4, 8)),
)
QUICK_FULL = (
    Setting("full-synthetic-a", partial(_small_set, 0), 40, 1.0, 15, (2, 4), range(3)),
    Setting("full-synthetic-b", partial(_small_set, 1), 40, 1.0, 15, (2, 4), range(3)),
    Setting("full-faces", _small_face, 24, 1.0, 12, (2, 4), range(3)),
)
QUICK_PARTIAL = (
    Setting("partial-synthetic-a", partial(_small_set, 0), 40, 0.4, 15, (2, 4), range(3)),
    Setting("partial-faces", _small_face, 24, 0.5, 12, (2, 4), range(3)),
)


def full_parts(quick: bool) -> list[Part]:
    """A part per data set."""
    return [setting.part() for setting in (QUICK_FULL if quick else FULL)]


def partial_parts(quick: bool) -> list[Part]:
    """A part per data set."""
    return [setting.part() for setting in (QUICK_PARTIAL if quick else PARTIAL)]


_MEASURE = (
    "The target eps is the accuracy that FedAvg has after T_1 rounds on one model by itself; T_P is the first round in "
    "which all M models have it at once. Accuracies are means over T_1 / 10 rounds, for single rounds are noisy, and "
    "the gain M T_1(eps) / T_P counts FedAvg's rounds in the same way, to the first in which it had eps. The gain as "
    "published is M T_1 / T_P with the accuracies of single rounds. Training stops after M T_1 rounds in any case: "
    "without eps by then, the gain is below 1."
)

REPRODUCTIONS = (
    Reproduction(
        "mfa-fig3",
        "mfa",
        "Figure 3: gain over the number of models, full participation",
        "M copies of one task, over clients that all train in every round: Synthetic(1,1)-A (60 inputs, 5 classes) and "
        f"-B (30 inputs, 10 classes) over 100 clients of at most {CAP} examples, T_1 = 70, and eyeglasses on the faces "
        f"of 96 people, T_1 = 75 (CelebA where the data folder has it, else generated ones). {_MEASURE}",
        full_parts,
        find_full,
        draw,
    ),
    Reproduction(
        "mfa-fig4",
        "mfa",
        "Figure 4: gain over the number of models, partial participation",
        "M copies of one task, over clients of which some train in a round: Synthetic(1,1)-A and -B over 200 clients "
        f"of at most {CAP} examples, 32 a round, T_1 = 200, "
        "and eyeglasses on the faces of 96 people, 24 a round, T_1 = 75 (CelebA where the data folder has it, else "
        "generated ones). MFA-RR draws the clients of a frame of M rounds at its start, MFA-Rand those of every round. "
        f"{_MEASURE}",
        partial_parts,
        find_partial,
        draw,
    ),
    *gain_tables.REPRODUCTIONS,
)
