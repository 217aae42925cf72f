"""Who trains together, and that it makes no difference to anyone."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from kinds import KINDS, frozen
from small import (
    CLASSES,
    VECTORS,
    Model,
    ask,
    assert_agree,
    before_cohorts,
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
from mmfl.engine import Simulation, Workload
from mmfl.engine.cohort import Cohort
from mmfl.federation.objectives import cross_entropy
from mmfl.federation.task import Task
from mmfl.local import LocalRule, PlainSGD, Prox


@pytest.fixture
def cohorts(monkeypatch) -> list[Cohort]:
    """Every cohort that trains, the engine's trial of a new module included."""
    trained: list[Cohort] = []
    before_cohorts(monkeypatch, trained.append)
    return trained


def apply_output(self: Any, x: Tensor) -> Tensor:
    return self.output(x)


def scaled(scale: Any, kind: type[nn.Module] = Model) -> nn.Module:
    module = kind(apply_output, output=nn.Linear(6, 3))
    module.scale = scale
    return module


PLUS, MINUS = (type("Signed", (Model,), {"sign": sign}) for sign in (1, -1))


class Colour(Enum):
    RED = 1
    BLUE = 2


@dataclass
class Settings:
    """What a module may be told, as those of `transformers` and `peft` are."""

    number: int
    nested: Any = None


def settings(number: int = 1, nested: Any = None, **others: Any) -> Settings:
    told = Settings(number, nested)
    vars(told).update(others)
    return told


def circular() -> dict[str, Any]:
    itself: dict[str, Any] = {}
    itself["itself"] = itself
    return itself


def flattened() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(6, 3))


def hooked(scale: float) -> nn.Module:
    module = nn.Linear(6, 3)
    module.register_forward_hook(lambda _, inputs, output: scale * output)
    return module


def constant(number: float) -> nn.Module:
    module = nn.Linear(6, 3)
    module.register_buffer("number", torch.tensor(number))
    return module


DROPPING = ["dropout", "transformer with dropout", "transformer with dropout, time first", "lstm, inner dropout"]
DROPPING += ["attention with dropout and weights", "gru, inner dropout, time first, both ways", "channel dropout"]


@pytest.mark.parametrize("kind", DROPPING)
def test_clients_share_a_cohort_whatever_dropout_their_module_has(kind, cohorts):
    train_alone(federation(KINDS[kind], sizes=(9, 8, 7)))
    assert max(len(cohort.jobs) for cohort in cohorts) == 3


@both_modes
@pytest.mark.parametrize("kind", DROPPING)
def test_an_update_does_not_depend_on_who_else_is_in_the_cohort(kind, mode):
    pool = federation(KINDS[kind])
    together = train_alone(pool, mode=mode)
    for some in ([3], [5, 2, 1]):
        assert_agree(train_alone(pool, mode=mode, client=some), only(together, some))


FIRST = task()
OTHERS = {
    "all the same": task(name="other"),
    "other data": task(name="other", x=normal(100, 6, seed=9), y=CLASSES.flip(0)),
    "other targets": task(name="other", y=CLASSES.flip(0)),
    "other targets of the same inputs": replace(FIRST, name="other", data=replace(FIRST.data, y=2 - FIRST.data.y)),
    "other step": task(name="other", lr=0.05),
    "schedule": task(name="other", lr=lambda round: 0.3 / round),
    "epochs": task(name="other", epochs=1),
    "batches": task(name="other", batch_size=7),
    "full batch": task(name="other", batch_size=None),
}


@pytest.mark.parametrize("difference", OTHERS)
def test_tasks_of_equal_architecture_share_a_cohort_and_train_as_if_alone(difference, cohorts):
    pool, engine = federation(FIRST, OTHERS[difference]), Simulation("cpu", "vectorised")
    assert engine.architecture(pool.tasks[0]) is engine.architecture(pool.tasks[1])
    answers = train(engine, *(ask(engine, pool, s, round=2) for s in (0, 1)))
    assert any(len(set(cohort.jobs.request)) == 2 for cohort in cohorts)
    for s in (0, 1):
        assert_agree(answers[s], train_alone(pool, s, round=2))


UNLIKE: dict[str, Sequence[Callable[[], nn.Module]]] = {
    "width": (lambda: models.Perceptron(6, 4, 3), lambda: models.Perceptron(6, 5, 3)),
    "activation": (lambda: nn.Sequential(linear(), nn.Tanh()), lambda: nn.Sequential(linear(), nn.ReLU())),
    "bias": (linear, lambda: nn.Linear(6, 3, bias=False)),
    "number": (lambda: scaled(1.0), lambda: scaled(2.0)),
    "nested constant": (lambda: scaled([1, (2, "a")]), lambda: scaled([1, (2, "b")])),
    "tensor": (lambda: scaled(torch.ones(2)), lambda: scaled(torch.zeros(2))),
    "dictionary": (lambda: scaled({"a": 1}), lambda: scaled({"a": 2})),
    "set": (lambda: scaled({"a"}), lambda: scaled({"b"})),
    "type": (lambda: scaled(torch.float32), lambda: scaled(torch.float64)),
    "field": (lambda: scaled(settings(1)), lambda: scaled(settings(2))),
    "nested field": (lambda: scaled(settings(1, Colour.RED)), lambda: scaled(settings(1, Colour.BLUE))),
    "attribute besides the fields": (lambda: scaled(settings(note=1)), lambda: scaled(settings(note=2))),
    "buffer": (lambda: constant(1.0), lambda: constant(2.0)),
    "frozen part": (frozen, lambda: frozen("0.weight", "0.bias")),
    "hook": (lambda: hooked(1.0), lambda: hooked(2.0)),
    "classes of one name": (lambda: scaled(1, PLUS), lambda: scaled(1, MINUS)),
}
PAIRS = {name: (task(one), task(other)) for name, (one, other) in UNLIKE.items()} | {
    "loss": (task(), task(loss=lambda o, t: 2 * cross_entropy(o, t))),
    "nameless losses": (task(loss=lambda o, t: cross_entropy(o, t)), task(loss=lambda o, t: 2 * cross_entropy(o, t))),
    "shape of examples": (task(flattened), task(flattened, VECTORS.unflatten(1, (2, 3)))),
}


@pytest.mark.parametrize("difference", PAIRS)
def test_tasks_do_not_share_a_cohort_if_they_differ_in(difference):
    engine = Simulation("cpu")
    one, other = PAIRS[difference]
    assert engine.architecture(one) is not engine.architecture(other)


@pytest.mark.parametrize(
    "value",
    [{"b", "a"}, {"a": [1, {"b": None}]}, torch.float32, torch.device("cpu"), settings(1, Colour.RED, note={"a": 1})],
    ids=["set", "dict", "dtype", "device", "settings"],
)
def test_tasks_share_a_cohort_if_they_have_an_equal(value):
    engine = Simulation("cpu")
    one, other = (engine.architecture(task(lambda: scaled(value), name=name)) for name in "ab")
    assert one is other


def test_a_task_with_an_attribute_that_contains_itself_has_cohorts_of_its_own():
    engine = Simulation("cpu")
    one, other = (engine.architecture(task(lambda: scaled(circular()), name=name)) for name in "ab")
    assert one is not other


def test_tasks_with_functions_of_their_own_never_share_a_cohort():
    engine = Simulation("cpu")
    tasks = [task(lambda n=n: scaled(lambda x: n * x), name=str(n)) for n in range(12)]
    assert [engine.architecture(one).task_names for one in tasks] == [[str(n)] for n in range(12)]


@both_modes
def test_replicas_in_one_request_give_what_each_gives_alone(mode):
    pool = federation(task(), task(lambda: models.Perceptron(6, 5, 3), name="other"))
    engine = Simulation("cpu", mode)
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


def test_only_equal_rules_share_a_cohort(cohorts):
    rules: list[LocalRule] = [PlainSGD(), Prox(0.1), Prox(2.0), Prox(0.1)]
    pool, engine = federation(task(), sizes=(8, 8)), Simulation("cpu", "vectorised")
    starts = [engine.initial(pool, 0, seed=n) for n in range(4)]
    asked = [{"local": rule, "weights": start} for rule, start in zip(rules, starts, strict=True)]
    answers = train(engine, *(ask(engine, pool, **changes) for changes in asked))
    _, *trained = [(cohort.rule, len(cohort.jobs)) for cohort in cohorts]
    assert sorted(trained, key=str) == sorted([(PlainSGD(), 2), (Prox(0.1), 4), (Prox(2.0), 2)], key=str)
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
