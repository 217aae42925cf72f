"""Server optimisers: against their recurrences, around rules with and without a memory."""

import copy

import numpy as np
import pytest
import torch

from conftest import refusals, refused, view_of
from mmfl.aggregation import Average, FedStale, FedVARP, ServerAdam, ServerMomentum, StaleVR, StaleVRE, Unbiased
from mmfl.allocation import Full
from mmfl.methods import make_method
from mmfl.runs import checkpoint
from mmfl.updates import Updates
from mmfl.updates.store import StorageOptions

CLIENTS, LENGTH = 5, 4
SIZES = np.array([[8], [3], [12], [5], [9]])

inner_rules = pytest.mark.parametrize(
    "make", [Unbiased, Average, FedVARP, StaleVR, StaleVRE], ids=lambda make: make.__name__
)
optimisers = pytest.mark.parametrize("optimiser", [ServerMomentum, ServerAdam])


def updates_of(rule, drawn, flat, here) -> Updates:
    """Rows of the drawn clients, or of all that are there, where the rule needs everyone."""
    client = np.flatnonzero(here if rule.needs_everyone else drawn)
    rows = torch.from_numpy(flat[client]).float()
    return Updates(0, client, drawn[client].astype(int), np.full(len(client), 0.4), rows, np.zeros(len(client)), client)


def history(rule, rounds=25):
    """Random rounds, as (view, updates); in every fifth nobody is drawn, in the eighth nobody is there."""
    rng = np.random.default_rng(0)
    usual = rng.normal(size=(CLIENTS, LENGTH))
    for t in range(1, rounds + 1):
        here = (rng.random(CLIENTS) < 0.8) & (t != 8)
        drawn = here & (rng.random(CLIENTS) < 0.4) & (t % 5 > 0)
        flat = usual + 0.5 * rng.normal(size=usual.shape)
        yield view_of(np.where(here[:, None], SIZES, 0), round=t), updates_of(rule, drawn, flat, here)


def gradients(rule, inner):
    """Runs a rule over a history; yields the weights it begins each round with, the step that its inner aggregation
    alone would take from there, whether anyone was drawn, the weights after the round and the state."""
    weights = torch.linspace(-1, 1, LENGTH)
    state, alone = rule.start(CLIENTS, weights), inner.start(CLIENTS, weights)
    for view, updates in history(rule):
        target, alone = inner.aggregate(weights, updates, view, alone)
        after, state = rule.aggregate(weights, updates, view, state)
        yield weights, weights - target, updates.count.any(), after, state
        weights = after


def close(mine, expected):
    np.testing.assert_allclose(mine.numpy(), expected, rtol=1e-5, atol=1e-6)


@inner_rules
def test_adam_follows_its_recurrence(make):
    m, v, still = np.zeros(LENGTH), np.zeros(LENGTH), 0
    for before, step, drawn, after, state in gradients(ServerAdam(make(), 0.2, 0.7, 0.9, 0.01), make()):
        if drawn or step.any():
            g = step.double().numpy()
            m, v = 0.7 * m + 0.3 * g, 0.9 * v + 0.1 * g * g
            close(after, before.double().numpy() - 0.2 * m / (np.sqrt(v) + 0.01))
        else:
            still += 1
            assert torch.equal(after, before)
        close(state.first, m)
        close(state.second, v)
    # Every fifth round and the eighth; a stale term stops in the eighth alone, when nobody is there.
    assert still == 1 if make in (FedVARP, StaleVR, StaleVRE) else still >= 6


@inner_rules
def test_momentum_is_torchs_sgd_on_the_inner_steps(make):
    start = torch.linspace(-1, 1, LENGTH).requires_grad_()
    optimiser = torch.optim.SGD([start], lr=0.3, momentum=0.9)
    for _, step, drawn, after, _ in gradients(ServerMomentum(make(), lr=0.3, momentum=0.9), make()):
        if drawn or step.any():
            start.grad = step.clone()
            optimiser.step()
        torch.testing.assert_close(after, start.detach(), rtol=1e-5, atol=1e-6)


def nobody(rule):
    none = np.zeros(CLIENTS, dtype=bool)
    return updates_of(rule, none, np.zeros((CLIENTS, LENGTH)), none)


@optimisers
def test_an_empty_round_keeps_weights_and_moments_but_a_stale_term_goes_on(optimiser):
    for inner, moves in ((Unbiased(), False), (FedVARP(), True), (FedStale(0), False)):
        rule = optimiser(inner)
        *_, (_, _, _, weights, state) = gradients(rule, copy.deepcopy(inner))
        before = copy.deepcopy(state)
        after, state = rule.aggregate(weights, nobody(rule), view_of(SIZES, round=26), state)
        assert torch.equal(after, weights) != moves
        assert torch.equal(state.first, before.first) != moves
        assert before.first.any()


@optimisers
def test_a_round_of_strangers_who_train_and_are_not_drawn_is_an_empty_one(optimiser):
    """StaleVR asks everyone to train; there is no step where nobody is drawn and nobody is remembered."""
    rule, flat = optimiser(StaleVR()), np.ones((CLIENTS, LENGTH))
    weights = torch.zeros(LENGTH)
    state = rule.start(CLIENTS, weights)
    for t, client in ((1, 0), (2, 3)):
        here = np.arange(CLIENTS) == client
        before = weights
        updates = updates_of(rule, here & (t == 1), flat, here)
        weights, state = rule.aggregate(weights, updates, view_of(SIZES * here[:, None], round=t), state)
    assert before.any()
    assert torch.equal(weights, before)


@optimisers
@pytest.mark.parametrize(
    "make",
    [
        Unbiased,
        lambda: StaleVRE(StorageOptions("file", "float16")),
        FedVARP,
        StaleVR,
        lambda: ServerMomentum(FedStale(0.5)),
    ],
)
def test_a_checkpoint_continues_with_the_same_bits(optimiser, make, tmp_path):
    rule = optimiser(make())
    weights = again_weights = torch.zeros(LENGTH)
    state, again = rule.start(CLIENTS, weights), None
    for view, updates in history(rule):
        weights, state = rule.aggregate(weights, updates, view, state)
        if again is not None:
            again_weights, again = rule.aggregate(again_weights, updates, view, again)
            assert torch.equal(again_weights, weights)
            assert torch.equal(again.first, state.first)
            assert torch.equal(again.second, state.second)
        elif view.round == 12:
            checkpoint.write(tmp_path, 12, "mark", (weights, state))
            _, (again_weights, again) = checkpoint.read(tmp_path, "mark", (weights, rule.start(CLIENTS, weights)))
    assert again is not state


def test_a_table_makes_an_optimiser_around_a_rule_with_options():
    aggregation = {"name": "momentum", "inner": {"name": "fedstale", "beta": 0.2}, "lr": 0.5}
    rule = make_method({"name": "mine", "allocation": "full", "aggregation": aggregation}).aggregation
    assert (type(rule), rule.lr, rule.momentum, rule.inner.beta) == (ServerMomentum, 0.5, 0.9, 0.2)
    adam = make_method({"name": "mine", "allocation": "full", "aggregation": {"name": "adam", "inner": "mifa"}})
    assert type(adam.aggregation) is ServerAdam


@refusals(
    (lambda: ServerMomentum(Full()), "inner is", "expected an aggregation"),
    (lambda: ServerAdam(Unbiased), "inner is", "expected an aggregation"),
    (lambda: ServerMomentum(Unbiased(), lr=0), "lr is 0", "positive"),
    (lambda: ServerAdam(Unbiased(), lr=float("nan")), "lr is nan", "positive"),
    (lambda: ServerMomentum(Unbiased(), momentum=-0.1), "momentum is -0.1", "in [0, 1)"),
    (lambda: ServerMomentum(Unbiased(), momentum=1.0), "momentum is 1.0", "in [0, 1)"),
    (lambda: ServerAdam(Unbiased(), beta1=1), "beta1 is 1", "in [0, 1)"),
    (lambda: ServerAdam(Unbiased(), beta2=-0.5), "beta2 is -0.5", "in [0, 1)"),
    (lambda: ServerAdam(Unbiased(), epsilon=0), "epsilon is 0", "positive"),
)
def test_a_bad_option_is_refused(make, words):
    with refused(*words):
        make()
