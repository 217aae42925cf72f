"""LSTM and GRU layers of a cohort as Triton kernels, against torch's own."""

from collections.abc import Sequence

import pytest
import torch
from interpreting import DEVICE, check_interpreted, elsewhere, here, leaf, products_with_all_bits  # noqa: F401
from small import TOKENS, ask, assert_agree, federation, normal, task, train, train_alone
from torch import Tensor, nn
from torch.func import vmap

from mmfl.engine import Simulation
from mmfl.engine.gpu.gru import gru_layer
from mmfl.engine.gpu.kernels import usable
from mmfl.engine.gpu.lstm import lstm_layer

pytest.importorskip("triton")
pytestmark = pytest.mark.usefixtures("products_with_all_bits")
shapes = pytest.mark.parametrize(
    ("clients", "batch", "steps", "inputs", "hidden"),
    [(3, 2, 5, 3, 4), (1, 3, 4, 2, 7), (2, 1, 1, 2, 1), (2, 5, 3, 2, 70)],
)
ways = pytest.mark.parametrize("backwards", [False, True], ids=["onwards", "backwards"])


@elsewhere
def test_the_kernels_do_the_same_when_interpreted():
    check_interpreted(__file__)


def one_by_one(layers: Sequence[nn.RNNBase], x: Tensor, *starts: Tensor) -> list[Tensor]:
    """States, and the last h (and c), of the way back only where there is one."""
    outputs = []
    for n, layer in enumerate(layers):
        first = [torch.stack([start[n]] * (1 + layer.bidirectional)) for start in starts]
        states, last = layer(x[n], first if len(first) > 1 else first[0])
        ends = last if len(first) > 1 else [last]
        outputs.append((states[..., -layer.hidden_size :], *(end[-1] for end in ends)))
    return [torch.stack(each) for each in zip(*outputs, strict=True)]


def gradients(outputs: Sequence[Tensor], leaves: list[Tensor], used: tuple[int, ...]) -> list[Tensor]:
    total = sum((outputs[n] * normal(*outputs[n].shape, seed=n).to(outputs[n])).sum() for n in used)
    return list(torch.autograd.grad(total, leaves))


@here
@shapes
@ways
@pytest.mark.parametrize("biased", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize(
    ("layer", "ours", "used"),
    [
        *((nn.LSTM, lstm_layer, used) for used in [(0, 1, 2), (0,), (1,), (2,)]),
        *((nn.GRU, gru_layer, used) for used in [(0, 1), (0,), (1,)]),
    ],
    ids=["lstm", "lstm, states", "lstm, last h", "lstm, last c", "gru", "gru, states", "gru, last h"],
)
def test_a_layer_of_many_clients_equals_torchs_own(
    clients, batch, steps, inputs, hidden, biased, backwards, layer, ours, used
):
    torch.manual_seed(0)
    options = {"bias": biased, "batch_first": True, "bidirectional": backwards, "dtype": torch.float64}
    layers = [layer(inputs, hidden, **options) for _ in range(clients)]
    weights = list(zip(*(list(each.parameters())[-4 if biased else -2 :] for each in layers), strict=True))
    stacked = [torch.stack(each).detach().float().to(DEVICE).requires_grad_() for each in weights]
    starts = [leaf(clients, batch, hidden, seed=seed) for seed in ((2, 3) if layer is nn.LSTM else (2,))]
    data = [leaf(clients, batch, steps, inputs, seed=1), *starts]
    exact = [t.detach().cpu().double().requires_grad_() for t in data]
    assert usable(data[1])

    def run(*given: Tensor) -> Sequence[Tensor]:
        return ours(*given[: len(data)], given[len(data) :], backwards)

    cohort, native = vmap(run)(*data, *stacked), one_by_one(layers, *exact)
    mine = gradients(cohort, [*data, *stacked], used)
    theirs = gradients(native, [*exact, *(w for each in weights for w in each)], used)
    own = [theirs[len(data) + n * clients : len(data) + (n + 1) * clients] for n in range(len(weights))]
    by_weight = [torch.stack(each) for each in own]
    for got, expected in zip([*cohort, *mine], [*native, *theirs[: len(data)], *by_weight], strict=True):
        torch.testing.assert_close(got.cpu().double(), expected, rtol=1e-4, atol=1e-5)


@here
def test_activations_of_any_size_are_those_of_torch():
    """A client whose gates are the inputs: tiny ones, where a careless tanh cancels, and ones that overflow."""
    x = torch.tensor([0.0, 1e-6, -1e-3, 0.3, -0.624, 0.626, -3.0, 20.0, -90.0, 1e4], device=DEVICE).view(1, 10, 1, 1)
    weight = torch.ones(1, 4, 1, device=DEVICE), torch.zeros(1, 4, 1, device=DEVICE)
    zero = torch.zeros(1, 10, 1, device=DEVICE)
    states, _, cell = vmap(lambda x, h, c, *w: lstm_layer(x, h, c, w))(x, zero, zero, *weight)
    exact = x.double().flatten()
    cells = exact.sigmoid() * exact.tanh()
    torch.testing.assert_close(cell.double().flatten(), cells, rtol=3e-6, atol=1e-30)
    torch.testing.assert_close(states.double().flatten(), exact.sigmoid() * cells.tanh(), rtol=3e-6, atol=1e-30)


@here
@pytest.mark.parametrize(
    "options",
    [
        {"layers": 2},
        {"layers": 2, "first": False},
        {"layers": 1, "both": True},
        {"kind": nn.GRU, "layers": 2, "both": True},
    ],
    ids=str,
)
def test_a_cohort_trains_as_its_clients_do_one_by_one(options):
    pool = federation(task(lambda: Tagger(**options), TOKENS, epochs=1), sizes=(5, 3, 1))
    engine = Simulation(DEVICE, "vectorised")
    (answer,) = train(engine, ask(engine, pool))
    assert engine.architecture(pool.tasks[0]).vectorisable
    assert_agree(answer, train_alone(pool, mode="sequential"))


class Tagger(nn.Module):
    """Embedding, recurrent layers and a linear one on the sum of the states."""

    def __init__(self, layers: int, first: bool = True, both: bool = False, kind: type[nn.RNNBase] = nn.LSTM):
        super().__init__()
        self.first, self.embedding = first, nn.Embedding(5, 4)
        self.recurrent = kind(4, 3, layers, batch_first=first, bidirectional=both)
        self.output = nn.Linear(6 if both else 3, 3)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.recurrent(self.embedding(x if self.first else x.T))
        return self.output(states.sum(1 if self.first else 0))


@here
def test_a_second_way_back_over_the_same_steps_is_refused():
    x, weights = leaf(2, 3, 1, seed=1), [leaf(4, 1, seed=2), leaf(4, 1, seed=3)]
    states, _, _ = lstm_layer(x, torch.zeros(2, 1, device=DEVICE), torch.zeros(2, 1, device=DEVICE), weights)
    torch.autograd.grad(states.sum(), x, retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(states.sum(), x)
