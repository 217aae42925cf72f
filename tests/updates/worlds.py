"""What several processes train together, for `test_world.py`; in a group of processes, or called in one."""

import os
import signal
import sys
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import nn

import mmfl
from mmfl.aggregation import Average, Forecast, Unbiased
from mmfl.allocation import ExpectedResidualVariance
from mmfl.methods import METHODS, make_method
from mmfl.updates.world import leave

ROUNDS = 4


def federation(seed: int) -> mmfl.Federation:
    """Eleven clients, which no small number of processes divides, some of whom come late or go."""
    digits = mmfl.data.digits()
    tasks = [
        mmfl.Task(
            "linear",
            lambda: network(),
            digits,
            lr=0.05,
            epochs=2,
            batch_norm="local",
            optimiser=mmfl.optimisers.SGD(momentum=0.5),
            optimiser_state="client",
            metrics=["auc", "confusion"],
        ),
        mmfl.Task("hidden", lambda: network(16), digits, lr=0.1, batch_size=20),
    ]
    arrivals, departures = [1] * 9 + [2, 3], [0] * 8 + [4, 0, 0]
    speeds = mmfl.devices.three_speeds()
    options = {"arrivals": arrivals, "departures": departures, "devices": speeds, "seed": seed}
    return mmfl.Federation(tasks, 11, capacity="mixed", **options)


def network(*hidden: int) -> nn.Module:
    """Batch norm, a hidden layer with dropout if wanted, and the classes."""
    sizes = [64, *hidden]
    layers = [layer for pair in pairwise(sizes) for layer in (nn.Linear(*pair), nn.ReLU(), nn.Dropout(0.2))]
    return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), *layers, nn.Linear(sizes[-1], 10))


def everything(directory: Path, resume: bool = False) -> mmfl.Comparison:
    """All methods of the package, and others that a researcher writes."""
    return mmfl.compare(
        federation,
        [*METHODS, *OWN.values()],
        ROUNDS,
        0.4,
        [3],
        directory=directory,
        resume=resume,
        checkpoint_every=2,
        engine="vectorised",
        device="cpu",
    )


class AlikeEverywhere(ExpectedResidualVariance):
    """Ends the run where processes do not expect the same residuals, to the bit."""

    def allocate(self, view, state):
        if dist.is_initialized():
            least, most = (torch.from_numpy(view.signals["expected_residuals"].copy()) for _ in range(2))
            dist.all_reduce(least, dist.ReduceOp.MIN)
            dist.all_reduce(most, dist.ReduceOp.MAX)
            assert torch.equal(least, most)
        return super().allocate(view, state)


class Median(mmfl.AggregationRule):
    """The median of every number over the clients: a rule that reads all updates, and knows of no processes."""

    def aggregate(self, weights, updates, view, state):
        return (weights - updates.flat.median(dim=0).values if len(updates) else weights), state


@dataclass
class Last:
    """Each client's last update."""

    stored: mmfl.updates.ClientVectorStore


class Smoothed(mmfl.AggregationRule):
    """The mean of each client's update and its last one, the way the tutorial writes it."""

    def start(self, clients, weights):
        return Last(mmfl.updates.StorageOptions().start(clients, weights))

    def aggregate(self, weights, updates, view, state):
        if not len(updates):
            return weights, state
        examples = view.sizes[updates.client, updates.task]
        share = examples / examples.sum()
        old = np.where(state.stored.has(updates.client), 0.5, 0.0)
        step = updates.combine((1 - old) * share) + state.stored.combine(updates.client, old * share)
        state.stored.put(updates.client, updates.flat)
        return weights - step, state


@dataclass
class Direction:
    """The mean local gradient of the last round."""

    mean: torch.Tensor


@dataclass(frozen=True)
class ClientMomentum(mmfl.LocalRule):
    """Every local step also follows the mean direction of the last round."""

    def direction(self, step):
        return 0.5 * step.gradient + 0.5 * step.correction

    def start(self, clients, weights):
        return Direction(torch.zeros_like(weights))

    def correction(self, client, state):
        return state.mean.expand(len(client), -1)

    def observe(self, updates, rates, view, state):
        return Direction(updates.combine(1 / (rates * len(updates)))) if len(updates) else state


OWN = {
    "median": mmfl.Method("median", mmfl.allocation.RandomClients(), Median()),
    "smoothed": mmfl.Method("smoothed", mmfl.allocation.RandomClients(), Smoothed()),
    "momentum": mmfl.Method("momentum", mmfl.allocation.RandomClients(), Average(), ClientMomentum()),
    "3-bit": make_method({"method": "fedvarp", "keep": {"precision": "3-bit"}, "name": "3-bit"}),
    **{
        name: make_method({"name": name, "allocation": "random-clients", "aggregation": name})
        for name in ("multi-krum", "geometric-median")
    },
    "asynchronous": make_method(
        {
            "name": "asynchronous",
            "allocation": "expected-residual-variance",
            "aggregation": "forecast",
            "pace": {"name": "buffered", "buffer": 2, "memory": "sent"},
        }
    ),
    "norm-clipping": make_method(
        {
            "name": "norm-clipping",
            "allocation": "residual-variance",
            "aggregation": {"name": "norm-clipping", "inner": "stalevr"},
        }
    ),
    "alike": mmfl.Method("alike", AlikeEverywhere(), Forecast()),
    "3-bit forecast": make_method({"method": "forecast", "keep": {"precision": "3-bit"}, "name": "3-bit forecast"}),
}
"""Methods such as a researcher writes."""


class Fatal(Unbiased):
    """Kills the second process in the fourth round and the first one in the fifth: each that has a mark, once."""

    def aggregate(self, weights, updates, view, state):
        rank = int(os.environ.get("RANK", "0"))
        mark = Path(os.environ["FATAL_MARKS"]) / str(rank)
        if view.round == 5 - rank and mark.exists():
            mark.unlink()
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
