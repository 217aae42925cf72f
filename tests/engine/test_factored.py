"""Linear layers, whose gradients stay factored, train as by torch's own differentiation."""

import pytest
import torch
import torch.nn.functional as F
from small import IMAGES, TOKENS, VECTORS, Model, ask, federation, normal, task, train
from torch import Tensor, nn

from mmfl import models
from mmfl.engine import Simulation
from mmfl.engine.architecture import Architecture
from mmfl.engine.operators import FASTER_ON_GPU
from mmfl.local import SGD, Prox


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
@pytest.mark.parametrize("mode", ["vectorised", "vectorised, as on a GPU", "sequential"])
@pytest.mark.parametrize("name", LAYERS)
def test_linear_layers_of_every_kind_train_as_by_hand(name, mode, rule, monkeypatch):
    model, x = LAYERS[name]
    pool, engine = federation(task(model, x, batch_size=None)), Simulation("cpu", mode.split(",")[0])
    if "GPU" in mode:
        own = Architecture.cohort_operators
        monkeypatch.setattr(
            Architecture, "cohort_operators", lambda self, d: own(self, d) | FASTER_ON_GPU & self.operators
        )
    (answer,) = train(engine, ask(engine, pool, local=rule))
    assert engine.architecture(pool.tasks[0]).vectorisable is (None if mode == "sequential" else True)
    torch.testing.assert_close(answer.flat, torch.stack(by_hand(pool, rule)), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mode", ["vectorised", "sequential"])
def test_strided_convolutions_of_single_pixels_train_as_by_hand(mode):
    model = lambda: nn.Sequential(nn.Conv2d(2, 3, 1, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(48, 3))  # noqa: E731
    pool, engine = federation(task(model, IMAGES, batch_size=None)), Simulation("cpu", mode)
    (answer,) = train(engine, ask(engine, pool))
    torch.testing.assert_close(answer.flat, torch.stack(by_hand(pool, SGD())), rtol=1e-4, atol=1e-5)
    assert "strided_1x1" in engine.architecture(pool.tasks[0]).operators
