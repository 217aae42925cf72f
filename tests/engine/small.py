"""Federations small enough to check by hand, and how the tests ask an engine about them."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from mmfl.data import Dataset
from mmfl.data.structure import Structure, call_module, rows
from mmfl.engine import Simulation, Training, trainer
from mmfl.engine.cohort import Cohort
from mmfl.engine.gpu.recorder import Recorder
from mmfl.engine.trainer import Trainer
from mmfl.federation import Federation
from mmfl.federation.task import Task
from mmfl.local import PlainSGD
from mmfl.partition import iid
from mmfl.updates import Trained

SIZES = (9, 5, 4, 1, 13, 7)  # in batches of 4: 1 to 4 steps an epoch, the last one short or not


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def numbers(below: int, *shape: int, seed: int = 0) -> Tensor:
    return torch.randint(0, below, shape, generator=torch.Generator().manual_seed(seed))


VECTORS, IMAGES = normal(100, 6), normal(100, 2, 8, 8)
TOKENS, CLASSES = numbers(5, 100, 5), numbers(3, 100, seed=1)
both_modes = pytest.mark.parametrize("mode", ["vectorised", "sequential"])


class Model(nn.Module):
    """Parts, and a forward pass written as a function of them."""

    def __init__(self, compute: Callable[..., Tensor], **parts: nn.Module | nn.Parameter):
        super().__init__()
        self.compute = compute
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *inputs: Tensor, **named: Tensor) -> Any:
        return self.compute(self, *inputs, **named)


def linear() -> nn.Module:
    return nn.Linear(6, 3)


def task(
    model: Callable[[], nn.Module] = linear,
    x: Structure = VECTORS,
    y: Structure = CLASSES,
    name: str = "t",
    **options: Any,
) -> Task:
    """A task whose last 20 rows are its test set."""
    train, test = (rows((x, y), part) for part in (slice(-20), slice(-20, None)))
    data = Dataset("small", *train, *test)
    return Task(name, model, data, **{"lr": 0.2, "epochs": 3, "batch_size": 4, **options})


def federation(*tasks: Task, sizes: Sequence[int] = SIZES) -> Federation:
    return Federation(tasks, len(sizes), partition=iid(sizes))


def ask(engine: Simulation, federation: Federation, task: int = 0, **changes: Any) -> Training:
    """All clients train, from the weights of seed 1; unless the changes say otherwise."""
    everyone = np.flatnonzero(federation.sizes[:, task])
    asked = {"client": everyone, "round": 1, "seed": 0, "local": PlainSGD(), **changes}
    asked["client"] = np.asarray(asked["client"], dtype=np.int64)
    if "weights" not in asked:
        asked["weights"] = engine.initial(federation, task, seed=1)
    return Training(federation, task, **asked)


def train(engine: Simulation, *trainings: Training) -> list[Trained]:
    """The engine's answers, on the CPU and in the order in which the clients were asked for."""
    answers = []
    for asked, answer in zip(trainings, engine.train(trainings), strict=True):
        row = {client: n for n, client in enumerate(answer.client)}
        answers.append(only(replace(answer, flat=answer.flat.cpu()), [row[client] for client in asked.client]))
    return answers


def train_alone(federation: Federation, task: int = 0, mode: str = "vectorised", **changes: Any) -> Trained:
    """What a new engine answers to this one request."""
    engine = Simulation("cpu", mode)
    return train(engine, ask(engine, federation, task, **changes))[0]


def recording_engine(record: Any = lambda step: step) -> Simulation:
    """An engine that records wherever it can, on a CPU, where replaying a step runs it again."""
    engine = Simulation("cpu", "vectorised")
    engine.trainer = Trainer("vectorised", engine.trainer.device_data, engine.choices, Recorder(record))
    return engine


def before_cohorts(monkeypatch: pytest.MonkeyPatch, look: Callable[[Cohort], Any]) -> None:
    """Has a function called with every cohort before it trains vectorised, the engine's trials included."""
    train = trainer.train_vectorised
    monkeypatch.setattr(trainer, "train_vectorised", lambda cohort: (look(cohort), train(cohort)))


def has_recorded(engine: Simulation) -> bool:
    return bool(engine.trainer.recorder._recordings)


def only(trained: Trained, rows: Sequence[int]) -> Trained:
    kept = {name: getattr(trained, name) for name in ("batch_norm", "optimiser_state")}
    columns = trained.client[rows], trained.flat[rows], trained.loss[rows], trained.steps[rows]
    return Trained(*columns, **{name: each if each is None else each[rows].cpu() for name, each in kept.items()})


def assert_agree(one: Trained, other: Trained, tolerance: float = 1e-4) -> None:
    """The same clients, and the same updates and losses as far as floats can tell; none of them trivial."""
    np.testing.assert_array_equal(one.client, other.client)
    torch.testing.assert_close(one.flat, other.flat, rtol=tolerance, atol=0.1 * tolerance)
    np.testing.assert_allclose(one.loss, other.loss, rtol=tolerance, atol=0.1 * tolerance)
    for name in ("batch_norm", "optimiser_state"):
        if (expected := getattr(other, name)) is not None:
            torch.testing.assert_close(getattr(one, name), expected, rtol=tolerance, atol=0.1 * tolerance)
    assert (other.flat.abs().amax(1) > 1e-3).all()


def by_hand(task: Task, start: dict[str, Tensor], own: np.ndarray, mu: float = 0.0) -> tuple[dict[str, Tensor], float]:
    """Full-batch training as anyone would write it: start minus end by name, and the mean loss on the way."""
    module = task.build()
    module.load_state_dict(start, strict=False)  # a tied weight has a name for each of its places
    optimiser = torch.optim.SGD(module.parameters(), task.lr)
    x, y = rows((task.data.x, task.data.y), own)
    seen = []
    for _ in range(task.epochs):
        optimiser.zero_grad()
        loss = task.loss(call_module(module, x), y).mean()
        trained = {name: p for name, p in module.named_parameters() if p.requires_grad}
        pull = sum((p - start[name]).square().sum() for name, p in trained.items())
        (loss + mu / 2 * pull).backward()
        optimiser.step()
        seen.append(loss.item())
    return {name: start[name] - p.detach() for name, p in trained.items()}, float(np.mean(seen))


def assert_trained_by_hand(engine: Simulation, training: Training, mu: float = 0.0) -> None:
    """The engine gives every client what a loop written by hand gives it."""
    federation, task = training.federation, training.federation.tasks[training.task]
    layout = engine.architecture(task).layout
    (answer,) = train(engine, training)
    for client, flat, loss in zip(answer.client, answer.flat, answer.loss, strict=True):
        rows = federation.shards[training.task].of(client)
        expected, seen = by_hand(task, layout.named(training.weights), rows, mu)
        for name, update in layout.named(flat).items():
            torch.testing.assert_close(update, expected[name], rtol=1e-4, atol=1e-5, msg=f"{name} of {client}")
        np.testing.assert_allclose(loss, seen, rtol=1e-5)
