"""The one workload that all frameworks train, and how a worker process speaks with the driver.

1000 users with 50 images of CIFAR-10 each, 50 users a round, one epoch of SGD in batches of 10, a network of two
convolutions with 1.6 million parameters: the benchmark known from pfl-research, without its dropout. This file runs in
every framework's own environment, so it needs nothing but numpy and torch.
"""

import json
import os
import sys
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

USERS, IMAGES, COHORT, BATCH, EPOCHS, RATE = 1000, 50, 50, 10, 1, 0.1


def network() -> nn.Module:
    """Two convolutions, a hidden layer of 128: 1,626,442 parameters."""
    return nn.Sequential(
        nn.Conv2d(3, 32, 3),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * 14 * 14, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )


class Workload:
    """Data and initial weights, written once by the driver and read by every worker.

    `x`, `y` are the images; `rows` [users, images] says which are a user's.
    """

    def __init__(self, folder: str | Path):
        self.folder = Path(folder)
        arrays = np.load(self.folder / "images.npz")
        self.x, self.y = torch.from_numpy(arrays["x"]), torch.from_numpy(arrays["y"])
        self.x_test, self.y_test = torch.from_numpy(arrays["x_test"]), torch.from_numpy(arrays["y_test"])
        self.rows = torch.from_numpy(arrays["rows"])

    @staticmethod
    def write(folder: Path, x: Tensor, y: Tensor, x_test: Tensor, y_test: Tensor, seed: int = 0) -> None:
        """Images as normalised floats; each user draws its own, nobody the same one twice."""
        folder.mkdir(parents=True, exist_ok=True)
        rng = np.random.default_rng(seed)
        if len(x) >= USERS * IMAGES:
            rows = rng.permutation(len(x))[: USERS * IMAGES].reshape(USERS, IMAGES)
        else:
            rows = np.stack([rng.choice(len(x), IMAGES, replace=False) for _ in range(USERS)])
        mean, spread = x.mean((0, 2, 3), keepdim=True), x.std((0, 2, 3), keepdim=True)
        images = {"x": (x - mean) / spread, "x_test": (x_test - mean) / spread, "y": y, "y_test": y_test}
        np.savez(folder / "images.npz", rows=rows, **{name: tensor.numpy() for name, tensor in images.items()})
        torch.manual_seed(seed)
        torch.save(network().state_dict(), folder / "initial.pt")

    def user(self, number: int) -> tuple[Tensor, Tensor]:
        """A user's images and labels."""
        return self.x[self.rows[number]], self.y[self.rows[number]]

    def model(self) -> nn.Module:
        """The network with the initial weights."""
        module = network()
        module.load_state_dict(torch.load(self.folder / "initial.pt"))
        return module

    @torch.no_grad()
    def accuracy(self, weights: Mapping[str, Tensor]) -> float:
        """The share of test images that a network with these weights gets right."""
        module = network().eval()
        module.load_state_dict(weights)
        guesses = [module(x).argmax(1) for x in self.x_test.split(500)]
        return float((torch.cat(guesses) == self.y_test).float().mean())


@cache
def shared(folder: str) -> Workload:
    """The workload, read once a process."""
    return Workload(folder)


class Driver:
    """A worker's side of the conversation: told how many rounds to train, it answers with the seconds they took.

    The worker calls `round` after every round; at the end of a block that waits for the next, so frameworks take turns
    although each believes to train in one go. What frameworks print goes to stderr. Of several processes that train as
    one, all but the first are silent.
    """

    def __init__(self, silent: bool = False) -> None:
        self.silent = silent
        self.folder, self.rounds = sys.argv[1], int(sys.argv[2])
        self._to_come = self.rounds
        self._answers = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)
        self._wait()

    def round(self) -> None:
        """Called after each round."""
        if self.silent:
            return
        self._left -= 1
        self._to_come -= 1
        if self._left == 0:
            self._answer(seconds=time.perf_counter() - self._begun)
            if self._to_come:
                self._wait()

    def end(self, version: str, threads: str, accuracy: float) -> None:
        """Called after the last round."""
        self._answer(version=version, threads=threads, accuracy=accuracy)

    def _wait(self) -> None:
        if self.silent:
            return
        self._left = int(sys.stdin.readline() or 0)
        self._begun = time.perf_counter()

    def _answer(self, **what: Any) -> None:
        if not self.silent:
            print(json.dumps(what), file=self._answers, flush=True)
