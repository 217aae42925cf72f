"""Many adapters over one frozen base: it exists once; only adapters and heads are trained, sent and stored."""

from collections import Counter
from functools import cache, partial

import numpy as np
import pytest
import torch
from safetensors import safe_open
from small import VECTORS, ask, before_cohorts, federation, numbers, task, train
from torch import Tensor, nn

import mmfl
from mmfl.engine import Simulation
from mmfl.methods import METHODS
from mmfl.models import Perceptron, lora

WIDE = 200
BASE = task(
    lambda: nn.Sequential(nn.Linear(6, WIDE), nn.Tanh(), nn.Linear(WIDE, WIDE), nn.Tanh(), nn.Linear(WIDE, 3))
).build()
TRAINED = (6 + WIDE) + (3 * WIDE + 3)  # an update of rank 1, and a head of three classes


def model(classes: int = 3) -> nn.Module:
    return lora(BASE, 1, layers="0", heads={"4": nn.Linear(WIDE, classes)})


@cache
def several() -> mmfl.Federation:
    """Four tasks, one of them with more classes than the others; they keep what they share with no one but the base."""
    names = {name: numbers(3, 100, seed=n) for n, name in enumerate("abc")}
    tasks = [task(model, y=y, name=name, lr=0.1) for name, y in names.items()]
    return federation(*tasks, task(partial(model, 4), y=numbers(4, 100), name="d", lr=0.1))


def trained_together(mode: str) -> list[Tensor]:
    engine = Simulation("cpu", mode)
    return [answer.flat for answer in train(engine, *(ask(engine, several(), s) for s in range(4)))]


def test_the_base_of_all_tasks_is_in_memory_once():
    engine = Simulation("cpu", "vectorised")
    networks = [engine.architecture(each) for each in several().tasks]
    train(engine, *(ask(engine, several(), s) for s in range(4)))
    assert len(set(networks)) == 2  # by their heads
    modules = [part for network in networks for part in (network.module, network.functional.module)]
    weights = [p for module in modules for p in module.parameters() if p is not None and p.numel() == WIDE * WIDE]
    assert len(weights) == 8
    assert len({p.data_ptr() for p in weights}) == 1


def test_tasks_with_equal_adapters_train_in_one_cohort(monkeypatch):
    sizes: Counter[int] = Counter()
    before_cohorts(monkeypatch, lambda cohort: sizes.update([len(set(cohort.jobs.request))]))
    trained_together("vectorised")
    assert sizes[3] > 0


def test_vectorised_and_sequential_training_of_many_adapters_agree():
    for one, other in zip(trained_together("vectorised"), trained_together("sequential"), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
        assert (other.abs().amax(1) > 1e-3).all()


def test_the_base_is_neither_sent_nor_stored_nor_in_checkpoints(tmp_path):
    run = mmfl.train(several(), "mmfl-stalevre", rounds=2, rate=1.0, directory=tmp_path / "run")
    assert [len(w) for w in run.weights] == [TRAINED, TRAINED, TRAINED, TRAINED + WIDE + 1]
    (record, *_), largest = run.records, 4 * len(run.weights[3])
    losses = 8 * 6 * 4
    assert 0 < record.cost.bytes_up <= record.cost.trainings * largest + losses
    assert run.records[-1].cost.stored_bytes <= 2 * 6 * 4 * largest
    (file, *_) = sorted((tmp_path / "run").rglob("round-*.safetensors"))
    with safe_open(file, "pt") as arrays:
        sizes = {key: arrays.get_slice(key).get_shape() for key in arrays.keys()}  # noqa: SIM118
    assert sizes
    assert max(shape[-1] for shape in sizes.values() if shape) <= TRAINED + WIDE + 1


def test_a_run_with_adapters_that_is_resumed_ends_with_the_same_weights(tmp_path):
    options = {"method": "mmfl-stalevre", "rate": 0.5}
    whole = mmfl.train(several(), rounds=4, **options)
    mmfl.train(several(), rounds=2, directory=tmp_path / "run", **options)
    resumed = mmfl.train(several(), rounds=4, directory=tmp_path / "run", resume=True, **options)
    for one, other in zip(whole.weights, resumed.weights, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("method", METHODS)
def test_adapters_train_with(method):
    spec = {"method": method, **({"rounds": 1} if method == "fedavg" else {})}
    run = mmfl.train(several(), spec, rounds=2, rate=1.0)
    engine = Simulation("cpu")
    start = [engine.initial(several(), s, 0) for s in range(4)]
    moved = [not torch.equal(w, s) for w, s in zip(run.weights, start, strict=True)]
    assert sum(moved) >= 2
    assert all(torch.isfinite(w).all() for w in run.weights)
    assert np.isfinite(run.accuracy.to_numpy()).all()


def test_the_mean_of_updates_is_the_update_of_the_mean_if_only_b_is_trained():
    base = task(lambda: Perceptron(6, 5, 3)).build()

    def change(freeze_a: bool) -> float:
        """How far the mean of the clients' outputs is from the outputs at their mean weights."""
        work = task(lambda: lora(base, 2, layers="output", freeze_a=freeze_a), lr=1.0)
        pool, engine = federation(work), Simulation("cpu", "vectorised")
        asked = ask(engine, pool)
        (answer,) = train(engine, asked)
        network, layout = engine.architecture(work).module, engine.architecture(work).layout
        ends = asked.weights - answer.flat

        def outputs(flat: Tensor) -> Tensor:
            return torch.func.functional_call(network, layout.named(flat), (VECTORS,))

        mean = torch.stack([outputs(end) for end in ends]).mean(0)
        return float((mean - outputs(ends.mean(0))).detach().abs().max())

    assert change(freeze_a=True) < 1e-5
    assert change(freeze_a=False) > 1e-3


class HalfPrecision(nn.Module):
    base = task(lambda: nn.Linear(6, 5)).build().to(torch.bfloat16)

    def __init__(self) -> None:
        super().__init__()
        self.adapted, self.output = lora(self.base, 2), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.output(self.adapted(x.to(torch.bfloat16)).float())


def test_a_frozen_base_in_half_precision_is_shared_too():
    pool = federation(task(HalfPrecision), task(HalfPrecision, name="other"))
    answers = []
    for mode in ("vectorised", "sequential"):
        engine = Simulation("cpu", mode)
        assert engine.architecture(pool.tasks[0]) is engine.architecture(pool.tasks[1])
        answers.append(train(engine, ask(engine, pool))[0].flat)
    torch.testing.assert_close(*answers, rtol=0.05, atol=0.01)


def test_equal_bytes_of_different_types_are_not_shared():
    def network(kind: torch.dtype) -> nn.Module:
        module = nn.Linear(6, 3)
        module.register_parameter("fixed", nn.Parameter(torch.zeros(4, dtype=kind), requires_grad=False))
        return module

    engine = Simulation("cpu")
    kinds = (torch.float32, torch.int32)
    fixed = [engine.architecture(task(partial(network, kind))).module.fixed for kind in kinds]
    assert [each.dtype for each in fixed] == list(kinds)
