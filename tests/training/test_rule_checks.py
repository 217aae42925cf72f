"""What a user's own rule returns is looked at: a mistake ends the run with a line that names the rule."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

import mmfl
from conftest import refused, toy_task
from mmfl.aggregation import Unbiased
from mmfl.allocation import Allocation, AllocationRule, Full, RandomProcessors
from mmfl.local import LocalRule, PlainSGD


@dataclass
class Count:
    rounds: int


class Wrong(AllocationRule):
    """Draws as `random` does; then `change` spoils what it returns, in the second round."""

    def __init__(self, change, state=None, needs=()):
        self.change, self.state, self.needs = change, state, frozenset(needs)

    def start(self, clients, tasks):
        return self.state

    def allocate(self, view, state):
        good = RandomProcessors("systematic").allocate(view, None)[0]
        return self.change(good, view, state) if view.round == 2 else (good, state)


class Spoiled(Unbiased):
    """The unbiased step, spoiled in the second round."""

    def __init__(self, change, state=None):
        self.change, self.state = change, state

    def start(self, clients, weights):
        return self.state

    def aggregate(self, weights, updates, view, state):
        good = super().aggregate(weights, updates, view, state)
        return self.change(good[0], updates, state) if view.round == 2 else good


def train(allocation=None, aggregation=None, local=None):
    tasks = [toy_task("one"), toy_task("two")]
    federation = mmfl.Federation(tasks, 6, capacity=2, departures=[0, 0, 0, 0, 0, 2])
    parts = (allocation or RandomProcessors(), aggregation or Unbiased(), local or PlainSGD())
    return mmfl.train(federation, mmfl.Method("mine", *parts), rounds=3, rate=0.5)


def first(allocation, **columns):
    """The allocation with some columns of its first row changed, and the table of probabilities to match."""
    changed = {name: getattr(allocation, name).copy() for name in columns}
    for name, value in columns.items():
        changed[name][0] = value
    table = allocation.probabilities.copy()
    if "probability" in columns:
        table[allocation.client[0], allocation.task[0]] = columns["probability"]
    return replace(allocation, **changed, probabilities=table)


def absent(allocation, view):
    """A draw of the client that has left."""
    count = np.zeros(view.sizes.shape, dtype=int)
    count[5, 1] = 1
    return Allocation.of(count, np.full(view.sizes.shape, 0.25))


def with_first(**columns):
    return lambda a, view, state: (first(a, **columns), state)


def changed(change):
    return lambda a, view, state: (replace(a, **change(a)), state)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda a, view, state: None, ["gave None", "expected a pair (mmfl.Allocation, state)"]),
        (lambda a, view, state: a, ["gave a Allocation", "expected a pair"]),
        (lambda a, view, state: (a, None), ["was given a Count as its state", "gave back None"]),
        (with_first(count=3), ["for 3 trainings", "its capacity is 2"]),
        (with_first(count=0), ["drew somebody 0 times"]),
        (with_first(count=0.5), ["drew somebody 0 times"]),
        *((with_first(probability=p), [f"the probability {p}", "expected 0 to 1"]) for p in (1.5, np.nan, -0.1)),
        (with_first(probability=0.0), ["not above 0"]),
        (with_first(probability=0.9), ["sum to 1.15", "a processor takes one task"]),
        (changed(lambda a: {"probability": a.probability / 2}), ["another probability than its table"]),
        (changed(lambda a: {"probabilities": a.probabilities[:3]}), ["shape [3, 2]", "[6, 2]"]),
        (with_first(client=6), ["client numbers beyond 0 to 5"]),
        (with_first(task=-1), ["task numbers beyond 0 to 1"]),
        (changed(lambda a: {"count": a.count[1:]}), ["rows of different lengths"]),
        (changed(lambda a: {"client": a.client * 0, "task": a.task * 0}), ["same client for the same task in two"]),
        (lambda a, view, state: (absent(a, view), state), ["drew client 5 for task number 1", "cannot train"]),
    ],
)
def test_an_allocation_that_cannot_be_is_refused(change, words):
    with refused("method 'mine': Wrong.allocate in round 2", *words):
        train(Wrong(change, Count(0)))


@pytest.mark.parametrize(
    ("asks", "words"),
    [
        (lambda view: {"loses": view.able}, ["unknown signal 'loses'", "did you mean 'losses'?"]),
        (lambda view: {"losses": np.ones_like(view.able)}, ["losses of client 5 for task number 0", "cannot train"]),
        (lambda view: {"losses": view.able[:, 0]}, ["as booleans [6, 2]"]),
        (lambda view: ["losses"], ["gave a list", "signals by name"]),
    ],
)
def test_a_signal_that_cannot_be_measured_is_refused(asks, words):
    rule = Wrong(lambda a, view, state: (a, state))
    rule.asks = lambda view, state: asks(view) if view.round == 2 else {}
    with refused("method 'mine': Wrong.asks in round 2", *words):
        train(rule)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda w, updates, state: None, ["gave None for task 'one'", "expected a pair (weights, state)"]),
        (lambda w, updates, state: w, ["gave a Tensor for task 'one'", "expected a pair"]),
        (lambda w, updates, state: (w, None), ["was given a Count as its state", "gave back None"]),
        (lambda w, updates, state: (w[:3], state), ["shape [3]", "expected [16]"]),
        (lambda w, updates, state: (w.double(), state), ["dtype float64", "expected float32"]),
        (lambda w, updates, state: (w.to("meta"), state), ["device meta", "expected"]),
        (lambda w, updates, state: (w * torch.nan, state), ["weights of task 'one' that are not finite"]),
    ],
)
def test_weights_that_cannot_be_are_refused(change, words):
    with refused("method 'mine': Spoiled.aggregate in round 2", *words):
        train(aggregation=Spoiled(change, Count(0)))


def test_an_observed_state_that_is_forgotten_is_refused():
    rule = Wrong(lambda a, view, state: (a, state), Count(0))
    rule.observe = lambda losses, view, state: None
    with refused("method 'mine': Wrong.observe in round 1", "gave back None"):
        train(rule)


@pytest.mark.parametrize("engine", ["vectorised", "sequential"])
def test_a_local_direction_of_another_shape_is_refused(engine):
    @dataclass(frozen=True)
    class Mean(LocalRule):
        def direction(self, step):
            return step.gradient.mean(1, keepdim=True)

    tasks = [toy_task("one")]
    with refused("local rule Mean", "direction of shape", "expected the same"):
        mmfl.train(mmfl.Federation(tasks, 3), mmfl.Method("mine", Full(), Unbiased(), Mean()), 1, engine=engine)


def test_a_model_that_diverges_ends_no_run():
    """Weights overflow for no fault of the rule: updates of 3e38 are finite, their sum is not."""

    class Twice(Unbiased):
        def aggregate(self, weights, updates, view, state):
            return weights - 2 * updates.combine(np.ones(len(updates))), state

    task = toy_task("one", lr=2e38, loss=lambda outputs, y: outputs.sum(1))
    run = mmfl.train(mmfl.Federation([task], 2), mmfl.Method("mine", Full(), Twice()), rounds=3)
    assert run.frame("rejected")["one"].tolist() == [0, 2, 2]
    assert not torch.isfinite(run.weights[0]).all()
