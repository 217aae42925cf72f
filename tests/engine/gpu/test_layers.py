"""Convolution and linear layer as cohorts on GPUs compute them, checked here on a CPU against torch's own."""

import pytest
import torch
import torch.nn.functional as F
from small import IMAGES, ask, assert_agree, federation, normal, task, train, train_alone
from torch import Tensor, nn
from torch.func import vmap

from mmfl import models
from mmfl.engine import Simulation
from mmfl.engine.architecture import Architecture
from mmfl.engine.factored import GradientFactors
from mmfl.engine.gpu import layers
from mmfl.engine.gpu.layers import convolution, linear
from mmfl.engine.operators import FASTER_ON_GPU

CLIENTS = 3
geometries = pytest.mark.parametrize(
    ("kernel", "stride", "padding"),
    [
        ((3, 3), (1, 1), (0, 0)),
        ((3, 3), (1, 1), (1, 1)),
        ((1, 1), (1, 1), (0, 0)),
        ((1, 1), (3, 2), (0, 0)),
        ((3, 2), (2, 1), (1, 0)),
        ((2, 3), (2, 3), (0, 2)),
        ((7, 6), (1, 1), (0, 0)),
        ((4, 4), (5, 5), (3, 3)),
    ],
)


def leaf(*shape: int, seed: int) -> Tensor:
    return normal(*shape, seed=seed).double().requires_grad_()


def outcome(output: Tensor, inputs: list[Tensor]) -> list[Tensor]:
    """The output, and the gradients of some function of it."""
    return [output, *torch.autograd.grad((output * normal(*output.shape, seed=9)).sum(), inputs)]


@pytest.mark.parametrize("kept", [0, 1 << 30], ids=["unfolded again", "patches kept"])
@pytest.mark.parametrize("biased", [True, False], ids=["bias", "no bias"])
@geometries
def test_batched_convolution_equals_torchs_own(kernel, stride, padding, biased, kept, monkeypatch):
    monkeypatch.setattr(layers, "_MAX_KEPT_PATCHES", kept)
    inputs = [leaf(CLIENTS, 4, 2, 7, 6, seed=1), leaf(CLIENTS, 5, 2, *kernel, seed=2)]
    inputs += [leaf(CLIENTS, 5, seed=3)] if biased else []

    def ours(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return convolution(x, weight, bias, stride, padding)

    def native(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return F.conv2d(x, weight, bias, stride, padding)

    got = outcome(vmap(ours)(*inputs), inputs)
    one_by_one = torch.stack([native(*(tensor[c] for tensor in inputs)) for c in range(CLIENTS)])
    torch.testing.assert_close(got, outcome(one_by_one, inputs))
    torch.testing.assert_close(got, outcome(vmap(native)(*inputs), inputs))


@pytest.mark.parametrize("shared", range(3), ids=["input", "weight", "bias"])
def test_batched_convolution_takes_what_all_clients_share(shared):
    inputs = [leaf(CLIENTS, 4, 2, 7, 6, seed=1), leaf(CLIENTS, 5, 2, 3, 3, seed=2), leaf(CLIENTS, 5, seed=3)]
    inputs[shared] = inputs[shared].detach()[0].requires_grad_()
    dims = tuple(None if n == shared else 0 for n in range(3))
    got, native = (
        outcome(vmap(lambda *a, f=f: f(*a, (2, 1), (1, 1)), in_dims=dims)(*inputs), inputs)
        for f in (convolution, F.conv2d)
    )
    torch.testing.assert_close(got, native)


@pytest.mark.parametrize("wanted", range(3), ids=["input", "weight", "bias"])
def test_batched_convolution_differentiates_only_what_is_asked_for(wanted):
    inputs = [normal(CLIENTS, 4, 2, 7, 6), normal(CLIENTS, 5, 2, 3, 3, seed=2), normal(CLIENTS, 5, seed=3)]
    inputs[wanted].requires_grad_()
    got, native = (
        outcome(vmap(lambda *a, f=f: f(*a, (1, 1), (1, 1)))(*inputs), [inputs[wanted]]) for f in (convolution, F.conv2d)
    )
    torch.testing.assert_close(got, native, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("biased", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("shape", [(4, 6), (4, 3, 6)], ids=["rows", "sequences"])
@pytest.mark.parametrize("shared", [None, 0, 1], ids=["all their own", "shared input", "shared weight"])
def test_batched_linear_layer_equals_torchs_own(shape, biased, shared):
    inputs = [leaf(CLIENTS, *shape, seed=1), leaf(CLIENTS, 5, 6, seed=2), leaf(CLIENTS, 5, seed=3)][: 2 + biased]
    if shared is not None:
        inputs[shared] = inputs[shared].detach()[0].requires_grad_()
    dims = tuple(None if n == shared else 0 for n in range(len(inputs)))
    got, native = (
        outcome(vmap(lambda x, w, b=None, f=f, a=a: f(x, w, b, *a), in_dims=dims)(*inputs), inputs)
        for f, a in ((linear, [GradientFactors([])]), (F.linear, []))
    )
    torch.testing.assert_close(got, native)


@pytest.mark.parametrize(
    "model",
    [
        lambda: models.SmallCNN(8, 2, (3, 4), 5, 3, padding=1),
        lambda: nn.Sequential(nn.Conv2d(2, 3, 3, 2, 1, bias=False), nn.Flatten(), nn.Linear(48, 3)),
        lambda: nn.Sequential(nn.Conv2d(2, 4, 3, groups=2, dilation=2), nn.Flatten(), nn.Linear(64, 3)),
    ],
    ids=["small cnn", "strided", "grouped, left to torch"],
)
def test_a_cohort_with_these_layers_trains_as_without(model, monkeypatch):
    pool, engine = federation(task(model, IMAGES)), Simulation("cpu", "vectorised")
    expected = train_alone(pool, mode="sequential")
    monkeypatch.setattr(Architecture, "cohort_operators", lambda self, device: FASTER_ON_GPU & self.operators)
    (answer,) = train(engine, ask(engine, pool))
    assert engine.architecture(pool.tasks[0]).vectorisable
    assert_agree(answer, expected)
