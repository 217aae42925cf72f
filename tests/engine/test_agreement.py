"""Vectorised and sequential training give the same numbers, and those of a loop written by hand."""

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from small import (
    IMAGES,
    TOKENS,
    VECTORS,
    Model,
    ask,
    assert_agree,
    assert_trained_by_hand,
    both_modes,
    federation,
    normal,
    numbers,
    task,
    train,
    train_alone,
)
from torch import Tensor, nn

from mmfl import models
from mmfl.engine import Simulation
from mmfl.federation.objectives import next_token, squared_error, value
from mmfl.federation.task import Task


def images(*layers: nn.Module, features: int) -> nn.Module:
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(features, 3))


def lstm(batch_first: bool = True, dropout_after: float = 0.0, **options: Any) -> nn.Module:
    """An LSTM of which output, last state and last cell are all used."""

    def compute(self: Any, x: Tensor) -> Tensor:
        states, (h, c) = self.lstm(self.embedding(x if batch_first else x.T))
        states = F.dropout(states, dropout_after, self.training)
        return self.output(torch.cat([states[:, 1] if batch_first else states[1], h[0], c[-1]], -1))

    features = 12 if options.get("bidirectional") else 9
    layer = nn.LSTM(4, 3, batch_first=batch_first, **options)
    return Model(compute, embedding=nn.Embedding(5, 4), lstm=layer, output=nn.Linear(features, 3))


def attention() -> nn.Module:
    def compute(self: Any, x: Tensor) -> Tensor:
        return self.output(self.encoder(self.embedding(x)).mean(1))

    encoder = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
    return Model(compute, embedding=nn.Embedding(5, 4), encoder=encoder, output=nn.Linear(4, 3))


def penalised() -> nn.Module:
    """Outputs that depend on `parameters()`, as with a penalty on the weights."""

    def compute(self: Any, x: Tensor) -> Tensor:
        return self.linear(x) * (1 + sum(p.square().sum() for p in self.parameters()))

    return Model(compute, linear=nn.Linear(6, 3))


def embedding(**options: Any) -> nn.Module:
    parts = {"embedding": nn.Embedding(5, 4, **options), "output": nn.Linear(4, 3)}
    return Model(lambda self, x: self.output(self.embedding(x).mean(1)), **parts)


def frozen() -> nn.Module:
    module = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3))
    module[0].requires_grad_(False)
    return module


def tied() -> nn.Module:
    module = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6), nn.Linear(6, 3))
    module[2].weight = module[0].weight
    return module


def unused() -> nn.Module:
    return Model(lambda self, x: self.output(x), idle=nn.Linear(2, 2), output=nn.Linear(6, 3))


def buffered() -> nn.Module:
    module = Model(lambda self, x: self.output(x * self.scale + self.shift), output=nn.Linear(6, 3))
    module.register_buffer("scale", torch.linspace(0.5, 2, 6))
    module.register_buffer("shift", torch.ones(6), persistent=False)
    return module


def listed() -> nn.Module:
    parts = {"matrices": nn.ParameterList([torch.ones(6, 4), torch.eye(4, 3)])}
    return Model(lambda self, x: torch.tanh(x @ self.matrices[0]) @ self.matrices[1], **parts)


def centred() -> nn.Module:
    return Model(lambda self, x: self.output(x - x.mean(0)), output=nn.Linear(6, 3))


def functional_norm() -> nn.Module:
    def compute(self: Any, x: Tensor) -> Tensor:
        return self.output(F.batch_norm(self.conv(x), None, None, training=True).flatten(1))

    return Model(compute, conv=nn.Conv2d(2, 3, 3), output=nn.Linear(108, 3))


PICTURES = normal(100, 2, 18, 18)


def residual(norm: str) -> nn.Module:
    return models.PreActResNet18(3, width=4, channels=2, norm=norm)


def faces(norm: str) -> nn.Module:
    return models.CelebACNN(18, channels=2, width=4, classes=3, norm=norm)


KINDS: dict[str, Task] = {
    "logistic regression": task(lambda: models.LogisticRegression(6, 3)),
    "perceptron": task(lambda: models.Perceptron(6, 5, 3)),
    "penalty on its parameters": task(penalised),
    "small cnn": task(lambda: models.SmallCNN(8, 2, (3, 4), 5, 3, padding=1), IMAGES),
    "larger cnn": task(lambda: models.LargerCNN(10, 2, (3, 4), 5, 3), normal(100, 2, 10, 10)),
    "celeba cnn, batch norm": task(lambda: faces("batch"), PICTURES, lr=0.05),
    "celeba cnn, group norm": task(lambda: faces("group"), PICTURES),
    "residual network, batch norm": task(lambda: residual("batch"), PICTURES, lr=0.02, epochs=1),
    "residual network, group norm": task(lambda: residual("group"), PICTURES, epochs=1),
    "strided convolution": task(
        lambda: images(nn.Conv2d(2, 3, (3, 2), stride=(2, 1), padding=(1, 2)), features=132), IMAGES
    ),
    "dilated convolution": task(
        lambda: images(nn.Conv2d(2, 3, 3, dilation=2, padding="same"), nn.Tanh(), features=192), IMAGES
    ),
    "grouped convolution": task(
        lambda: images(nn.Conv2d(2, 4, 3), nn.Conv2d(4, 4, 3, groups=2, bias=False), features=64), IMAGES
    ),
    "reflected convolution": task(
        lambda: images(nn.Conv2d(2, 3, 3, padding=1, padding_mode="reflect"), features=192), IMAGES
    ),
    "transposed convolution": task(lambda: images(nn.ConvTranspose2d(2, 2, 2), nn.MaxPool2d(3), features=18), IMAGES),
    "convolution in time": task(lambda: images(nn.Conv1d(8, 4, 3), features=24), IMAGES[:, 0]),
    "dropout": task(lambda: nn.Sequential(nn.Linear(6, 8), nn.Dropout(), nn.Linear(8, 3), nn.Dropout(0.1))),
    "channel dropout": task(lambda: images(nn.Conv2d(2, 4, 3), nn.Dropout2d(0.4), features=144), IMAGES),
    "lstm": task(lstm, TOKENS),
    "lstm, time first": task(lambda: lstm(batch_first=False), TOKENS),
    "lstm without bias": task(lambda: lstm(bias=False), TOKENS),
    "lstm, two layers": task(lambda: lstm(num_layers=2), TOKENS),
    "lstm, both ways": task(lambda: lstm(bidirectional=True), TOKENS),
    "lstm, inner dropout": task(lambda: lstm(num_layers=2, bidirectional=True, dropout=0.4), TOKENS),
    "lstm, inner dropout, time first": task(lambda: lstm(False, num_layers=2, dropout=0.4), TOKENS),
    "lstm, time first, dropout after": task(lambda: lstm(False, dropout_after=0.4), TOKENS),
    "character lstm": task(
        lambda: models.CharacterLSTM(5, 4, 3), TOKENS, numbers(5, 100, 5, seed=2), loss=next_token, lr=1.0
    ),
    "attention": task(attention, TOKENS),
    "embedding": task(embedding, TOKENS),
    "embedding with padding": task(lambda: embedding(padding_idx=0), TOKENS),
    "group norm": task(lambda: images(nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), features=144), IMAGES),
    "layer norm": task(lambda: nn.Sequential(nn.Linear(6, 4), nn.LayerNorm(4), nn.Linear(4, 3))),
    "instance norm": task(lambda: images(nn.InstanceNorm2d(2, affine=True), features=128), IMAGES),
    "batch norm": task(lambda: images(nn.BatchNorm2d(2, track_running_stats=False), features=128), IMAGES),
    "batch norm after a convolution": task(
        lambda: images(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3, track_running_stats=False), features=108),
        IMAGES,
        lr=0.02,
    ),
    "batch norm as a function": task(functional_norm, IMAGES, lr=0.02),
    "batch centred by hand": task(centred),
    "regression": task(lambda: nn.Linear(6, 1), VECTORS, normal(100, seed=3), loss=squared_error),
    "regression of two": task(
        lambda: nn.Linear(6, 2), VECTORS, normal(100, 2, seed=3), loss=squared_error, metric=squared_error
    ),
    "quadratic": task(
        lambda: models.Quadratic(3), normal(100, 3, 4), torch.zeros(100), loss=value, metric=value, lr=0.05
    ),
    "frozen parameters": task(frozen),
    "tied weights": task(tied),
    "an unused parameter": task(unused),
    "buffers": task(buffered),
    "a list of parameters": task(listed),
    "weight norm": task(lambda: nn.utils.parametrizations.weight_norm(nn.Linear(6, 3))),
}
BY_HAND = ["logistic regression", "small cnn", "lstm", "character lstm"]
every_kind = pytest.mark.parametrize("kind", KINDS)


@pytest.mark.parametrize("batch_size", [4, None], ids=["batches", "full"])
@every_kind
def test_vectorised_and_sequential_training_agree_for(kind, batch_size):
    pool = federation(replace(KINDS[kind], batch_size=batch_size))
    engine = Simulation("cpu", "vectorised")
    (vectorised,) = train(engine, ask(engine, pool))
    assert engine.architecture(pool.tasks[0]).vectorisable
    assert_agree(vectorised, train_alone(pool, mode="sequential"))


@pytest.mark.parametrize("kind", ["celeba cnn, batch norm", "residual network, batch norm"])
def test_clients_with_as_many_examples_share_a_cohort_but_not_their_batches_for(kind):
    pool = federation(KINDS[kind], sizes=(6, 6, 6))
    assert_agree(train_alone(pool), train_alone(pool, mode="sequential"))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@both_modes
@every_kind
def test_training_on_a_gpu_agrees_with_a_cpu_for(kind, mode):
    pool, engine = federation(KINDS[kind]), Simulation("cuda", mode)
    with torch.backends.cudnn.flags(allow_tf32=False):
        (gpu,) = train(engine, ask(engine, pool))
    assert_agree(gpu, train_alone(pool, mode="sequential"), tolerance=1e-3)
    if mode == "vectorised":
        cpu = Simulation("cpu", mode)
        train(cpu, ask(cpu, pool))
        assert engine.architecture(pool.tasks[0]).vectorisable == cpu.architecture(pool.tasks[0]).vectorisable


@both_modes
@pytest.mark.parametrize("kind", BY_HAND)
def test_training_equals_a_loop_written_by_hand_for(kind, mode):
    pool, engine = federation(replace(KINDS[kind], batch_size=None)), Simulation("cpu", mode)
    assert_trained_by_hand(engine, ask(engine, pool))


@every_kind
def test_initial_weights_are_those_of_the_module_for(kind):
    pool, engine = federation(KINDS[kind]), Simulation("cpu")
    weights = engine.architecture(pool.tasks[0]).layout.named(engine.initial(pool, 0, seed=5))
    module = pool.tasks[0].build(seed=5, task=0)
    assert list(weights) == [name for name, _ in module.named_parameters()]
    assert all(torch.equal(weights[name], parameter) for name, parameter in module.named_parameters())


@both_modes
@pytest.mark.parametrize(
    ("kind", "still", "moving"),
    [("frozen parameters", "0.weight", "2.weight"), ("an unused parameter", "idle.weight", "output.weight")],
)
def test_what_needs_no_gradient_never_moves(kind, still, moving, mode):
    pool, engine = federation(KINDS[kind]), Simulation("cpu", mode)
    (answer,) = train(engine, ask(engine, pool))
    updates = engine.architecture(pool.tasks[0]).layout.named(answer.flat)
    assert (updates[still] == 0).all()
    assert (updates[moving].flatten(1).abs().amax(1) > 0).all()


@both_modes
def test_dropout_drops_its_share_anew_for_every_client_round_and_seed(mode):
    def compute(self: Any, x: Tensor) -> Tensor:
        return F.dropout(x * self.weight, 0.25, self.training).sum(1)

    wide = task(
        lambda: Model(compute, weight=nn.Parameter(torch.ones(2000))),
        torch.ones(100, 2000),
        torch.zeros(100),
        loss=value,
        metric=value,
        lr=1.0,
        epochs=1,
    )
    pool = federation(wide, sizes=(1, 1))
    masks = torch.cat([train_alone(pool, mode=mode, round=r, seed=s).flat for r, s in [(1, 0), (2, 0), (1, 1)]])
    kept = masks > 0
    torch.testing.assert_close(masks[kept], torch.full_like(masks[kept], 1 / 0.75))
    assert ((kept.float().mean(1) - 0.75).abs() < 0.04).all()
    overlap = kept.float() @ kept.float().T / 2000
    assert ((overlap - 0.75**2)[~torch.eye(6, dtype=torch.bool)].abs() < 0.05).all()


@both_modes
@pytest.mark.parametrize("kind", ["lstm, inner dropout", "lstm, inner dropout, time first"])
def test_dropout_within_an_lstm_differs_from_round_to_round(kind, mode):
    pool = federation(replace(KINDS[kind], batch_size=None), sizes=(6,))
    updates = [train_alone(pool, mode=mode, round=round).flat for round in (1, 2)]
    assert not torch.allclose(*updates, rtol=1e-2, atol=1e-3)
