"""Models of `peft`, where it is installed: adapters of any module, and of a transformer."""

import copy
from collections.abc import Callable

import pytest
import torch
from small import TOKENS, VECTORS, ask, assert_agree, federation, task, train
from torch import Tensor, nn

import mmfl
from mmfl.engine import Simulation
from mmfl.models import Perceptron

peft = pytest.importorskip("peft")
transformers = pytest.importorskip("transformers")

BASE = task(lambda: Perceptron(6, 5, 3)).build()


def perceptron() -> nn.Module:
    """An update of rank 2, 2 * (6 + 5) numbers, and a head, 5 * 3 + 3 numbers."""
    options = {"target_modules": ["hidden"], "modules_to_save": ["output"], "lora_dropout": 0.2}
    return peft.get_peft_model(copy.deepcopy(BASE), peft.LoraConfig(r=2, **options))


def bert() -> nn.Module:
    sizes = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 12}
    config = transformers.BertConfig(vocab_size=5, max_position_embeddings=8, num_labels=3, **sizes)
    return transformers.BertForSequenceClassification(config)


class Text(nn.Module):
    """The logits of a transformer: 4 updates of rank 2 on 8 to 8 numbers, and a head, 8 * 3 + 3 numbers."""

    base = task(bert, {"input_ids": TOKENS}).build()

    def __init__(self) -> None:
        super().__init__()
        config = peft.LoraConfig(r=2, target_modules=["query", "value"], task_type="SEQ_CLS")
        self.adapted = peft.get_peft_model(copy.deepcopy(self.base), config)

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.adapted(input_ids=input_ids).logits


CASES = {
    "a module": (perceptron, VECTORS, 2 * (6 + 5) + 5 * 3 + 3),
    "a transformer": (Text, {"input_ids": TOKENS}, 4 * 2 * (8 + 8) + 8 * 3 + 3),
}
every_case = pytest.mark.parametrize(("model", "x", "numbers"), CASES.values(), ids=CASES)


@every_case
def test_clients_train_in_cohorts_as_they_do_one_by_one(model: Callable[[], nn.Module], x, numbers, caplog):
    pool = federation(*(task(model, x, name=name, lr=0.5) for name in "ab"))
    engines = [Simulation("cpu", mode) for mode in ("vectorised", "sequential")]
    one, other = (train(engine, *(ask(engine, pool, s) for s in (0, 1))) for engine in engines)
    for s in (0, 1):
        assert_agree(one[s], other[s])
    architecture = engines[0].architecture(pool.tasks[0])
    assert architecture.vectorisable, caplog.text
    assert architecture is engines[0].architecture(pool.tasks[1])
    assert architecture.length == numbers


@every_case
def test_only_adapters_and_heads_are_sent(model: Callable[[], nn.Module], x, numbers):
    pool = federation(task(model, x, lr=0.5))
    run = mmfl.train(pool, "full", rounds=2)
    assert [record.cost.bytes_up for record in run.records] == [6 * 4 * numbers] * 2
    trained = dict(run.module("t").named_parameters())
    for name, parameter in pool.tasks[0].build().named_parameters():
        assert torch.equal(parameter, trained[name]) or parameter.requires_grad
