"""Probabilities of least variance where trainings have costs: against optimality, a convex solver and closed forms."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy.optimize import minimize

from mmfl.allocation import least_variance


@st.composite
def problems(draw):
    """Importance with zeros and ties, capacities, costs of pairs, limits, and a budget up to past what can be spent."""
    clients, tasks = draw(st.integers(1, 6)), draw(st.integers(1, 4))
    one = st.sampled_from([0.0, 1.0, 2.0]) | st.floats(1e-4, 1e4)
    rows = st.lists(st.lists(one, min_size=tasks, max_size=tasks), min_size=clients, max_size=clients)
    importance, each = np.array(draw(rows)), {"min_size": clients, "max_size": clients}
    capacity = np.array(draw(st.lists(st.integers(0, 3), **each)))
    price = st.sampled_from([1.0, 2.0]) | st.floats(1e-3, 1e3)
    cost = np.array(draw(st.lists(st.lists(price, min_size=tasks, max_size=tasks), **each)))
    limit = np.array(draw(st.just([1.0] * clients) | st.lists(st.just(0.0) | st.floats(1e-3, 1.0), **each)))
    budget = draw(st.floats(1e-4, 1.2)) * max((capacity[:, None] * cost).sum(), 1.0)
    return importance, capacity, cost, limit, budget


def spending(p, capacity, cost):
    return float(capacity @ (p * cost).sum(1))


def most_that_can_be_spent(importance, capacity, cost, limit):
    """By p in proportion to importance, which has the least variance where the budget does not matter."""
    total = np.maximum(importance.sum(1, keepdims=True), 1e-300)
    return spending(limit[:, None] * importance / total, capacity, cost)


def objective(importance, capacity, p):
    terms = np.divide(importance**2, p, out=np.zeros_like(p), where=importance > 0)
    return float(capacity @ terms.sum(1))


@given(problems())
@example((np.ones((3, 2)), np.array([1, 2, 1]), np.ones((3, 2)), np.ones(3), 2.0))
@example((np.array([[1.0, 3.0]]), np.array([2]), np.array([[1e3, 1e-3]]), np.ones(1), 1.0))
@example((np.array([[0.0, 3.0], [1e-4, 0.0]]), np.array([1, 2]), np.array([[1.0, 7.0], [1, 1]]), np.ones(2), 1.0))
def test_budget_and_limits_are_kept_and_the_conditions_of_karush_kuhn_and_tucker_hold(problem):
    """At a price x of the budget and y_i >= 0 of client i's time, (U / p)^2 = x c + y_i; y_i = 0 below the limit."""
    importance, capacity, cost, limit, budget = problem
    p = least_variance(importance, capacity, budget, cost, limit)
    able = (importance > 0) & (capacity > 0)[:, None] & (limit > 0)[:, None]
    most = most_that_can_be_spent(importance, capacity, cost, limit)
    assert ((p > 0) == able).all()
    assert (p.sum(1) <= limit * (1 + 1e-14)).all()
    assert spending(p, capacity, cost) == pytest.approx(min(budget, most), rel=1e-11)

    square = np.divide(importance, p, out=np.zeros_like(p), where=able) ** 2
    idle = able & (p.sum(1) < limit * (1 - 1e-12))[:, None]
    if idle.any():
        x = (square[idle] / cost[idle]).mean()
        np.testing.assert_allclose(square[idle], x * cost[idle], rtol=1e-9)
        for i in np.flatnonzero(able.any(1) & ~idle.any(1)):
            y = (square[i] - x * cost[i])[able[i]]
            assert (y >= -1e-9 * square[i].max()).all()
            np.testing.assert_allclose(y, y.mean(), rtol=1e-6, atol=1e-7 * square[i].max())


def test_thousands_of_random_instances_meet_their_dual_bound():
    """By weak duality no feasible p is better than min_p sum B U^2/p + x (spending - budget) + sum_i B y_i (sum p - 1),
    at any x, y >= 0; here at the x and y that the solution itself implies where a client is below its limit."""
    rng, bounded = np.random.default_rng(0), 0
    for _ in range(2000):
        clients, tasks = rng.integers(1, 30), rng.integers(1, 5)
        importance = rng.lognormal(0, rng.choice([0.1, 1.0, 3.0]), (clients, tasks))
        importance *= rng.random((clients, tasks)) < 0.8
        importance[0, 0] = 1.0
        capacity, cost = rng.integers(1, 4, clients), rng.lognormal(0, rng.choice([0.0, 1.0]), (clients, tasks))
        budget = rng.uniform(0.01, 0.99) * most_that_can_be_spent(importance, capacity, cost, np.ones(clients))
        p = least_variance(importance, capacity, budget, cost)
        idle = (importance > 0) & (p.sum(1) < 1 - 1e-12)[:, None]
        if not idle.any():
            continue
        bounded += 1
        square = np.divide(importance, p, out=np.full_like(p, np.inf), where=importance > 0) ** 2
        x = (square[idle] / cost[idle])[0]
        y = np.where(importance.any(1), np.maximum((square - x * cost).min(1), 0), 0)
        dual = 2 * capacity @ (importance * np.sqrt(x * cost + y[:, None])).sum(1) - x * budget - capacity @ y
        assert objective(importance, capacity, p) <= dual * (1 + 1e-9)
    assert bounded > 1500


@pytest.mark.parametrize("seed", range(12))
def test_a_general_solver_finds_nothing_better(seed):
    rng = np.random.default_rng(seed)
    importance, capacity = rng.lognormal(0, 1, (5, 3)), rng.integers(1, 4, 5)
    cost, limit = rng.lognormal(0, 1, (5, 3)), rng.uniform(0.3, 1.0, 5)
    budget = rng.uniform(0.05, 0.95) * most_that_can_be_spent(importance, capacity, cost, limit)
    p = least_variance(importance, capacity, budget, cost, limit)
    even = np.repeat(limit[:, None] / 3, 3, axis=1)
    even *= min(1.0, budget / spending(even, capacity, cost))
    start = objective(importance, capacity, even)
    found = minimize(
        lambda x: objective(importance, capacity, even * x.reshape(5, 3)) / start,
        np.ones(15),
        jac=lambda x: -(capacity[:, None] * importance**2 / even).ravel() / x**2 / start,
        bounds=[(1e-4, None)] * 15,
        constraints=[
            {"type": "ineq", "fun": lambda x: 1 - spending(even * x.reshape(5, 3), capacity, cost) / budget},
            {"type": "ineq", "fun": lambda x: 1 - (even * x.reshape(5, 3)).sum(1) / limit},
        ],
        method="SLSQP",
        options={"maxiter": 1000, "ftol": 1e-12},
    )
    assert found.success, found.message
    assert objective(importance, capacity, p) == pytest.approx(start * found.fun, rel=1e-6)
    assert objective(importance, capacity, p) <= start * found.fun * (1 + 1e-9)


@given(problems(), st.floats(1e-3, 1e3))
def test_equal_costs_give_the_probabilities_without_costs(problem, price):
    importance, capacity, cost, _, _ = problem
    budget = 0.4 * max(capacity.sum(), 1)
    plain = least_variance(importance, capacity, budget)
    priced = least_variance(importance, capacity, price * budget, np.full_like(cost, price))
    np.testing.assert_allclose(priced, plain, rtol=1e-10, atol=1e-14)


@given(problems(), st.floats(1e-6, 1e6), st.floats(1e-6, 1e6))
def test_the_units_of_cost_and_importance_change_nothing(problem, seconds, scale):
    importance, capacity, cost, limit, budget = problem
    p = least_variance(importance, capacity, budget, cost, limit)
    other = least_variance(scale * importance, capacity, seconds * budget, seconds * cost, limit)
    np.testing.assert_allclose(other, p, rtol=1e-7, atol=1e-12)


@given(problems())
def test_with_costs_of_clients_it_is_the_closed_form_with_key_m_over_root_c(problem):
    """p = U / max(M, level sqrt(c)) with the level at which the clients below it spend what the others leave."""
    importance, capacity, cost, _, budget = problem
    price, total = cost[:, 0], importance.sum(1)
    active = (total > 0) & (capacity > 0)
    p = least_variance(importance, capacity, budget, price[:, None])
    if not active.any() or budget >= capacity[active] @ price[active] * (1 - 1e-9):
        return
    M, B, c = total[active], capacity[active], price[active]
    order = np.argsort(M / np.sqrt(c))
    M, B, c = M[order], B[order], c[order]
    left = budget - ((B * c).sum() - np.cumsum(B * c))
    level = np.cumsum(B * M * np.sqrt(c)) / np.where(left > 0, left, np.nan)
    k = np.flatnonzero((left > 0) & (M / np.sqrt(c) <= level * (1 + 1e-12)))[-1]
    expected = importance / np.maximum(total, level[k] * np.sqrt(price))[:, None]
    np.testing.assert_allclose(p[active], expected[active], rtol=1e-9)


def test_inside_the_limits_it_is_share_times_signal_over_capacity_and_the_root_of_completion_times_cost():
    rng = np.random.default_rng(3)
    share, signal, q, c = (rng.uniform(0.1, 1.0, (9, 3)) for _ in range(4))
    capacity = rng.integers(1, 4, 9)
    p = least_variance(share * signal / capacity[:, None] / np.sqrt(q), capacity, 0.1, c)
    assert p.sum(1).max() < 1
    np.testing.assert_allclose(
        p
        * capacity[:, None]
        * np.sqrt(q * c)
        / (share * signal)
        / (p[0, 0] * capacity[0] * np.sqrt(q * c)[0, 0] / (share * signal)[0, 0]),
        1.0,
        rtol=1e-12,
    )


def test_at_equal_device_seconds_the_variance_is_below_that_of_probabilities_that_ignore_time():
    rng = np.random.default_rng(0)
    importance, capacity = rng.lognormal(0, 1, (200, 3)), rng.integers(1, 4, 200)
    cost = rng.lognormal(0, 1, (200, 3))
    plain = least_variance(importance, capacity, 0.1 * capacity.sum())
    timed = least_variance(importance, capacity, spending(plain, capacity, cost), cost)
    assert objective(importance, capacity, timed) < 0.9 * objective(importance, capacity, plain)


def test_many_clients_meet_the_budget_and_agree_with_a_few_copies_of_them():
    """100,000 clients begin from a guess by some of them; a hundred copies of a client are treated like it."""
    rng = np.random.default_rng(1)
    importance, capacity, cost = (
        rng.lognormal(0, 1, (1000, 3)),
        rng.integers(1, 4, 1000),
        rng.lognormal(0, 1, (1000, 3)),
    )
    for share in (0.02, 0.5, 0.97):
        budget = share * most_that_can_be_spent(importance, capacity, cost, np.ones(1000))
        p = least_variance(importance, capacity, budget, cost)
        crowd = [np.tile(each, (100,) + (1,) * (each.ndim - 1)) for each in (importance, capacity, cost)]
        many = least_variance(crowd[0], crowd[1], 100 * budget, crowd[2])
        assert spending(many, crowd[1], crowd[2]) == pytest.approx(100 * budget, rel=1e-12)
        np.testing.assert_allclose(many, np.tile(p, (100, 1)), rtol=1e-9)


def test_nothing_of_importance_or_no_budget_is_no_allocation():
    assert not least_variance(np.zeros((2, 2)), np.array([1, 1]), 1.0, np.ones((2, 2))).any()
    assert not least_variance(np.ones((2, 2)), np.array([1, 1]), 0.0, np.ones((2, 2))).any()
