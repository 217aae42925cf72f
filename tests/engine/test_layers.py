"""Linear layers as cohorts on GPUs compute them, checked here on a CPU against torch's own."""

import pytest
import torch
import torch.nn.functional as F
from small import IMAGES, ask, assert_agree, federation, normal, task, train, train_alone
from torch import Tensor
from torch.func import vmap
from torch.utils._python_dispatch import TorchDispatchMode

from mmfl import models
from mmfl.engine import Simulation
from mmfl.engine.architecture import Architecture
from mmfl.engine.factored import GradientFactors
from mmfl.engine.layers import linear
from mmfl.engine.operators import FASTER_ON_GPU

CLIENTS = 3


def leaf(*shape: int, seed: int) -> Tensor:
    return normal(*shape, seed=seed).double().requires_grad_()


def outcome(output: Tensor, inputs: list[Tensor]) -> list[Tensor]:
    """The output, and the gradients of some function of it."""
    return [output, *torch.autograd.grad((output * normal(*output.shape, seed=9)).sum(), inputs)]


@pytest.mark.parametrize("biased", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("shape", [(4, 6), (4, 3, 6)], ids=["rows", "sequences"])
@pytest.mark.parametrize("factors", [GradientFactors([]), None], ids=["factors", "no factors"])
@pytest.mark.parametrize("shared", [None, 0, 1], ids=["all their own", "shared input", "shared weight"])
def test_batched_linear_layer_equals_torchs_own(shape, biased, shared, factors):
    inputs = [leaf(CLIENTS, *shape, seed=1), leaf(CLIENTS, 5, 6, seed=2), leaf(CLIENTS, 5, seed=3)][: 2 + biased]
    if shared is not None:
        inputs[shared] = inputs[shared].detach()[0].requires_grad_()
    dims = tuple(None if n == shared else 0 for n in range(len(inputs)))
    got, native = (
        outcome(vmap(lambda x, w, b=None, f=f, a=a: f(x, w, b, *a), in_dims=dims)(*inputs), inputs)
        for f, a in ((linear, [factors]), (F.linear, []))
    )
    torch.testing.assert_close(got, native)


class Products(TorchDispatchMode):
    """Notes the shapes of what matrix products multiply."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: list[list[tuple[int, ...]]] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.overloadpacket in (torch.ops.aten.mm, torch.ops.aten.addmm, torch.ops.aten.bmm, torch.ops.aten.baddbmm):
            self.shapes.append([tuple(each.shape) for each in args])
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("bias", ["none", "frozen", "trained"])
def test_a_frozen_weight_is_one_matrix_product_for_all_clients(bias):
    x, weight = leaf(CLIENTS, 4, 6, seed=1), normal(5, 6, seed=2).double()
    offset = {"none": None, "frozen": normal(5, seed=3).double(), "trained": leaf(CLIENTS, 5, seed=3)}[bias]
    dims = (0, None, 0 if bias == "trained" else None)
    with Products() as products:
        vmap(lambda x, w, b: linear(x, w, b, GradientFactors([])), in_dims=dims)(x, weight, offset).sum().backward()
    assert products.shapes == [[(12, 6), (6, 5)], [(12, 5), (5, 6)]]


def test_adapters_train_with_these_layers_as_without(monkeypatch):
    base = task(lambda: models.SmallCNN(8, 2, (3, 4), 5, 3, padding=1), IMAGES).build()
    pool = federation(task(lambda: models.lora(base, 2, layers=["hidden", "output"]), IMAGES))
    engine, expected = Simulation("cpu", "vectorised"), train_alone(pool, mode="sequential")
    monkeypatch.setattr(Architecture, "cohort_operators", lambda self, device: FASTER_ON_GPU & self.operators)
    (answer,) = train(engine, ask(engine, pool))
    assert engine.architecture(pool.tasks[0]).vectorisable
    assert_agree(answer, expected)
