"""Linear layers as cohorts on GPUs compute them, checked here on a CPU against torch's own."""

import pytest
import torch
import torch.nn.functional as F
from small import normal
from torch import Tensor
from torch.func import vmap

from mmfl.engine.factored import GradientFactors
from mmfl.engine.layers import linear

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
