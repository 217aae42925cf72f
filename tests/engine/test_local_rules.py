"""Local rules train by every engine as their formula says; by what they declare, they get recorded steps and factored
gradients."""

from dataclasses import dataclass

import pytest
import torch
from small import CLASSES, VECTORS, ask, federation, has_recorded, normal, recording_engine, task, train
from torch import Tensor

from mmfl import models
from mmfl.engine import Simulation
from mmfl.engine.architecture import Architecture
from mmfl.engine.batches import Batches
from mmfl.engine.device_data import DeviceData
from mmfl.engine.factored import FactoredGradient
from mmfl.engine.jobs import Jobs
from mmfl.engine.operators import FASTER_ON_GPU
from mmfl.local import LocalRule, PlainSGD, Prox, Scaffold, recordable


@dataclass(frozen=True)
class WeightDecay(LocalRule):
    """Adds to the gradient, and says so by defining `offset`."""

    strength: float = 0.3

    def offset(self, position):
        return self.strength * position.weights


@dataclass(frozen=True)
class Momentum(LocalRule):
    """Keeps a vector per job, and declares its direction recordable."""

    beta: float = 0.9
    state_vectors = 1

    @recordable
    def direction(self, step):
        (velocity,) = step.state
        return velocity.mul_(self.beta).add_(step.gradient)


@dataclass(frozen=True)
class Undeclared(LocalRule):
    """The same direction as SGD; but what else it does at each step, nobody knows."""

    def direction(self, step):
        return 1.0 * step.gradient


@dataclass(frozen=True)
class Nesterov(Momentum):
    """A direction of its own, for which the declaration of its base class does not hold."""

    def direction(self, step):
        return step.gradient + self.beta * super().direction(step)


RULES = [PlainSGD(), Prox(0.5), Scaffold(), WeightDecay(), Momentum(), Undeclared(), Nesterov()]
every_rule = pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
# Clients of 1 to 4 steps in a cohort: those that are done must not move, whatever their rule adds.
POOL = federation(task(lambda: models.Perceptron(6, 5, 3), VECTORS, CLASSES))
ENGINES = {
    "vectorised": lambda: Simulation("cpu", "vectorised"),
    "sequential": lambda: Simulation("cpu", "sequential"),
    "recorded": recording_engine,
    "recorded on a GPU": lambda: Simulation("cuda", "vectorised"),
}
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
every_engine = pytest.mark.parametrize(
    "name", [pytest.param(n, marks=needs_gpu if "GPU" in n else ()) for n in ENGINES]
)


def corrections(rule: LocalRule, parameters: int) -> Tensor | None:
    return 0.1 * normal(len(POOL.sizes), parameters, seed=8) if isinstance(rule, Scaffold) else None


def by_formula(rule: LocalRule, weights: Tensor, batches: list[tuple[Tensor, Tensor]], correction: Tensor) -> Tensor:
    """The update of one client, written down with autograd and the rules' formulas."""
    module, rate = models.Perceptron(6, 5, 3), POOL.tasks[0].lr
    layout = Simulation("cpu").architecture(POOL.tasks[0]).layout
    w, velocity = weights.clone(), torch.zeros_like(weights)
    for x, y in batches:
        leaf = w.clone().requires_grad_()
        loss = POOL.tasks[0].loss(torch.func.functional_call(module, layout.named(leaf), (x,)), y).mean()
        (g,) = torch.autograd.grad(loss, leaf)
        velocity = 0.9 * velocity + g
        direction = {
            "PlainSGD": g,
            "Undeclared": g,
            "Prox": g + 0.5 * (w - weights),
            "Scaffold": g + correction,
            "WeightDecay": g + 0.3 * w,
            "Momentum": velocity,
            "Nesterov": g + 0.9 * velocity,
        }[type(rule).__name__]
        w = w - rate * direction
    return weights - w


@every_engine
@every_rule
def test_a_rule_trains_as_its_formula_says(rule, name, batches_of_jobs):
    engine = ENGINES[name]()
    weights = engine.initial(POOL, 0, seed=1)
    added = corrections(rule, len(weights))
    asked = ask(engine, POOL, local=rule, correction=None if added is None else added.to(engine.device))
    (answer,) = train(engine, asked)
    for row, client in enumerate(answer.client):
        correction = torch.zeros(()) if added is None else added[row]
        expected = by_formula(rule, weights.cpu(), batches_of_jobs[client], correction)
        torch.testing.assert_close(answer.flat[row], expected, rtol=1e-3 if "GPU" in name else 1e-4, atol=1e-5)
    if "recorded" in name:
        assert has_recorded(engine) == (type(rule) not in (Undeclared, Nesterov))


@pytest.fixture(scope="module")
def batches_of_jobs() -> list[list[tuple[Tensor, Tensor]]]:
    """The mini-batches that each client sees."""
    jobs = Jobs.of([ask(Simulation("cpu"), POOL)])
    batches = Batches(jobs, DeviceData(torch.device("cpu")))
    return [list(batches.of_job(job)) for job in range(len(jobs))]


@pytest.mark.parametrize(
    ("rule", "factored"), [(PlainSGD(), True), (Prox(0.5), True), (WeightDecay(), True), (Momentum(), False)]
)
def test_gradients_stay_factored_in_recorded_steps_of_rules_that_add_to_them(rule, factored, monkeypatch):
    monkeypatch.setattr(Architecture, "cohort_operators", lambda self, device: FASTER_ON_GPU & self.operators)
    multiplied, dense = [], FactoredGradient.dense
    monkeypatch.setattr(FactoredGradient, "dense", lambda self: (multiplied.append(self), dense(self))[1])
    engine = recording_engine()
    engine.architecture(POOL.tasks[0]).vectorisable = True  # no trial, which is not recorded
    train(engine, ask(engine, POOL, local=rule))
    assert has_recorded(engine)
    assert (not multiplied) == factored


def test_a_rule_without_a_formula_is_refused():
    with pytest.raises(TypeError, match="Nothing defines neither `offset` nor `direction`"):
        train(engine := Simulation("cpu", "sequential"), ask(engine, POOL, local=type("Nothing", (LocalRule,), {})()))
