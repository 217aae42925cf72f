"""A budget divided so that all tasks are predicted to meet their targets at the same time."""

import numpy as np
import pytest

from conftest import refusals, refused, table_of, view_of
from mmfl.allocation import EqualFinish, ExpectedResidualVariance, Groups, LossVariance, RandomProcessors

SIZES = np.full((30, 3), 10)


def losses_of(count, value):
    """The table of training losses of the clients that trained, nan for the others."""
    return np.where(count > 0, value, np.nan)


def test_the_trainings_that_are_missing_are_those_of_a_power_law():
    """Losses 3 n^-1/2 reach 0.3 after 100 trainings, whatever the steps in which n grows."""
    rule = EqualFinish(RandomProcessors(), targets=[0.3, 0.3, 5.0])
    state, view = rule.start(30, 3), view_of(SIZES, 1, 6.0)
    for clients in (2, 3, 1, 4, 5):
        count = np.zeros((30, 3), dtype=int)
        count[:clients] = 1
        n = state.trainings[0] + clients
        state = rule.observe(losses_of(count, 3 * n**-0.5), view, state)
    np.testing.assert_allclose(state.remaining(rule.targets), [100 - 15, 100 - 15, 0], rtol=1e-9)


def test_before_anything_is_known_it_is_the_inner_rule():
    view = view_of(SIZES, 1, 6.0)
    rule = EqualFinish(RandomProcessors(), targets=[0.3, 0.3, 0.3])
    state = rule.start(30, 3)
    assert (table_of(rule.allocate(view, state)[0]) == table_of(RandomProcessors().allocate(view, None)[0])).all()


@pytest.mark.parametrize("floor", [0.1, 0.5])
def test_no_task_gets_less_than_the_floor_of_the_mean(floor):
    """The first task has met its target, the others need as much as each other."""
    rule = EqualFinish(RandomProcessors(), [10.0, 0.3, 0.3], floor)
    state, view = rule.start(30, 3), view_of(SIZES, 1, 6.0)
    for round in range(1, 6):
        state = rule.observe(losses_of(np.ones((30, 3)), 3 * (30 * round) ** -0.1), view, state)
    p = np.asarray(rule.allocate(view, state)[0].probabilities)
    assert p[:, 0] / p[:, 1] == pytest.approx(floor / 1.5)


def finish(rule, exponents, targets, budget=6.0, rounds=4000):
    """The round in which all tasks have met their targets, where losses are 3 n^-exponent in trainings n."""
    state, n = rule.start(30, 3), np.zeros(3)
    done = np.full(3, np.inf)
    for round in range(1, rounds + 1):
        view = view_of(SIZES, 1, budget, round=round)
        allocation, state = rule.allocate(view, state)
        count = table_of(allocation)
        n = n + count.sum(0)
        loss = 3 * np.maximum(n, 1) ** -np.array(exponents)
        done = np.where(np.isinf(done) & (loss <= targets), round, done)
        if np.isfinite(done).all():
            break
        state = rule.observe(losses_of(count, loss), view, state)
    return done


def test_where_progress_is_in_proportion_to_trainings_all_finish_together_and_the_last_one_sooner():
    """Tasks that need 400, 160 and 1,600 trainings: at 2 trainings a round each, the last is done in round 800, and
    no division can do it before round 360."""
    targets = 3 * np.array([400.0, 160.0, 1600.0]) ** -0.5
    together = finish(EqualFinish(RandomProcessors(), targets.tolist(), floor=0.05), [0.5] * 3, targets)
    alone = 1600 / 2
    assert together.max() < 0.55 * alone
    assert together.max() >= 2160 / 6 * 0.9


def test_it_asks_for_what_the_inner_rule_asks_for():
    view = view_of(SIZES, 1, 6.0)
    rule = EqualFinish(ExpectedResidualVariance(), [0.3] * 3)
    assert set(rule.asks(view, rule.start(30, 3))) == {"expected_residuals"} == set(rule.needs)
    assert EqualFinish(LossVariance(), [0.3] * 3).observes_losses


def test_measured_losses_are_those_of_the_weights_and_every_client_is_asked():
    """Losses 3 n^-1/2 as above, measured before a round, with n trainings made before it."""
    rule, view = EqualFinish(RandomProcessors(), [0.3] * 3, losses="measured"), view_of(SIZES, 1, 6.0)
    state = rule.start(30, 3)
    assert set(rule.asks(view, state)) == {"losses"} == set(rule.needs)
    for _ in range(6):
        loss = 3 * np.maximum(state.trainings, 1) ** -0.5 * np.ones((30, 3))
        _, state = rule.allocate(view.with_signals(losses=loss), state)
        state = rule.observe(losses_of(np.ones((30, 3)), 77.0), view, state)
    np.testing.assert_allclose(state.remaining(rule.targets), 0, atol=1e-9)
    state = type(state)(np.full(3, 50.0), state.sums)
    np.testing.assert_allclose(state.remaining(rule.targets), 50, rtol=1e-9)


@refusals(
    (lambda: EqualFinish(RandomProcessors(), []), "targets is []", "positive losses"),
    (lambda: EqualFinish(RandomProcessors(), [0.3, -1.0]), "targets is [0.3, -1.0]"),
    (lambda: EqualFinish(RandomProcessors(), [0.3], floor=0.0), "floor is 0.0", "(0, 1]"),
    (lambda: EqualFinish(RandomProcessors(), [0.3], losses="mesured"), "losses 'mesured'", "did you mean 'measured'?"),
    (lambda: EqualFinish("random", [0.3]), "inner is 'random'", "an allocation"),
    (lambda: EqualFinish(RandomProcessors(), [0.3]).start(5, 2), "1 targets for 2 tasks"),
    (lambda: EqualFinish(Groups(), [0.3] * 2).start(5, 2), "Groups has a memory"),
)
def test_wrong_options_are_refused(make, words):
    refused(make, *words)
