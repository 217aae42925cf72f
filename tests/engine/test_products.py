"""Convolution and linear layer as cohorts on GPUs compute them, checked here on a CPU against torch's own."""

import pytest
import torch
import torch.nn.functional as F
from small import IMAGES, TOKENS, VECTORS, Model, ask, assert_agree, federation, normal, task, train, train_alone
from torch import Tensor, nn
from torch.func import vmap

from mmfl import models
from mmfl.engine import Simulation, products
from mmfl.engine.architecture import Architecture
from mmfl.engine.operators import FASTER
from mmfl.engine.products import Convolution, Factors, Linear
from mmfl.engine.recurrence import lstm_layer
from mmfl.local import SGD, Prox

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


@pytest.mark.parametrize("kept", [0, 1 << 30], ids=["patches anew", "patches kept"])
@pytest.mark.parametrize("biased", [True, False], ids=["bias", "no bias"])
@geometries
def test_batched_convolution_equals_torchs_own(kernel, stride, padding, biased, kept, monkeypatch):
    monkeypatch.setattr(products, "_KEPT_PATCHES", kept)
    inputs = [leaf(CLIENTS, 4, 2, 7, 6, seed=1), leaf(CLIENTS, 5, 2, *kernel, seed=2)]
    inputs += [leaf(CLIENTS, 5, seed=3)] if biased else []

    def ours(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return Convolution.apply(x, weight, bias, stride, padding)

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
        for f in (Convolution.apply, F.conv2d)
    )
    torch.testing.assert_close(got, native)


@pytest.mark.parametrize("wanted", range(3), ids=["input", "weight", "bias"])
def test_batched_convolution_differentiates_only_what_is_asked_for(wanted):
    inputs = [normal(CLIENTS, 4, 2, 7, 6), normal(CLIENTS, 5, 2, 3, 3, seed=2), normal(CLIENTS, 5, seed=3)]
    inputs[wanted].requires_grad_()
    got, native = (
        outcome(vmap(lambda *a, f=f: f(*a, (1, 1), (1, 1)))(*inputs), [inputs[wanted]])
        for f in (Convolution.apply, F.conv2d)
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
        for f, a in ((Linear.apply, [Factors([])]), (F.linear, []))
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
def test_a_cohort_with_batched_products_trains_as_without(model, monkeypatch):
    pool, engine = federation(task(model, IMAGES)), Simulation("cpu", "vectorised")
    expected = train_alone(pool, mode="sequential")
    monkeypatch.setattr(Architecture, "cohort_operators", lambda self, device: FASTER & self.operators)
    (answer,) = train(engine, ask(engine, pool))
    assert engine.architecture(pool.tasks[0]).vectorisable
    assert_agree(answer, expected)


def tied() -> nn.Module:
    """A weight that is an embedding, a linear layer and another linear layer."""
    embedding, output, again = nn.Embedding(5, 5), nn.Linear(5, 5), nn.Linear(5, 5, bias=False)
    output.weight = again.weight = embedding.weight
    return Model(
        lambda m, x: m.again(F.relu(m.output(m.embedding(x)))).sum(1), embedding=embedding, output=output, again=again
    )


def half_unseen() -> nn.Module:
    """One layer runs without a gradient, the output of another is thrown away."""

    def compute(m: nn.Module, x: Tensor) -> Tensor:
        with torch.no_grad():
            fixed = m.fixed(x)
        m.unused(fixed)
        return m.output(fixed)

    return Model(compute, fixed=nn.Linear(6, 4), unused=nn.Linear(4, 4), output=nn.Linear(4, 3))


def frozen() -> nn.Module:
    module = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
    module[0].weight.requires_grad_(False)
    return module


LAYERS = {
    "two layers": (lambda: models.Perceptron(6, 5, 3), VECTORS),
    "no bias": (lambda: nn.Sequential(nn.Linear(6, 5, bias=False), nn.Tanh(), nn.Linear(5, 3, bias=False)), VECTORS),
    "changed in place": (lambda: nn.Sequential(nn.Linear(6, 5), nn.ReLU(inplace=True), nn.Linear(5, 3)), VECTORS),
    "tied": (tied, TOKENS),
    "half unseen": (half_unseen, VECTORS),
    "frozen weight": (frozen, VECTORS),
    "part of a weight": (
        lambda: Model(lambda m, x: F.linear(x[:, :3], m.w[:3]) + F.linear(x, m.w[:3].repeat(1, 2)), w=weight(4, 3)),
        VECTORS,
    ),
    "weight normalised": (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(6, 3)), VECTORS),
}


def weight(*shape: int) -> nn.Parameter:
    return nn.Parameter(normal(*shape, seed=4))


def by_hand(pool, rule: SGD | Prox) -> list[Tensor]:
    """Updates of all clients by torch's own differentiation, full batch."""
    task, updates = pool.tasks[0], []
    for client in range(len(pool.sizes)):
        module, begun = task.build(1, 0), task.build(1, 0)
        rows = torch.from_numpy(pool.shards[0].of(client))
        for _ in range(task.epochs):
            loss = task.loss(module(task.data.x[rows]), task.data.y[rows]).mean()
            trained = [(p, q) for p, q in zip(module.parameters(), begun.parameters(), strict=True) if p.requires_grad]
            grads = torch.autograd.grad(loss, [p for p, _ in trained], allow_unused=True, materialize_grads=True)
            for (p, start), grad in zip(trained, grads, strict=True):
                pull = rule.mu * (p.data - start.data) if isinstance(rule, Prox) else 0
                p.data -= task.learning_rate(1) * (grad + pull)
        pairs = zip(begun.parameters(), module.parameters(), strict=True)
        updates.append(torch.cat([(start - end).detach().flatten() for start, end in pairs]))
    return updates


@pytest.mark.parametrize("rule", [SGD(), Prox(0.5)], ids=["sgd", "prox"])
@pytest.mark.parametrize("mode", ["vectorised", "vectorised, products", "sequential"])
@pytest.mark.parametrize("name", LAYERS)
def test_linear_layers_of_every_kind_train_as_by_hand(name, mode, rule, monkeypatch):
    model, x = LAYERS[name]
    pool, engine = federation(task(model, x, batch_size=None)), Simulation("cpu", mode.split(",")[0])
    if "products" in mode:
        own = Architecture.cohort_operators
        monkeypatch.setattr(Architecture, "cohort_operators", lambda self, d: own(self, d) | FASTER & self.operators)
    (answer,) = train(engine, ask(engine, pool, local=rule))
    assert engine.architecture(pool.tasks[0]).vectorisable is (None if mode == "sequential" else True)
    torch.testing.assert_close(answer.flat, torch.stack(by_hand(pool, rule)), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("biased", [True, False], ids=["bias", "no bias"])
def test_the_recurrence_of_many_clients_equals_torchs_own_lstm(biased, backwards):
    layers = [nn.LSTM(3, 4, bias=biased, batch_first=True, bidirectional=backwards).double() for _ in range(CLIENTS)]
    half = slice(len(layers[0]._flat_weights) // 2, None) if backwards else slice(None)
    weights = [list(layer.parameters())[half] for layer in layers]
    stacked = [torch.stack([w.detach() for w in ws]).requires_grad_() for ws in zip(*weights, strict=True)]
    x, h, c = leaf(CLIENTS, 2, 5, 3, seed=1), leaf(CLIENTS, 2, 4, seed=2), leaf(CLIENTS, 2, 4, seed=3)

    got = vmap(lambda x, h, c, *w: lstm_layer(x, h, c, w, backwards))(x, h, c, *stacked)
    one_by_one = []
    for n, layer in enumerate(layers):
        first = (torch.stack([h[n]] * (1 + backwards)), torch.stack([c[n]] * (1 + backwards)))
        states, (last, cell) = layer(x[n], first)
        one_by_one.append((states[..., 4:] if backwards else states, last[-1], cell[-1]))
    native = [torch.stack(parts) for parts in zip(*one_by_one, strict=True)]
    by_hand = [torch.stack(parts) for parts in zip(*weights, strict=True)]
    for mine, theirs in zip(got, native, strict=True):
        torch.testing.assert_close(mine, theirs)
    total, theirs = (sum((t * normal(*t.shape, seed=9)).sum() for t in tensors) for tensors in (got, native))
    mine = torch.autograd.grad(total, [x, h, c, *stacked])
    leaves = [w for ws in weights for w in ws]
    other = torch.autograd.grad(theirs, [x, h, c, *leaves])
    count = len(by_hand)
    torch.testing.assert_close(mine[:3], other[:3])
    for k in range(count):
        torch.testing.assert_close(mine[3 + k], torch.stack(other[3 + k :: count]))


@pytest.mark.parametrize("mode", ["vectorised", "sequential"])
def test_strided_convolutions_of_single_pixels_train_as_by_hand(mode):
    model = lambda: nn.Sequential(nn.Conv2d(2, 3, 1, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(48, 3))  # noqa: E731
    pool, engine = federation(task(model, IMAGES, batch_size=None)), Simulation("cpu", mode)
    (answer,) = train(engine, ask(engine, pool))
    torch.testing.assert_close(answer.flat, torch.stack(by_hand(pool, SGD())), rtol=1e-4, atol=1e-5)
    assert "thinned" in engine.architecture(pool.tasks[0]).operators
