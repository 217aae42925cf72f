"""What all parts share: the settings, blocks of seeds, what is kept of a run, and how accuracies are compared."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from mmfl.federation import Federation
from mmfl.papers.forecast.small_networks import SETTINGS as SMALL_TASKS
from mmfl.papers.measurements import KEYS, LAST, accuracy, final, mean_costs, tidy
from mmfl.papers.reproduction import Frames, PaperTrainer, Part, as_published, federations
from mmfl.papers.variance.table1 import SMALL3, SMALL5

AVERAGE = 0.1  # the rate of the exponential average of the weights that is served beside them
OURS, FULL = "forecast", "full"


@dataclass(frozen=True)
class Setting:
    """A federation to train on, by its preset.

    `seeds` says how many there are; `fewer` has the number for methods of which there are fewer. A part trains a
    method with `block` seeds, or with `blocks[method]`, so that no part takes long.
    """

    name: str
    preset: str
    rounds: int
    seeds: int
    block: int
    settings: Sequence[str] = ()
    rate: float = 0.1
    fewer: Mapping[str, int] = field(default_factory=dict)
    blocks: Mapping[str, int] = field(default_factory=dict)

    @property
    def federation_of(self) -> Callable[[int], Federation]:
        """The federation of each seed."""
        return federations(self.preset, self.settings)

    def parts(self, folder: str, method: str, make: Callable[[], Any]) -> list[Part]:
        """A part for each block of seeds; `make` gives the method."""
        seeds, block = self.fewer.get(method, self.seeds), self.blocks.get(method, self.block)
        starts = range(0, seeds, block)
        return [self.part(folder, method, [make], range(n, min(n + block, seeds))) for n in starts]

    def part(self, folder: str, name: str, makers: Sequence[Callable[[], Any]], seeds: Sequence[int]) -> Part:
        """The part that trains some methods with some seeds."""
        span = str(seeds[0]) if len(seeds) == 1 else f"{seeds[0]}-{seeds[-1]}"
        return Part(f"{folder}/{name}/{span}", self.rounds, seeds, partial(_run, self, makers, seeds))


THREE = Setting("3tasks", "lvr-3tasks", 150, 20, 20, blocks={"full": 5, "mmfl-stalevr": 5, "mmfl-stalevre": 10})
FIVE = Setting(
    "5tasks", "lvr-5tasks", 150, 10, 5, fewer={"mmfl-stalevr": 3, "mmfl-stalevre": 3},
    blocks={"full": 1, "mmfl-stalevr": 1, "mmfl-stalevre": 1},
)  # fmt: skip
SMALL_THREE = Setting("3tasks", "lvr-3tasks", 25, 3, 3, SMALL3)
SMALL_FIVE = Setting("5tasks", "lvr-5tasks", 15, 2, 2, SMALL5)
SMALL_NETWORKS = Setting("small-networks", "lvr-5tasks", 150, 8, 8, SMALL_TASKS)
QUICK_NETWORKS = replace(SMALL_FIVE, name=SMALL_NETWORKS.name)


def _run(setting: Setting, makers: Sequence[Callable[[], Any]], seeds: Sequence[int], trainer: PaperTrainer) -> Frames:
    """Accuracy of the current and of the averaged weights, and mean costs of a round."""
    methods, last = [make() for make in makers], min(LAST, max(setting.rounds // 5, 1))
    compared = trainer.compare(
        setting.federation_of, methods, setting.rounds, setting.rate, list(seeds), evaluate_every=5, evaluate_last=last,
        average=AVERAGE,
    )  # fmt: skip
    served = tidy(compared, lambda run: run.average.assign(mean=run.summary["average_mean"]))
    return {"accuracy": accuracy(compared), "served": served, "costs": mean_costs(compared)}


def published_method(method: str) -> Callable[[], Any]:
    """What makes a named method as its paper has it."""
    return partial(as_published, method)


def relative(frames: Frames, weights: str = "accuracy", column: str = "mean") -> pd.DataFrame:
    """Final accuracy relative to full participation's with the same seed, [seeds, methods]: of the current weights
    ("accuracy"), relative to its current ones, or of the averaged weights ("served"), relative to the better of its
    two."""
    full = final(frames["accuracy"])[column].loc[FULL]
    if weights == "served":
        full = np.maximum(full, final(frames["served"])[column].loc[FULL])
    methods = frames[weights]["method"].unique()
    table: pd.DataFrame = final(frames[weights])[column].unstack("method")
    return table[methods].div(full, axis=0)


def lowest_rounds(frames: Frames) -> pd.DataFrame:
    """The lowest accuracy of the last rounds, relative to full participation's final one, [seeds, methods]."""
    tests = frames["accuracy"]
    full = final(tests)["mean"].loc[FULL]
    last = tests[tests["round"] > tests["round"].max() - LAST]
    lowest: pd.DataFrame = last.groupby(["seed", "method"])["mean"].min().unstack("method")
    return lowest.div(full, axis=0)


def tasks_of(frames: Frames) -> list[str]:
    """The names of the tasks."""
    return [str(column) for column in frames["accuracy"] if column not in (*KEYS, "mean")]


def costs_table(frames: Frames) -> pd.DataFrame:
    """What a round costs on average, a row per method; sizes in MB."""
    costs = frames["costs"]
    mean = costs.drop(columns="seed").groupby("method", sort=False).mean()
    columns = {"trainings": "trainings", "forward_passes": "losses asked for"}
    sizes = {"bytes_down": "MB down", "bytes_up": "MB up", "stored_bytes": "MB stored"}
    mean[list(sizes)] /= 1e6
    table = mean[[*columns, *sizes]].rename(columns=columns | sizes)
    return table.map(lambda number: f"{number:,.1f}").reset_index()


def least(values: pd.Series) -> str:
    """The lowest of them."""
    return f"{np.nanmin(values):.3f}"
