"""Frozen parameters: they never move, are not part of any vector, and exist once per base."""

import threading

import pytest
import torch
from kinds import frozen
from small import IMAGES, ask, both_modes, federation, task, train
from torch import Tensor, nn

import mmfl
from mmfl import models
from mmfl.engine import Simulation

BASE = models.SmallCNN(8, 2, (3, 4), 5, 7, padding=1).requires_grad_(False)


class Head(nn.Module):
    """Some classes on top of a base that several tasks share."""

    def __init__(self, classes: int = 3):
        super().__init__()
        self.base, self.output = BASE, nn.Linear(7, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.output(self.base(x).tanh())


@both_modes
def test_only_what_is_trained_is_in_the_vector(mode):
    pool, engine = federation(task(Head, IMAGES)), Simulation("cpu", mode)
    (answer,) = train(engine, ask(engine, pool))
    assert answer.flat.shape[1] == 7 * 3 + 3
    assert (answer.flat.abs().amax(1) > 0).all()


def test_the_models_of_several_tasks_share_one_base_which_stays_as_it_was():
    before = [p.clone() for p in BASE.parameters()]
    pool = federation(task(Head, IMAGES), task(lambda: Head(4), IMAGES, name="other"))
    engine = Simulation("cpu", "vectorised")
    train(engine, ask(engine, pool))
    first, second = (engine.architecture(each).module.base for each in pool.tasks)
    assert all(p.data_ptr() == q.data_ptr() for p, q in zip(first.parameters(), second.parameters(), strict=True))
    assert all(torch.equal(p, q) for p, q in zip(BASE.parameters(), before, strict=True))
    assert all(p.grad is None for p in BASE.parameters())


def test_frozen_kernels_are_stored_channels_last_as_trained_ones_are():
    frozen, trained = (task(model, IMAGES) for model in (Head, lambda: models.SmallCNN(8, 2, (3, 4), 5, 3, padding=1)))
    engine = Simulation("cpu")
    base, layout = engine.architecture(frozen).module.base, engine.architecture(trained).layout
    own = layout.named(engine.initial(federation(trained), 0, seed=0))
    for name in ("first.weight", "second.weight"):
        assert base.get_parameter(name).stride() == own[name].stride()


def test_a_frozen_part_is_the_same_for_all_seeds_and_in_the_trained_module():
    pool = federation(task(lambda: frozen("0.weight", "0.bias")))
    each = [pool.tasks[0].build(seed, 0) for seed in (0, 1)]
    assert torch.equal(each[0][0].weight, each[1][0].weight)
    assert not torch.equal(each[0][2].weight, each[1][2].weight)
    run = mmfl.train(pool, "full", rounds=1, seed=1)
    assert torch.equal(run.module(pool.tasks[0].name)[0].weight, each[0][0].weight)


def test_a_parameter_that_is_frozen_in_one_place_and_trained_in_another_is_refused():
    def tied() -> nn.Module:
        module = nn.Sequential(nn.Linear(6, 6, bias=False), nn.Linear(6, 6, bias=False))
        module[0].weight.requires_grad_(False)
        module[1].weight = nn.Parameter(module[0].weight.data)
        return module

    with pytest.raises(mmfl.UserError) as error:
        federation(task(tied))
    assert "'1.weight' is trained but shares its memory with '0.weight', which is frozen; clone one." in str(
        error.value
    )


def test_a_buffer_in_the_memory_of_a_trained_parameter_is_refused():
    def tied() -> nn.Module:
        module = nn.Linear(6, 6, bias=False)
        module.register_buffer("start", module.weight.data)
        return module

    with pytest.raises(mmfl.UserError) as error:
        federation(task(tied))
    assert str(error.value) == (
        "task 't': 'weight' is trained but shares its memory with the buffer 'start'; clone one."
    )


def test_a_base_that_one_task_trains_and_another_freezes_is_refused():
    base = nn.Linear(6, 6)
    trains = task(lambda: nn.Sequential(base, nn.Linear(6, 3)))
    freezes = task(lambda: nn.Sequential(base.requires_grad_(False), nn.Linear(6, 3)), name="other")
    with pytest.raises(mmfl.UserError) as error:
        mmfl.train(federation(trains, freezes), "full", rounds=1)
    assert str(error.value) == (
        "task 't': parameter '0.weight' is trained with shape (6, 6) when the model is first built, then not trained; "
        "if a base of several tasks is frozen, freeze it before the first of them is built, or freeze a copy."
    )


def test_the_activations_of_a_frozen_part_count_where_batches_are_made_to_fit():
    work = task(Head, IMAGES)
    assert Simulation("cpu").architecture(work).activation_bytes >= 4 * 3 * 8 * 8


def test_what_is_frozen_costs_no_upload_and_no_memory():
    run = mmfl.train(federation(task(Head, IMAGES)), "mmfl-stalevre", rounds=3, rate=0.5)
    head = 4 * (7 * 3 + 3)
    for record in run.records:
        assert record.cost.trainings * head <= record.cost.bytes_up <= record.cost.trainings * head + 6 * 8
        assert record.cost.stored_bytes <= 16 * head


def test_a_module_that_cannot_be_copied_is_refused():
    def locked() -> nn.Module:
        module = nn.Linear(6, 3)
        module.lock = threading.Lock()
        return module

    with pytest.raises(mmfl.UserError) as error:
        federation(task(locked))
    assert str(error.value).startswith("task 't': the model cannot be copied: ")
