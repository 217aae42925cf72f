"""Kernels of convolution, group norm and max-pooling against torch's own, client by client."""

from collections.abc import Callable, Sequence

import interpreting
import pytest
import torch
import torch.nn.functional as F
from interpreting import DEVICE, INTERPRETED, elsewhere, here, leaf, products_with_all_bits  # noqa: F401
from small import normal
from torch import Tensor
from torch.func import vmap
from torch.utils._python_dispatch import TorchDispatchMode

from mmfl import models
from mmfl.engine.factored import GradientFactors
from mmfl.engine.layers import convolution, group_norm, max_pool
from mmfl.engine.layout import FunctionalModule, Layout
from mmfl.engine.operators import FASTER_ON_GPU, NOT_BATCHED, Operators

pytest.importorskip("triton")
pytestmark = pytest.mark.usefixtures("products_with_all_bits")
if INTERPRETED:
    interpreting.repair()


@elsewhere
def test_interpreted_kernels_equal_torchs_own():
    interpreting.check_interpreted(__file__)


def images(clients: int, count: int, channels: int, height: int, width: int) -> Tensor:
    return leaf(clients, count, height, width, channels, seed=1).movedim(-1, 2)


def from_rows(*shapes: Sequence[int], clients: int) -> list[Tensor]:
    """Parameters as a cohort has them: pieces of rows, each client's far from the next one's; kernels channels last."""
    sizes = [torch.Size(shape).numel() for shape in shapes]
    pieces = leaf(clients, sum(sizes) + 3, seed=2)[:, 1:-2].split(sizes, 1)
    views = []
    for piece, shape in zip(pieces, shapes, strict=True):
        out, *rest = shape
        views.append(piece.view(clients, out, *rest[1:], *rest[:1]).movedim(-1, 2) if rest else piece)
    return views


def outcome(output: Tensor, inputs: Sequence[Tensor]) -> list[Tensor]:
    """The output, and the gradients of some function of it."""
    grad = normal(*output.shape, seed=9).to(output.device)
    return [output, *torch.autograd.grad((output * grad).sum(), inputs)]


def compare(
    ours: Callable[..., Tensor], native: Callable[..., Tensor], inputs: list[Tensor], tolerance: float
) -> Tensor:
    got = outcome(vmap(ours)(*inputs), inputs)
    alone = [native(*(tensor[client] for tensor in inputs)) for client in range(len(inputs[0]))]
    torch.testing.assert_close(got, outcome(torch.stack(alone), inputs), rtol=tolerance, atol=tolerance)
    return got[0]


CONVOLUTIONS = {  # clients, images, channels, out, height and width, kernel, stride, padding
    "one channel": (2, 2, 1, 10, (9, 7), (5, 5), (1, 1), (2, 2)),
    "colours": (2, 3, 3, 16, (8, 8), (3, 3), (1, 1), (1, 1)),
    "colours, strided": (2, 2, 3, 16, (9, 8), (3, 3), (2, 2), (1, 1)),
    "channels in blocks": (3, 2, 16, 16, (6, 6), (3, 3), (1, 1), (1, 1)),
    "more outputs, strided": (2, 2, 16, 32, (6, 7), (3, 3), (2, 2), (1, 1)),
    "two blocks of everything": (1, 2, 48, 40, (5, 5), (3, 3), (1, 1), (0, 0)),
    "single pixels": (2, 3, 32, 16, (4, 4), (1, 1), (1, 1), (0, 0)),
    "single pixels, strided": (2, 2, 16, 10, (5, 6), (1, 1), (2, 2), (0, 0)),
    "no two sides alike": (2, 2, 5, 10, (8, 7), (2, 3), (3, 2), (0, 2)),
    "stride beyond the kernel": (2, 2, 4, 3, (9, 8), (2, 2), (3, 4), (1, 0)),
    "padding beyond the kernel": (1, 1, 2, 3, (3, 3), (2, 2), (1, 1), (3, 3)),
    "many clients": (8, 1, 1, 2, (3, 3), (3, 3), (1, 1), (1, 1)),
}


@here
@pytest.mark.parametrize("biased", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolution_of_a_cohort_equals_torchs_own(name, biased):
    clients, count, channels, out, sides, kernel, stride, padding = CONVOLUTIONS[name]
    shapes = [(out, channels, *kernel), (out,)][: 1 + biased]
    inputs = [images(clients, count, channels, *sides), *from_rows(*shapes, clients=clients)]

    def ours(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return convolution(x, weight, bias, stride, padding)

    def native(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return F.conv2d(x, weight, bias, stride, padding)

    output = compare(ours, native, inputs, 1e-4)
    assert output.movedim(2, -1).is_contiguous()


def padded(x: Tensor, weight: Tensor) -> Tensor:
    return convolution(x, weight, None, (1, 1), (1, 1))


def padded_by_torch(x: Tensor, weight: Tensor) -> Tensor:
    return F.conv2d(x, weight, padding=1)


@here
def test_convolution_reads_slices_and_any_other_order():
    whole = images(2, 2, 16, 4, 6)
    weight = leaf(2, 16, 16, 3, 3, seed=2)
    for x in (whole[..., ::2, 1::2], whole.contiguous(), whole[:1].expand(2, -1, -1, -1, -1), whole[:, ::2]):
        compare(padded, padded_by_torch, [x, weight], 1e-4)
    compare(padded, padded_by_torch, [leaf(2, 3, 1, 4, 5, seed=1), leaf(2, 4, 1, 3, 3, seed=2)], 1e-4)


@here
@pytest.mark.parametrize("programs", [1, 64])
def test_the_gradient_of_a_kernel_is_the_same_from_one_program_or_many(programs, monkeypatch):
    from mmfl.engine.gpu.kernels import convolution, implicit

    monkeypatch.setattr(convolution, "_BUSY_PROGRAMS", programs)
    parts = []
    spy = Spy(implicit.by_kernel, lambda *args, **_: parts.append(len(args[2])))
    monkeypatch.setattr(implicit, "by_kernel", spy)
    inputs = [images(2, 11, 2, 5, 5), leaf(2, 4, 2, 3, 3, seed=2)]
    compare(padded, padded_by_torch, inputs, 1e-4)
    assert (parts[0] > 1) is (programs > 1)


class Spy:
    """A kernel that tells what it is called with."""

    def __init__(self, kernel: object, tell: Callable[..., None]):
        self.kernel, self.tell = kernel, tell

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def launch(*args: object, **options: object) -> None:
            self.tell(*args, **options)
            self.kernel[grid](*args, **options)

        return launch


@here
@pytest.mark.parametrize("shared", range(3), ids=["input", "weight", "bias"])
def test_convolution_takes_what_all_clients_share(shared):
    inputs = [images(2, 3, 2, 7, 6), leaf(2, 5, 2, 3, 3, seed=2), leaf(2, 5, seed=3)]
    inputs[shared] = inputs[shared].detach()[0].requires_grad_()
    dims = tuple(None if n == shared else 0 for n in range(3))
    got, native = (
        outcome(vmap(lambda *a, f=f: f(*a, (2, 1), (1, 1)), in_dims=dims)(*inputs), inputs)
        for f in (convolution, F.conv2d)
    )
    torch.testing.assert_close(got, native, rtol=1e-4, atol=1e-4)


@here
@pytest.mark.parametrize("wanted", range(3), ids=["input", "weight", "bias"])
def test_convolution_differentiates_only_what_is_asked_for(wanted):
    inputs = [tensor.detach() for tensor in (images(2, 3, 2, 7, 6), leaf(2, 5, 2, 3, 3, seed=2), leaf(2, 5, seed=3))]
    inputs[wanted].requires_grad_()
    got, native = (
        outcome(vmap(lambda *a, f=f: f(*a, (1, 1), (1, 1)))(*inputs), [inputs[wanted]]) for f in (convolution, F.conv2d)
    )
    torch.testing.assert_close(got, native, rtol=1e-4, atol=1e-4)


@here
@pytest.mark.skipif(DEVICE == "cpu", reason="a CPU multiplies with all bits")
def test_convolution_with_short_products_is_close():
    torch.set_float32_matmul_precision("high")
    inputs = [images(3, 1, 16, 8, 8), leaf(3, 32, 16, 3, 3, seed=2) / 12]  # outputs of about 1
    compare(padded, lambda x, w: padded_by_torch(x.double(), w.double()).float(), inputs, 5e-2)


NORMS = {  # clients, images, channels, height and width, groups
    "two groups": (2, 3, 16, (4, 4), 2),
    "not powers of two": (3, 2, 6, (5, 3), 2),
    "a channel each": (2, 2, 5, (3, 4), 5),
    "one group": (1, 2, 3, (1, 1), 1),
    "several blocks": (1, 1, 64, (20, 20), 1),
}


@here
@pytest.mark.parametrize("parameters", [0, 1, 2], ids=["plain", "scaled", "scaled and shifted"])
@pytest.mark.parametrize("name", NORMS)
def test_group_norm_of_a_cohort_equals_torchs_own(name, parameters):
    clients, count, channels, sides, groups = NORMS[name]
    x = images(clients, count, channels, *sides) + 100
    inputs = [x, *from_rows(*[(channels,)] * parameters, clients=clients)]

    def ours(x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
        return group_norm(x, groups, weight, bias)

    def native(x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
        as_double = [None if t is None else t.double() for t in (x, weight, bias)]
        return F.group_norm(as_double[0], groups, *as_double[1:]).float()

    output = compare(ours, native, inputs, 1e-3)
    assert output.movedim(2, -1).is_contiguous()


@here
def test_group_norm_with_only_a_shift():
    inputs = [images(2, 2, 4, 3, 3), leaf(2, 4, seed=3)]
    native = lambda x, bias: F.group_norm(x, 2) + bias[:, None, None]  # noqa: E731
    compare(lambda x, bias: group_norm(x, 2, None, bias), native, inputs, 1e-4)


POOLS = {  # images, channels, height and width, window, smaller windows at the edges
    "as in the papers' networks": (3, 4, (6, 8), (2, 2), False),
    "rows and columns left over": (2, 3, (5, 7), (2, 3), False),
    "smaller windows at the edges": (2, 3, (5, 7), (2, 3), True),
    "several blocks": (1, 96, (8, 8), (2, 2), False),
}


@here
@pytest.mark.parametrize("name", POOLS)
def test_max_pooling_of_a_cohort_equals_torchs_own(name):
    count, channels, sides, window, ceil = POOLS[name]
    x = (images(2, count, channels, *sides) * 2).round()  # many maxima are met twice: the first counts
    output = compare(
        lambda x: max_pool(x, window, ceil_mode=ceil), lambda x: F.max_pool2d(x, window, ceil_mode=ceil), [x], 0.0
    )
    assert output.movedim(2, -1).is_contiguous()


@here
def test_the_maximum_of_what_is_not_a_number_is_none():
    x = images(1, 1, 2, 4, 4).detach()
    x[0, 0, 1, 2, 3] = torch.nan
    pooled = vmap(lambda x: max_pool(x, 2))(x)
    torch.testing.assert_close(pooled[0], F.max_pool2d(x[0], 2), equal_nan=True)
    assert pooled.isnan().sum() == 1


class Copies(TorchDispatchMode):
    """Notes copies of images."""

    def __init__(self) -> None:
        super().__init__()
        self.noted: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        answer = func(*args, **(kwargs or {}))
        if func in (torch.ops.aten.clone.default, torch.ops.aten.copy_.default) and args[0].dim() == 5:
            self.noted.append(str(func))
        return answer


@here
def test_a_residual_network_trains_as_client_by_client_and_keeps_channels_last():
    torch.manual_seed(0)
    module = models.PreActResNet18(3, width=2, groups=1).to(DEVICE)
    layout = Layout(module)
    functional = FunctionalModule(module, layout)
    start = layout.flatten([p.detach() for p in module.parameters()])
    parameters = layout.parameters(torch.stack([start, start * 1.1]))
    x = images(2, 1, 3, 8, 8).detach()
    operators = Operators(NOT_BATCHED | FASTER_ON_GPU)
    operators.factors = GradientFactors([])
    with Copies() as copies:
        with operators:
            outputs = vmap(functional)(parameters, [], x)
        got = outcome(outputs, parameters)
    alone = torch.stack([functional([p[client] for p in parameters], [], x[client]) for client in range(2)])
    torch.testing.assert_close(got, outcome(alone, parameters), rtol=1e-3, atol=1e-4)
    assert not copies.noted
