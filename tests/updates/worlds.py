"""What several processes train together, for `test_world.py`; in a group of processes, or called in one."""

import os
import signal
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

import mmfl
from mmfl.aggregation import Unbiased
from mmfl.methods import METHODS
from mmfl.updates.world import leave

ROUNDS = 6


def federation(seed: int) -> mmfl.Federation:
    """Eleven clients, which no small number of processes divides, some of whom come late or go."""
    digits = mmfl.data.digits()
    tasks = [
        mmfl.Task("linear", mmfl.models.LogisticRegression, digits, lr=0.1, epochs=2),
        mmfl.Task("hidden", mmfl.models.Perceptron, digits, lr=0.1, batch_size=20),
    ]
    arrivals, departures = [1] * 9 + [3, 4], [0] * 8 + [5, 0, 0]
    return mmfl.Federation(tasks, 11, capacity="mixed", arrivals=arrivals, departures=departures, seed=seed)


def everything(directory: Path, resume: bool = False) -> mmfl.Comparison:
    """All methods of the package."""
    return mmfl.compare(
        federation,
        list(METHODS),
        ROUNDS,
        0.4,
        [3],
        directory=directory,
        resume=resume,
        checkpoint_every=3,
        engine="vectorised",
        device="cpu",
    )


class Fatal(Unbiased):
    """Kills the second process in the fourth round, once."""

    def aggregate(self, weights, updates, view, state):
        mark = Path(os.environ["FATAL_MARK"])
        if view.round == 4 and os.environ.get("RANK") == "1" and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().aggregate(weights, updates, view, state)


def main() -> None:
    """What each process does; the first one stores all weights."""
    torch.set_num_threads(1)
    place, going_on = Path(sys.argv[1]), sys.argv[2] == "resume"
    found = everything(place, going_on)
    if os.environ["RANK"] == "0":
        weights = {f"{run.method}/{s}": run.weights[s] for run in found for s in (0, 1)}
        save_file(weights, place / "weights.safetensors")
    leave()
