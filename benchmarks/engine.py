"""Local training of many clients: mmfl's engine against the plain PyTorch loop, side by side in one run.

The plain loop is what one writes first: for each client a fresh module, the global weights loaded, an SGD optimiser,
mini-batches in random order, one client after another. Both train the same clients on the same data for as many
steps; the engine's time includes drawing mini-batches and collecting updates.

    python benchmarks/engine.py [--repeats 5] [--device cpu|cuda]
"""

import argparse
import platform
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import nn

import mmfl
from mmfl.data.dataset import as_inputs
from mmfl.engine import Simulation, Training
from mmfl.engine.trainer import Mode
from mmfl.local import PlainSGD

LOGISTIC = partial(mmfl.models.LogisticRegression, 60, 10)
CNN = partial(mmfl.models.SmallCNN)

# name, model, input shape, clients, examples each, batch, epochs, ratio to reach
CASES = {
    "cpu": [
        ("logistic regression", LOGISTIC, (60,), 32, 50, 10, 1, 10),
        ("Fashion-MNIST CNN", CNN, (1, 28, 28), 24, 12, 12, 5, 2),
        ("Fashion-MNIST CNN, larger batch", CNN, (1, 28, 28), 24, 120, 32, 1, None),
    ],
    "cuda": [
        ("logistic regression", LOGISTIC, (60,), 1024, 50, 10, 1, None),
        ("Fashion-MNIST CNN", CNN, (1, 28, 28), 256, 120, 32, 5, 30),
        ("Fashion-MNIST CNN", CNN, (1, 28, 28), 1024, 24, 12, 5, 60),
    ],
}


def federation_of(
    model: Callable[[], nn.Module], shape: tuple[int, ...], clients: int, each: int, batch: int, epochs: int
) -> mmfl.Federation:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(clients * each, *shape)).astype(np.float32)
    y = rng.integers(0, 10, clients * each)
    owner = np.repeat(np.arange(clients), each)
    data = mmfl.data.from_arrays(x, y, owner, test=(x[:10], y[:10]))
    return mmfl.Federation([mmfl.Task("task", model, data, lr=0.05, epochs=epochs, batch_size=batch)])


def plain_loop(
    federation: mmfl.Federation,
    clients: Iterable[int],
    device: torch.device,
    inputs: torch.Tensor,
    targets: torch.Tensor,
    number: int = 0,
    fresh: bool = True,
) -> None:
    """Trains these clients on the task of this number, one after another, each on a fresh module or all on one."""
    task = federation.tasks[number]
    module = task.build().to(device)
    initial = {name: p.clone() for name, p in module.state_dict().items()}
    for client in clients:
        module = task.model().to(device) if fresh else module
        module.load_state_dict(initial)
        optimiser = torch.optim.SGD(module.parameters(), lr=task.learning_rate(1))
        rows = torch.from_numpy(federation.shards[number].of(client)).to(device)
        for _ in range(task.epochs):
            for batch in rows[torch.randperm(len(rows), device=device)].split(task.batch_size or len(rows)):
                optimiser.zero_grad()
                task.loss(module(as_inputs(inputs[batch])), targets[batch]).mean().backward()
                optimiser.step()


def seconds(work: Callable[[], object], device: torch.device, least: float = 1.0) -> float:
    """Seconds of one call, over as many calls as take `least` seconds: rounds follow rounds, they do not start cold."""
    calls, begun = 0, time.perf_counter()
    while (spent := time.perf_counter() - begun) < least:
        work()
        if device.type == "cuda":
            torch.cuda.synchronize()
        calls += 1
    return spent / calls


@dataclass(frozen=True)
class Timing:
    """Milliseconds of the plain loop and of the engine, in turns, and the way that the engine chose."""

    plain: list[float]
    ours: list[float]
    way: str

    def __str__(self) -> str:
        """Medians and the ratio with its range, as columns of a table."""
        ratios = [a / b for a, b in zip(self.plain, self.ours, strict=True)]
        medians = f"{statistics.median(self.plain):.1f} | {statistics.median(self.ours):.1f}"
        return f"{medians} | {statistics.median(ratios):.1f}x ({min(ratios):.1f} to {max(ratios):.1f})"


def measure(
    federation: mmfl.Federation, device: torch.device, repeats: int, mode: Mode = "auto", fresh: bool = True
) -> Timing:
    """Times the training of all clients of a federation's only task; in the plain loop on fresh modules or on one."""
    engine, clients = Simulation(device, mode), federation.clients
    training = Training(federation, 0, engine.initial(federation, 0, 0), np.arange(clients), 1, 0, PlainSGD())
    inputs, targets = federation.tasks[0].data.x.to(device), federation.tasks[0].data.y.to(device)
    # On a GPU the plain loop takes tens of seconds for large cohorts: time a part of it, which is linear in clients.
    part = clients if device.type == "cpu" else min(clients, 64)
    plain = partial(plain_loop, federation, range(part), device, inputs, targets, fresh=fresh)
    ours = partial(engine.train, [training])
    seconds(plain, device)
    seconds(ours, device)
    pairs = [(1000 * seconds(plain, device) * clients / part, 1000 * seconds(ours, device)) for _ in range(repeats)]
    way = next(iter(engine.choices.made.values()), "vectorised")
    return Timing(*map(list, zip(*pairs, strict=True)), way)


def describe_machine(device: torch.device) -> str:
    """The device and the versions of what runs on it."""
    what = torch.cuda.get_device_name() if device.type == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    return f"{what}; Python {platform.python_version()}, torch {torch.__version__}, mmfl {mmfl.__version__}"


def compare(case: tuple, device: torch.device, repeats: int) -> str:
    name, model, shape, clients, each, batch, epochs, target = case
    timing = measure(federation_of(model, shape, clients, each, batch, epochs), device, repeats)
    goal = f"{target}x" if target else ""
    return f"| {name} | {clients} x {each} | {batch} | {epochs} | {timing} | {goal} | {timing.way} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    device = torch.device(options.device)
    print(describe_machine(device))
    print("| model | clients x examples | batch | epochs | plain loop ms | mmfl ms | ratio (range) | to reach | way |")
    print("|---|---|---|---|---|---|---|---|---|")
    for case in CASES[device.type]:
        print(compare(case, device, options.repeats), flush=True)


if __name__ == "__main__":
    main()
