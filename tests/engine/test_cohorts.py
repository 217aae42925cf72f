"""Who trains together, and that it makes no difference to anyone."""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from small import (
    CLASSES,
    VECTORS,
    Model,
    ask,
    assert_agree,
    assert_trained_by_hand,
    both_modes,
    federation,
    linear,
    normal,
    numbers,
    only,
    task,
    train,
    train_alone,
)
from torch import Tensor, nn

from mmfl import models
from mmfl.data import Dataset
from mmfl.engine import Simulation, Workload, trainer
from mmfl.engine.cohort import Cohort
from mmfl.federation.objectives import cross_entropy
from mmfl.federation.task import Task
from mmfl.local import SGD, LocalRule, Prox


@pytest.fixture
def cohorts(monkeypatch) -> list[Cohort]:
    """Every cohort that trains, the engine's trial of a new module included."""
    trained, train_vectorised = [], trainer.train_vectorised

    def recorded(cohort: Cohort) -> Tensor:
        trained.append(cohort)
        return train_vectorised(cohort)

    monkeypatch.setattr(trainer, "train_vectorised", recorded)
    return trained


def apply_output(self: Any, x: Tensor) -> Tensor:
    return self.output(x)


def scaled(scale: Any, kind: type[nn.Module] = Model) -> nn.Module:
    module = kind(apply_output, output=nn.Linear(6, 3))
    module.scale = scale
    return module


PLUS, MINUS = (type("Signed", (Model,), {"sign": sign}) for sign in (1, -1))


def double_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return 2 * cross_entropy(outputs, targets)


def flattened() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(6, 3))


def hooked(scale: float) -> nn.Module:
    module = nn.Linear(6, 3)
    module.register_forward_hook(lambda _, inputs, output: scale * output)
    return module


def thawed(train: bool) -> nn.Module:
    module = nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 3))
    module[0].requires_grad_(train)
    return module


def constant(number: float) -> nn.Module:
    module = nn.Linear(6, 3)
    module.register_buffer("number", torch.tensor(number))
    return module


@both_modes
@pytest.mark.parametrize("some", [[4], [3], [0, 4], [5, 2, 1], [1, 2, 3, 4, 5]])
def test_an_update_does_not_depend_on_who_else_is_in_the_cohort(some, mode):
    pool = federation(task(lambda: nn.Sequential(nn.Linear(6, 8), nn.Dropout(), nn.Linear(8, 3))))
    together, apart = train_alone(pool, mode=mode), train_alone(pool, mode=mode, client=some)
    assert_agree(apart, only(together, some))


@pytest.mark.parametrize(
    "other",
    [
        task(name="other"),
        task(name="other", x=normal(100, 6, seed=9), y=CLASSES.flip(0)),
        task(name="other", y=CLASSES.flip(0)),
        task(name="other", lr=0.05),
        task(name="other", lr=lambda round: 0.3 / round),
        task(name="other", epochs=1),
        task(name="other", batch_size=7),
        task(name="other", batch_size=None),
    ],
    ids=[
        "all the same",
        "other data",
        "other targets",
        "other step",
        "schedule",
        "epochs",
        "batches",
        "full batch",
    ],
)
def test_tasks_of_equal_architecture_share_a_cohort_and_train_as_if_alone(other, cohorts):
    pool, engine = federation(task(), other), Simulation("cpu", "vectorised")
    assert engine.architecture(pool.tasks[0]) is engine.architecture(pool.tasks[1])
    answers = train(engine, *(ask(engine, pool, s, round=2) for s in (0, 1)))
    assert any(len(set(cohort.jobs.request)) == 2 for cohort in cohorts)
    for s in (0, 1):
        assert_agree(answers[s], train_alone(pool, s, round=2))


def test_tasks_over_the_same_inputs_learn_their_own_targets():
    first = task(name="first")
    data = first.data
    second = replace(first, name="second", data=Dataset("flipped", data.x, 2 - data.y, data.x_test, data.y_test))
    pool, engine = federation(first, second), Simulation("cpu", "vectorised")
    answers = train(engine, *(ask(engine, pool, s) for s in (0, 1)))
    for s in (0, 1):
        assert_agree(answers[s], train_alone(pool, s))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (task(lambda: models.Perceptron(6, 4, 3)), task(lambda: models.Perceptron(6, 5, 3))),
        (task(lambda: nn.Sequential(linear(), nn.Tanh())), task(lambda: nn.Sequential(linear(), nn.ReLU()))),
        (task(linear), task(lambda: nn.Linear(6, 3, bias=False))),
        (task(lambda: scaled(1.0)), task(lambda: scaled(2.0))),
        (task(lambda: scaled([1, (2, "a")])), task(lambda: scaled([1, (2, "b")]))),
        (task(lambda: scaled(torch.ones(2))), task(lambda: scaled(torch.zeros(2)))),
        (task(lambda: scaled({"a": 1})), task(lambda: scaled({"a": 2}))),
        (task(lambda: constant(1.0)), task(lambda: constant(2.0))),
        (task(lambda: thawed(True)), task(lambda: thawed(False))),
        (task(linear), task(linear, loss=double_loss)),
        (
            task(linear, loss=lambda o, t: cross_entropy(o, t)),
            task(linear, loss=lambda o, t: 2 * cross_entropy(o, t)),
        ),
        (task(flattened), task(flattened, VECTORS.unflatten(1, (2, 3)))),
        (task(lambda: hooked(1.0)), task(lambda: hooked(2.0))),
        (task(lambda: scaled(1, PLUS)), task(lambda: scaled(1, MINUS))),
    ],
    ids=[
        "width",
        "activation",
        "bias",
        "number",
        "nested constant",
        "tensor",
        "dictionary",
        "buffer",
        "frozen part",
        "loss",
        "nameless losses",
        "shape of examples",
        "hook",
        "classes of one name",
    ],
)
def test_tasks_do_not_share_a_cohort_if_they_differ_in(one, other):
    engine = Simulation("cpu")
    assert engine.architecture(one) is not engine.architecture(other)


def test_tasks_with_functions_of_their_own_never_share_a_cohort():
    engine = Simulation("cpu")
    tasks = [task(lambda n=n: scaled(lambda x: n * x), name=str(n)) for n in range(12)]
    assert [engine.architecture(one).task_names for one in tasks] == [[str(n)] for n in range(12)]


@both_modes
def test_replicas_in_one_request_give_what_each_gives_alone(mode):
    pool, engine = (
        federation(task(), task(lambda: models.Perceptron(6, 5, 3), name="other")),
        Simulation("cpu", mode),
    )
    changes: list[tuple[int, dict[str, Any]]] = [
        (0, {"seed": 7}),
        (1, {"seed": 7}),
        (0, {"seed": 8, "client": [4, 1]}),
        (0, {"seed": 8, "client": []}),
        (0, {"weights": engine.initial(pool, 0, seed=2)}),
        (0, {"round": 3}),
    ]
    answers = train(engine, *(ask(engine, pool, s, **change) for s, change in changes))
    for (s, change), answer in zip(changes, answers, strict=True):
        assert_agree(answer, train_alone(pool, s, mode, **change))


def test_federations_in_one_request_give_what_each_gives_alone():
    pools, engine = [federation(task()), federation(task(), sizes=(3, 8))], Simulation("cpu", "vectorised")
    for answer, pool in zip(train(engine, *(ask(engine, pool) for pool in pools)), pools, strict=True):
        assert_agree(answer, train_alone(pool))


@both_modes
def test_prox_pulls_back_to_the_start(mode):
    pool, engine = federation(task(batch_size=None, epochs=6)), Simulation("cpu", mode)
    assert_trained_by_hand(engine, ask(engine, pool, local=Prox(0.7)), mu=0.7)
    plain, pulled = train_alone(pool, mode=mode), train_alone(pool, mode=mode, local=Prox(0.7))
    assert (pulled.flat.norm(dim=1) < plain.flat.norm(dim=1)).all()


def test_only_equal_rules_share_a_cohort(cohorts):
    rules: list[LocalRule] = [SGD(), Prox(0.1), Prox(2.0), Prox(0.1)]
    pool, engine = federation(task(), sizes=(8, 8)), Simulation("cpu", "vectorised")
    starts = [engine.initial(pool, 0, seed=n) for n in range(4)]
    asked = [{"local": rule, "weights": start} for rule, start in zip(rules, starts, strict=True)]
    answers = train(engine, *(ask(engine, pool, **changes) for changes in asked))
    _, *trained = [(cohort.rule, len(cohort.jobs)) for cohort in cohorts]
    assert sorted(trained, key=str) == sorted([(SGD(), 2), (Prox(0.1), 4), (Prox(2.0), 2)], key=str)
    for changes, answer in zip(asked, answers, strict=True):
        assert_agree(answer, train_alone(pool, **changes))


def test_a_task_keeps_its_name_in_the_label_of_what_it_shares():
    engine = Simulation("cpu")
    tasks: list[Task] = [task(name="a"), task(name="b", x=VECTORS.flip(0))]
    assert [engine.architecture(one).label for one in tasks] == ["a", "a+b"]
    assert engine.architecture(tasks[0]).label == "a+b"


@both_modes
def test_images_kept_as_bytes_train_and_test_as_their_fractions_of_255(mode):
    pixels = numbers(256, 100, 2, 8, 8).to(torch.uint8)
    model = partial(models.SmallCNN, 8, 2, (3, 4), 5, 3, padding=1)
    pools = [federation(task(model, x)) for x in (pixels, pixels / 255)]
    kept, scaled = (train_alone(pool, mode=mode) for pool in pools)
    assert_agree(kept, scaled)
    engines = [Simulation("cpu", mode) for _ in pools]
    loads = [Workload(p, 0, e.initial(p, 0, seed=1), np.arange(6)) for p, e in zip(pools, engines, strict=True)]
    losses = [engine.losses([load])[0] for engine, load in zip(engines, loads, strict=True)]
    np.testing.assert_allclose(*losses, rtol=1e-6)
    assert np.ptp([engine.evaluate([load])[0].loss for engine, load in zip(engines, loads, strict=True)]) < 1e-6
