"""What the budget of an allocation pays for: trainings, device-seconds, bytes, or numbers of your own."""

import numpy as np
import pytest

import mmfl
from conftest import refusals, refused, view_of
from mmfl.allocation import ExpectedResidualVariance, LossVariance, ResidualVariance, UpdateVariance
from mmfl.allocation.costs import budget_at_cost
from mmfl.allocation.random import random_probabilities

RULES = {
    "losses": LossVariance,
    "norms": UpdateVariance,
    "residuals": ResidualVariance,
    "expected_residuals": ExpectedResidualVariance,
}


def timed(seconds, completion=None, capacity=(1, 2, 1, 2), budget=1.0, **options):
    sizes = np.array([[10, 20, 30], [5, 5, 5], [40, 1, 9], [7, 8, 0]])
    seconds = np.broadcast_to(np.asarray(seconds, dtype=float), sizes.shape)
    q = np.ones(sizes.shape) if completion is None else np.asarray(completion)
    return view_of(sizes, list(capacity), budget, **options).timed(0.0, seconds, q)


@pytest.mark.parametrize("signal", RULES)
def test_any_importance_goes_with_device_seconds_and_spends_what_random_would(signal):
    rng = np.random.default_rng(0)
    seconds, values = rng.uniform(1, 30, (4, 3)), rng.uniform(0.5, 2, (4, 3))
    view = timed(seconds).with_signals(**{signal: values})
    p = RULES[signal](cost="seconds").probabilities(view)
    spent = view.capacity @ (p * seconds).sum(1)
    assert spent == pytest.approx(view.capacity @ (random_probabilities(view).table() * seconds).sum(1), rel=1e-12)
    assert (p[view.able] > 0).all()
    assert not p[~view.able].any()
    assert (p.sum(1) <= 1 + 1e-12).all()


@pytest.mark.parametrize("signal", RULES)
def test_equal_durations_and_no_deadline_give_the_probabilities_that_know_no_time(signal):
    values = np.random.default_rng(1).uniform(0.5, 2, (4, 3))
    view = timed(17.0).with_signals(**{signal: values})
    plain, with_time = (RULES[signal](**options).probabilities(view) for options in ({}, {"cost": "seconds"}))
    np.testing.assert_allclose(with_time, plain, rtol=1e-10)


def test_inside_the_limits_p_is_importance_over_the_root_of_completion_times_seconds():
    rng = np.random.default_rng(2)
    seconds, q = rng.uniform(1, 30, (4, 3)), rng.uniform(0.2, 1, (4, 3))
    view = timed(seconds, q, budget=0.3).with_signals(losses=np.ones((4, 3)))
    rule = LossVariance(floor=0.0, cost="seconds")
    ratio = (rule.probabilities(view) * np.sqrt(q * seconds))[view.able] / rule.importance(view)[view.able]
    np.testing.assert_allclose(ratio, ratio[0], rtol=1e-10)


def test_pairs_that_never_finish_in_time_get_nothing():
    q = np.ones((4, 3))
    q[0, 1] = 0.0
    view = timed(5.0, q).with_signals(losses=np.ones((4, 3)))
    p = LossVariance(cost="seconds").probabilities(view)
    assert p[0, 1] == 0
    assert (np.delete(p[view.able], 1) > 0).all()


def test_what_is_mixed_in_spends_the_same_seconds():
    seconds = np.random.default_rng(3).uniform(1, 30, (4, 3))
    view = timed(seconds).with_signals(losses=np.ones((4, 3)))
    p = LossVariance(mix=0.3, cost="seconds").probabilities(view)
    assert view.capacity @ (p * seconds).sum(1) == pytest.approx(budget_at_cost(view.seconds, view), rel=1e-12)


def test_your_own_costs_can_be_numbers_of_tasks_or_a_table():
    view = timed(1.0).with_signals(losses=np.ones((4, 3)))
    by_task, table = (LossVariance(cost=cost).probabilities(view) for cost in ([1, 4, 9], np.tile([1.0, 4, 9], (4, 1))))
    np.testing.assert_array_equal(by_task, table)
    assert by_task[1, 0] / by_task[1, 2] == pytest.approx(3 * view.share[1, 0] / view.share[1, 2])


def test_bytes_are_those_of_each_tasks_model():
    tasks = [
        mmfl.Task("small", mmfl.models.LogisticRegression, mmfl.data.digits()),
        mmfl.Task("large", mmfl.models.Perceptron, mmfl.data.digits()),
    ]
    view = mmfl.Federation(tasks, clients=5).view(1, rate=0.2, seed=0)
    assert view.model_bytes.tolist() == [4 * 650, 4 * (64 * 64 + 64 + 64 * 10 + 10)]
    view = view.with_signals(losses=np.ones((5, 2)))
    p = LossVariance(cost="bytes").probabilities(view)
    np.testing.assert_allclose(p[:, 0] / p[:, 1], np.sqrt(view.model_bytes[1] / view.model_bytes[0]), rtol=1e-10)


@refusals(
    (lambda: LossVariance(cost="second"), "unknown cost 'second'", "did you mean 'seconds'?"),
    (lambda: LossVariance(cost=[1.0, -2.0]), "cost is [1.0, -2.0]", "positive numbers"),
    (lambda: LossVariance(cost=[1.0, float("nan")]), "positive numbers"),
    (lambda: LossVariance(cost=3.0), "cost is 3.0", "one for each task"),
)
def test_wrong_costs_are_refused(make, words):
    refused(make, *words)


def test_seconds_without_devices_are_refused_before_the_first_round():
    task = mmfl.Task("digits", mmfl.models.LogisticRegression, mmfl.data.digits())
    federation = mmfl.Federation([task], clients=5)
    refused(
        lambda: mmfl.train(federation, {"method": "forecast", "cost": "seconds"}, rounds=1),
        "cost is 'seconds'",
        "devices=",
    )


def test_costs_of_another_shape_are_refused():
    view = timed(1.0).with_signals(losses=np.ones((4, 3)))
    refused(lambda: LossVariance(cost=[1.0, 2.0]).probabilities(view), "shape (2,)", "4 clients and 3 tasks")
