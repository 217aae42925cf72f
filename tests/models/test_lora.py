"""Low-rank adapters: what is trained, what they compute, and which are refused."""

import copy
import math

import pytest
import torch
from torch import nn

from conftest import refusals, refused
from mmfl import Task, data, load
from mmfl.models import Perceptron, SmallCNN, lora


def encoder() -> nn.Module:
    return nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)


# A base, the layers of it that are adapted, and inputs.
CASES = {
    "linear": (lambda: Perceptron(6, 5, 3), ["hidden", "output"], (4, 6)),
    "a single layer": (lambda: nn.Linear(6, 3), None, (4, 6)),
    "linear in sequences": (lambda: nn.Sequential(nn.Linear(6, 5), nn.Tanh()), None, (4, 3, 6)),
    "convolution": (lambda: nn.Sequential(nn.Conv2d(2, 4, 3, 2, 1), nn.ReLU()), ["0"], (4, 2, 7, 8)),
    "convolution, reflected": (
        lambda: nn.Sequential(nn.Conv2d(2, 4, (3, 2), dilation=2, padding=2, padding_mode="reflect")),
        ["0"],
        (4, 2, 7, 8),
    ),
    "convolution in time": (lambda: nn.Sequential(nn.Conv1d(3, 4, 3, bias=False)), ["0"], (4, 3, 8)),
    "attention": (encoder, ["linear1", "linear2", "out_proj"], (4, 3, 8)),
    "half precision": (lambda: nn.Linear(6, 4).to(torch.bfloat16), None, (4, 6)),
}


def random_adapters(module: nn.Module) -> nn.Module:
    """The same network with updates that are not zero."""
    torch.manual_seed(3)
    for name, parameter in module.named_parameters():
        if name.endswith("lora_b"):
            nn.init.normal_(parameter)
    return module


def with_weights(base: nn.Module, adapted: nn.Module) -> nn.Module:
    """The base, with the weights of the adapted network instead of its own."""
    for name, part in adapted.named_modules():
        if hasattr(part, "lora_a"):
            (base.get_submodule(name) if name else base).weight.data.copy_(part.weight)
    return base


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
def test_an_adapted_network_computes_what_the_base_does_with_the_sum_of_its_weights(case, training):
    make, layers, shape = CASES[case]
    base = make().train(training)
    x, rough = torch.randn(shape), torch.bfloat16 in {p.dtype for p in base.parameters()}
    x = x.bfloat16() if rough else x
    with torch.no_grad():
        adapted = lora(base, 2, alpha=3.0, layers=layers)
        torch.testing.assert_close(adapted(x), base(x))
        before, random = base(x), random_adapters(adapted)
        expected = with_weights(copy.deepcopy(base), random)(x)
        assert not torch.allclose(expected, before, atol=1e-2)
        torch.testing.assert_close(random(x), expected, **({"rtol": 0.05, "atol": 0.05} if rough else {}))


def test_an_adapted_embedding_computes_what_the_base_does_with_the_sum_of_its_weights():
    base, x = nn.Sequential(nn.Embedding(7, 5, padding_idx=2)), torch.arange(7)
    adapted = lora(base, 2, layers="0")
    torch.testing.assert_close(adapted(x), base(x))
    random_adapters(adapted)
    torch.testing.assert_close(adapted(x), adapted[0].weight)
    assert (adapted(x) != base(x)).any(1).tolist() == [n != 2 for n in range(7)]
    adapted(x).square().sum().backward()
    assert (adapted[0].lora_a.grad != 0).any(0).tolist() == [n != 2 for n in range(7)]


def test_alpha_scales_the_update():
    base, x = nn.Linear(6, 3), torch.randn(4, 6)
    one, four = (random_adapters(lora(base, 2, alpha)) for alpha in (None, 8))
    four.load_state_dict(one.state_dict())
    torch.testing.assert_close(four(x) - base(x), 4 * (one(x) - base(x)))


def test_the_base_stays_as_it_is_and_gives_its_memory_to_all():
    base = Perceptron(6, 5, 3)
    one, other = lora(base, 2), lora(base, 3, layers="hidden")
    assert one.hidden.base.weight.data_ptr() == other.hidden.base.weight.data_ptr() == base.hidden.weight.data_ptr()
    assert all(p.requires_grad for p in base.parameters())
    assert type(base.hidden) is nn.Linear
    assert one.hidden.base.weight is not base.hidden.weight


def test_a_layer_that_is_used_twice_has_one_update():
    base = nn.Sequential(shared := nn.Linear(4, 4), nn.Tanh(), shared)
    adapted = lora(base, 2)
    assert adapted[0] is adapted[2]
    assert len([p for p in adapted.parameters() if p.requires_grad]) == 2


def test_dropout_drops_inputs_of_updates_in_training_only():
    adapted = random_adapters(lora(nn.Linear(60, 30), 8, dropout=0.5))
    x = torch.randn(4, 60)
    assert not torch.equal(adapted(x), adapted(x))
    assert torch.equal(adapted.eval()(x), adapted(x))


def test_names_are_patterns_of_which_the_end_is_enough():
    blocks = [nn.ModuleDict({"query": nn.Linear(4, 4), "value": nn.Linear(4, 4)}) for _ in range(2)]
    base = nn.ModuleDict({"blocks": nn.ModuleList(blocks), "subquery": nn.Linear(4, 4)})

    def adapted(layers):
        return [n.removesuffix(".lora_a") for n, _ in lora(base, 2, layers=layers).named_parameters() if "lora_a" in n]

    assert adapted("query") == ["blocks.0.query", "blocks.1.query"]
    assert adapted("blocks.1.*") == ["blocks.1.query", "blocks.1.value"]
    assert adapted(["blocks.0.value", "subquery"]) == ["blocks.0.value", "subquery"]
    assert len(adapted(None)) == 5


def test_initial_values_are_a_function_of_seed_and_task():
    base = Perceptron(64, 8, 10)
    task = Task("t", lambda: lora(base, 2, heads={"output": nn.Linear(8, 10)}), data.digits())
    values = [torch.cat([p.flatten() for p in task.build(*address).parameters() if p.requires_grad])
              for address in ((0, 0), (0, 0), (1, 0), (0, 1))]  # fmt: skip
    assert torch.equal(values[0], values[1])
    assert not torch.equal(values[0], values[2])
    assert not torch.equal(values[0], values[3])


BASE = Perceptron(6, 5, 3)


@refusals(
    (lambda: lora(BASE, 0), "lora: rank is 0; expected a whole number of at least 1."),
    (lambda: lora(BASE, 2.0), "rank is 2.0"),
    (lambda: lora(BASE, 4), "rank 4 is too large for layer 'output' (5 to 3); expected at most 3, or layers=[...]"),
    (lambda: lora(SmallCNN(8, padding=1), 10, layers="first"), "(9 to 32)", "at most 9"),
    (lambda: lora(BASE, 2, alpha=0), "alpha is 0", "positive"),
    (lambda: lora(BASE, 2, alpha=math.nan), "alpha is nan"),
    (lambda: lora(BASE, 2, layers="hiden"), "no layer matches 'hiden': did you mean 'hidden'?"),
    (lambda: lora(BASE, 2, layers=["output", "query"]), "no layer matches 'query': expected one of: hidden, output."),
    (lambda: lora(nn.Sequential(BASE, nn.ReLU()), 2, layers="1"), "'1' is a ReLU; expected linear layers"),
    (lambda: lora(BASE, 2, layers=[]), "layers is []"),
    (lambda: lora(BASE, 2, layers=3), "layers is 3"),
    (lambda: lora(nn.Sequential(nn.ReLU()), 2), "no linear layers", "nor embeddings or convolutions."),
    (lambda: lora(nn.Sequential(nn.Conv2d(2, 3, 3)), 2), "no linear layers", "give layers=[...] of: 0."),
    (lambda: lora(nn.Sequential(nn.Conv2d(2, 4, 3, groups=2)), 2, layers="0"), "layer '0'", "2 groups"),
    (lambda: lora(BASE, 2, heads={"outptu": nn.Linear(5, 4)}), "no part 'outptu'", "did you mean 'output'?"),
    (lambda: lora(BASE, 2, heads={"output": 4}), "heads is {'output': 4}; expected new modules by name"),
    (lambda: lora(BASE, 2, heads=nn.Linear(5, 4)), "heads is Linear"),
    (lambda: lora(BASE, 2, dropout=1.0), "dropout is 1.0"),
    (lambda: lora(BASE, 2, freeze_a=1), "freeze_a is 1"),
    (lambda: lora(Perceptron, 2), "base is <class", "expected a torch.nn.Module"),
)
def test_refused(make, words):
    with refused(*words):
        make()


def test_an_unknown_option_is_one_line_of_the_task():
    with refused("task 't': the model cannot be built", "unexpected keyword argument 'rnk'"):
        Task("t", lambda: lora(BASE, rnk=2), data.digits()).build()


MODULE = """
import torch
from torch import nn
from mmfl.models import Perceptron, lora

torch.manual_seed(0)
BASE = Perceptron(64, 16, 10)

def adapted(classes, rank=2):
    return lora(BASE, rank, layers="hidden", heads={"output": nn.Linear(16, classes)})
"""
CONFIG = """
rounds = 2
method = "full"
[federation]
clients = 6
[[tasks]]
name = "first"
data = "digits"
model = { name = "tuned.adapted", classes = 10 }
[[tasks]]
name = "second"
data = "digits"
model = { name = "tuned.adapted", classes = 10, rank = 3 }
"""


def test_a_configuration_names_adapted_models_by_dotted_path(tmp_path, monkeypatch, answer):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tuned.py").write_text(MODULE)
    (tmp_path / "experiment.toml").write_text(CONFIG)
    code, _, errors = answer("run", "experiment.toml", "--out", "run", "--quiet")
    assert code == 0, errors
    numbers = sum(rank * (64 + 16) + 16 * 10 + 10 for rank in (2, 3))
    assert [record.cost.bytes_up for record in load("run").runs[0].records] == [6 * 4 * numbers] * 2
    code, _, errors = answer("run", "experiment.toml", "--set", "tasks.first.model.rank=0")
    assert code == 2
    assert errors.strip().endswith("rank is 0; expected a whole number of at least 1.")
