"""Local training of adapters and heads on one frozen base: mmfl's engine against the plain PyTorch loop, side by side.

The plain loop has one network: for each task and client the weights of adapters and head are loaded into it, and an SGD
optimiser trains them, mini-batches in random order. Both train the same clients on the same data for as many steps; the
engine's time includes drawing mini-batches and collecting updates.

    python benchmarks/adapters.py [--repeats 5] [--device cpu|cuda]
"""

import argparse
import statistics
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import nn

import mmfl
from engine import describe_machine, seconds
from mmfl.engine import Simulation, Training
from mmfl.local import PlainSGD

EXAMPLES, BATCH, CLASSES = 32, 16, 10
ON_FEATURES = "features computed before"
torch.manual_seed(0)
WIDE = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(256, 256), nn.ReLU())), nn.Linear(256, 10))
CNN = mmfl.models.SmallCNN()
FROZEN_CNN = mmfl.models.SmallCNN().requires_grad_(False)


def adapted_wide() -> nn.Module:
    return mmfl.models.lora(WIDE, rank=4, layers=["0", "2", "4", "6"], heads={"8": nn.Linear(256, CLASSES)})


def adapted_cnn() -> nn.Module:
    return mmfl.models.lora(CNN, rank=4, layers="hidden", heads={"output": nn.Linear(512, CLASSES)})


def head() -> nn.Module:
    return nn.Linear(10, CLASSES)


def head_of_cnn() -> nn.Module:
    return nn.Sequential(FROZEN_CNN, head())


# what is trained, model, shape of an example, tasks, clients
CASES = [
    ("adapters and head, 4 layers of 256", adapted_wide, (256,), 64, 2),
    ("adapters and head, 4 layers of 256", adapted_wide, (256,), 1, 64),
    ("adapter and head, Fashion-MNIST CNN", adapted_cnn, (1, 28, 28), 64, 2),
    ("adapter and head, Fashion-MNIST CNN", adapted_cnn, (1, 28, 28), 1, 64),
    ("head only, Fashion-MNIST CNN", head_of_cnn, (1, 28, 28), 1, 64),
    (f"head only, Fashion-MNIST CNN, {ON_FEATURES}", head_of_cnn, (1, 28, 28), 1, 64),
]


def federation_of(model: Callable[[], nn.Module], shape: tuple[int, ...], tasks: int, clients: int) -> mmfl.Federation:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(clients * EXAMPLES, *shape)).astype(np.float32)
    owner = np.repeat(np.arange(clients), EXAMPLES)
    made = []
    for n in range(tasks):
        y = rng.integers(0, CLASSES, len(x))
        data = mmfl.data.from_arrays(x, y, owner, test=(x[:10], y[:10]))
        made.append(mmfl.Task(f"task{n}", model, data, lr=0.05, batch_size=BATCH))
    return mmfl.Federation(made)


def on_features(federation: mmfl.Federation) -> mmfl.Federation:
    """The same, with the outputs of the frozen network as data."""
    data = [mmfl.data.features(task.data, FROZEN_CNN) for task in federation.tasks]
    return mmfl.Federation([replace(t, model=head, data=d) for t, d in zip(federation.tasks, data, strict=True)])


def plain_loop(federation: mmfl.Federation, device: torch.device) -> None:
    module = federation.tasks[0].build().to(device)
    trained = [p for p in module.parameters() if p.requires_grad]
    for task, shards in zip(federation.tasks, federation.shards, strict=True):
        x, y = task.data.x.to(device), task.data.y.to(device)
        start = [p.detach().clone() for p in trained]
        for client in range(len(federation.sizes)):
            with torch.no_grad():
                for parameter, value in zip(trained, start, strict=True):
                    parameter.copy_(value)
            optimiser = torch.optim.SGD(trained, lr=0.05)
            rows = torch.from_numpy(shards.of(client)).to(device)
            for batch in rows[torch.randperm(len(rows), device=device)].split(BATCH):
                optimiser.zero_grad()
                task.loss(module(x[batch]), y[batch]).mean().backward()
                optimiser.step()


def compare(name: str, case: tuple, device: torch.device, repeats: int) -> str:
    federation, (_, _, tasks, clients) = federation_of(*case), case
    plain = partial(plain_loop, federation, device)
    if ON_FEATURES in name:
        federation = on_features(federation)
    engine, everyone = Simulation(device), np.arange(clients)
    trainings = [
        Training(federation, s, engine.initial(federation, s, 0), everyone, 1, 0, PlainSGD()) for s in range(tasks)
    ]
    ours = partial(engine.train, trainings)
    seconds(plain, device)
    seconds(ours, device)
    pairs = [(seconds(plain, device), seconds(ours, device)) for _ in range(repeats)]
    ratios = [a / b for a, b in pairs]
    plain_ms, ours_ms = (1000 * statistics.median(column) for column in zip(*pairs, strict=True))
    way = next(iter(engine.choices.made.values()), "vectorised")
    module = engine.architecture(federation.tasks[0]).module
    frozen = sum(p.numel() for p in module.parameters() if not p.requires_grad)
    sizes = f"{len(trainings[0].weights):,} of {frozen + len(trainings[0].weights):,}"
    return (
        f"| {name} | {sizes} | {tasks} | {clients} | {plain_ms:.1f} | {ours_ms:.1f} | "
        f"{statistics.median(ratios):.1f}x ({min(ratios):.1f} to {max(ratios):.1f}) | {way} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    device = torch.device(options.device)
    print(describe_machine(device))
    print("| trained | numbers trained | tasks | clients | plain loop ms | mmfl ms | ratio (range) | way |")
    print("|---|---|---|---|---|---|---|---|")
    for name, *case in CASES:
        print(compare(name, tuple(case), device, options.repeats), flush=True)


if __name__ == "__main__":
    main()
