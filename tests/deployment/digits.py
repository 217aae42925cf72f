"""The app that deployments run in tests, two tasks over four clients, and the simulation that they must equal."""

import json
from collections.abc import Iterable
from pathlib import Path

import torch
from safetensors.torch import load_file

import mmfl

MODULE = """
import mmfl

def tasks():
    digits = mmfl.data.digits()
    return [
        mmfl.Task("linear", mmfl.models.LogisticRegression, digits, lr=0.3, epochs=2),
        mmfl.Task("hidden", mmfl.models.Perceptron, digits, lr=0.3, batch_size=16),
    ]

def data(task, client):
    digits = mmfl.data.digits()
    return digits.x[client::4], digits.y[client::4]
"""


def module(folder: Path) -> Path:
    path = folder / "app.py"
    path.write_text(MODULE)
    return path


def simulated(method: str | dict, rounds: int, rate: float, capacity: int = 1, **federation) -> mmfl.Run:
    """The same run as a simulation."""
    names: dict = {}
    exec(MODULE, names)
    split = mmfl.partition.Split(mmfl.partition.Shards.by_owner(torch.arange(1438).numpy() % 4, 4))
    pool = mmfl.Federation(names["tasks"](), 4, partition=lambda *_: split, capacity=capacity, **federation)
    return mmfl.train(pool, method, rounds, rate, device="cpu")


def weights_of(directory: Path) -> list[torch.Tensor]:
    """The weights in the last checkpoint."""
    newest = sorted((directory / "checkpoint").glob("round-*.safetensors"))[-1]
    arrays = load_file(newest)
    return [arrays[name] for name in sorted(arrays) if ".weights." in name]


def events(directory: Path) -> list[dict]:
    return [json.loads(line) for line in (directory / "events.jsonl").read_text().splitlines()]


def assert_same_weights(mine: Iterable[torch.Tensor], theirs: Iterable[torch.Tensor]) -> None:
    for here, there in zip(mine, theirs, strict=True):
        torch.testing.assert_close(here, there, rtol=1e-4, atol=1e-5)
