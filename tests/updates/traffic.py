"""Rounds of several methods in each process of a group, for `test_traffic.py`: what they add up, in numbers."""

import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

import mmfl
from mmfl.engine import Simulation
from mmfl.methods import make_method
from mmfl.training import Replica, rounds
from mmfl.updates.world import leave

CLIENTS, HIDDEN = 40, (20, 21, 22)


def federation() -> mmfl.Federation:
    """Three tasks of different sizes, six examples for each client."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(CLIENTS * 6, 64)).astype(np.float32), rng.integers(0, 10, CLIENTS * 6)
    data = mmfl.data.from_arrays(x, y, np.repeat(np.arange(CLIENTS), 6), test=(x[:10], y[:10]))
    models = [partial(mmfl.models.Perceptron, inputs=64, hidden=hidden, classes=10) for hidden in HIDDEN]
    return mmfl.Federation([mmfl.Task(f"task {s}", model, data, epochs=1) for s, model in enumerate(models)])


def counted(sizes: list[int], plain: Callable) -> Callable:
    """An all-reduce that notes the bytes it is given."""

    def reduce(tensor: torch.Tensor, *options: object, **named: object) -> object:
        sizes.append(tensor.nbytes)
        return plain(tensor, *options, **named)

    return reduce


def main() -> None:
    """The first process writes trainings, bytes and sums of the third round of each method."""
    torch.set_num_threads(1)
    engine, sizes, found = Simulation("cpu", "vectorised"), [], {}
    dist.all_reduce = counted(sizes, dist.all_reduce)
    for name in sys.argv[2].split(","):
        replica = Replica.start(federation(), make_method(name), 0, 0.3, engine)
        happening = rounds([replica], engine, 4, evaluate_every=10, evaluate_last=0)
        for _ in range(3):
            sizes.clear()
            (record,) = next(happening)
        parameters = [len(weights) for weights in replica.state.weights]
        found[name] = [record.cost.trainings, parameters, sum(sizes), len(sizes)]
    if engine.world.first:
        Path(sys.argv[1]).write_text(json.dumps(found))
    leave()
