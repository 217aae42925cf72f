"""Who trains what: each rule against its formula, its split or its distribution."""

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy.optimize import minimize, minimize_scalar
from scipy.stats import chisquare

from conftest import view_of
from mmfl.allocation import (
    ALLOCATIONS,
    AllocationRule,
    FixedSplit,
    Full,
    LossVariance,
    RandomClients,
    RandomProcessors,
    RandomSplit,
    RotatingSplit,
    least_variance,
)

# --- least variance ------------------------------------------------------------------


@st.composite
def problems(draw):
    """Importance [clients, tasks] with zeros and ties, unequal capacities, a budget from 0.1 past V."""
    clients, tasks = draw(st.integers(1, 6)), draw(st.integers(1, 4))
    one = st.sampled_from([0.0, 1.0, 2.0]) | st.floats(1e-4, 1e4)
    row = st.lists(one, min_size=tasks, max_size=tasks)
    importance = np.array(draw(st.lists(row, min_size=clients, max_size=clients)))
    capacity = np.array(draw(st.lists(st.integers(1, 4), min_size=clients, max_size=clients)))
    budget = draw(st.floats(0.1, 1.2 * capacity.sum()) | st.integers(1, int(capacity.sum())))
    return importance, capacity, float(budget)


def objective(importance, capacity, p):
    terms = np.divide(importance**2, p, out=np.zeros_like(p), where=importance > 0)
    return float((capacity[:, None] * terms).sum())


def lower_bound(importance, capacity, budget):
    """The best value of the Lagrangian dual: by weak duality no feasible p does better.

    At price r^2 of the budget, a client's minimum over sum_s p <= 1 is 2 r M if r >= M, else M^2 + r^2.
    """
    M, V = importance.sum(1), capacity[importance.sum(1) > 0].sum()
    m = min(budget, V)

    def dual(r):
        inner = np.where(r >= M, 2 * r * M, M**2 + r**2)
        return float((capacity * np.where(M > 0, inner, 0)).sum() - r**2 * m)

    top = (capacity * M).sum() / m
    best = minimize_scalar(lambda r: -dual(r), bounds=(0, top), method="bounded", options={"xatol": 1e-9 * top})
    return max(dual(0.0), dual(top), -best.fun)


def literal(importance, capacity, budget):
    """The specification word for word: all V processors in a row, k scanned from the largest down."""
    M = importance.sum(1)
    processor = np.repeat(np.arange(len(M)), np.where(M > 0, capacity, 0))
    processor = processor[np.argsort(M[processor], kind="stable")]
    V, sums = len(processor), np.cumsum(M[processor])
    m = min(budget, V)
    k = next(k for k in range(V, 0, -1) if 0 < m - V + k <= sums[k - 1] / M[processor[k - 1]] * (1 + 1e-12))
    p = np.zeros_like(importance)
    for place, i in enumerate(processor):
        p[i] = (m - V + k) * importance[i] / sums[k - 1] if place < k else importance[i] / M[i]
    return p


@given(problems())
@example((np.ones((4, 3)), np.array([1, 2, 3, 1]), 2.5))
@example((np.array([[1.0, 2.0]]), np.array([3]), 3.0))
@example((np.array([[1.0], [5.0], [100.0]]), np.array([1, 1, 1]), 2.0))
@example((np.array([[0.0, 3.0], [3.0, 0.0], [0.0, 0.0]]), np.array([1, 2, 1]), 1.0))
def test_least_variance_meets_every_constraint_and_its_dual_bound(problem):
    importance, capacity, budget = problem
    p = least_variance(importance, capacity, budget)
    able = importance.sum(1) > 0
    assert (p >= 0).all()
    assert ((p > 0) == (importance > 0)).all()
    assert (p.sum(1) <= 1 + 1e-12).all()
    assert abs((capacity * p.sum(1)).sum() - min(budget, capacity[able].sum())) <= 1e-12
    if able.any():
        bound = lower_bound(importance, capacity, budget)
        assert objective(importance, capacity, p) == pytest.approx(bound, rel=1e-6)
        assert objective(importance, capacity, p) <= bound * (1 + 1e-9)
        np.testing.assert_allclose(p, literal(importance, capacity, budget), rtol=1e-9)


@pytest.mark.parametrize("seed", range(6))
def test_least_variance_is_what_a_general_solver_finds(seed):
    rng = np.random.default_rng(seed)
    clients, tasks = 4, 3
    importance = rng.lognormal(0, 1.2, (clients, tasks)) * (rng.random((clients, tasks)) < 0.8)
    importance[np.arange(clients), rng.integers(0, tasks, clients)] = 1.0
    capacity = rng.integers(1, 4, clients)
    budget = capacity.sum() * rng.choice([0.1, 0.4, 0.7, 0.95])
    pairs = np.nonzero(importance)

    def full(x):
        p = np.zeros_like(importance)
        p[pairs] = x
        return p

    start = full(1.0) / (importance > 0).sum(1, keepdims=True) * budget / capacity.sum()
    found = minimize(
        lambda x: objective(importance, capacity, full(x)),
        start[pairs],
        jac=lambda x: -(capacity[:, None] * importance**2)[pairs] / x**2,
        bounds=[(1e-6, 1)] * len(pairs[0]),
        constraints=[
            {"type": "eq", "fun": lambda x: capacity @ full(x).sum(1) - budget},
            {"type": "ineq", "fun": lambda x: 1 - full(x).sum(1)},
        ],
        method="SLSQP",
        options={"maxiter": 500, "ftol": 1e-12},
    )
    ours = objective(importance, capacity, least_variance(importance, capacity, budget))
    assert ours == pytest.approx(found.fun, rel=1e-6)
    assert ours <= found.fun * (1 + 1e-8)


def test_least_variance_of_no_importance_is_no_allocation():
    assert not least_variance(np.zeros((2, 2)), np.array([1, 1]), 1.0).any()


# --- loss variance -------------------------------------------------------------------

SIZES = [[10, 0, 5], [20, 30, 0], [5, 5, 5], [0, 40, 10]]
LOSSES = [[1.0, 0.0, 2.0], [0.5, 3.0, 0.0], [0.1, 0.2, 0.3], [0.0, 1.0, 1.0]]


@given(
    st.lists(st.just(0.0) | st.floats(1e-9, 1e9), min_size=12, max_size=12),
    st.floats(0.1, 9.0),
    st.tuples(*[st.integers(1, 2)] * 4),
)
@example([0.0] * 12, 2.0, (1, 2, 2, 1))
def test_loss_variance_gives_every_able_pair_a_chance_and_no_other(losses, budget, capacity):
    view = view_of(SIZES, capacity, budget, losses=np.reshape(losses, (4, 3)))
    allocation, _ = LossVariance().allocate(view, None)
    p = allocation.probabilities
    assert ((p > 0) == view.able).all()
    assert (p.sum(1) <= 1 + 1e-12).all()
    assert (view.capacity @ p.sum(1)) == pytest.approx(min(budget, sum(capacity)), abs=1e-12)


def test_loss_variance_uses_share_times_loss_over_capacity():
    view = view_of(SIZES, [1, 2, 3, 1], 2.0, losses=LOSSES)
    allocation, _ = LossVariance(floor=1e-12).allocate(view, None)
    expected = literal(view.share * np.array(LOSSES) / view.capacity[:, None], view.capacity, 2.0)
    np.testing.assert_allclose(allocation.probabilities, expected, atol=1e-9)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_loss_that_is_no_number_counts_like_the_largest_finite_one(bad):
    losses, mended = np.array(LOSSES), np.array(LOSSES)
    losses[2, 1], mended[2, 1] = bad, 3.0
    p, expected = (
        LossVariance().allocate(view_of(SIZES, 1, 2.0, losses=values), None)[0].probabilities
        for values in (losses, mended)
    )
    np.testing.assert_allclose(p, expected, rtol=1e-9)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_losses_that_are_no_numbers_at_all_leave_a_valid_allocation(bad):
    view = view_of(SIZES, 1, 2.0, losses=np.full((4, 3), bad))
    allocation, _ = LossVariance().allocate(view, None)
    assert ((allocation.probabilities > 0) == view.able).all()
    assert allocation.probabilities.sum() == pytest.approx(2.0)


def test_a_negative_loss_counts_by_its_size_because_its_variance_does():
    view = view_of(SIZES, 1, 2.0, losses=LOSSES)
    mirrored = view.with_signals(losses=-view.losses)
    p, q = (LossVariance().allocate(each, None)[0].probabilities for each in (view, mirrored))
    np.testing.assert_allclose(p, q, rtol=1e-9)


# --- random and full -----------------------------------------------------------------


def test_random_processors_share_the_budget_evenly_over_each_clients_tasks():
    view = view_of(SIZES, [2, 1, 3, 1], 1.4)
    p = RandomProcessors().allocate(view, None)[0].probabilities
    expected = [[0.1, 0, 0.1], [0.1, 0.1, 0], [0.2 / 3] * 3, [0, 0.1, 0.1]]
    np.testing.assert_allclose(p, expected)


def test_a_budget_beyond_all_processors_makes_every_processor_active():
    view = view_of(SIZES, [2, 1, 3, 1], 100.0, losses=LOSSES)
    for rule in (RandomProcessors(), LossVariance()):
        np.testing.assert_allclose(rule.allocate(view, None)[0].probabilities.sum(1), 1)


@given(st.integers(0, 10**6), st.floats(0.1, 9.0), st.integers(1, 8), st.integers(1, 4))
def test_random_clients_draws_as_many_distinct_clients_as_the_budget_each_on_a_task_it_has(
    seed, budget, clients, tasks
):
    rng = np.random.default_rng(seed)
    sizes = rng.integers(0, 2, (clients, tasks))
    sizes[rng.integers(0, clients), rng.integers(0, tasks)] = 1
    allocation, _ = RandomClients().allocate(view_of(sizes, 1, budget, seed=seed), None)
    assert len(allocation) == min(max(1, round(budget)), sizes.any(1).sum())
    assert len(set(allocation.client)) == len(allocation)
    assert (allocation.count == 1).all()
    assert (sizes[allocation.client, allocation.task] > 0).all()


def outcomes(rule: AllocationRule, rounds: int, **view) -> Counter:
    """How often each set of (client, task) pairs was drawn."""
    drawn = Counter()
    for t in range(rounds):
        allocation, _ = rule.allocate(view_of(**view, round=t + 1), None)
        drawn[tuple(sorted(zip(allocation.client.tolist(), allocation.task.tolist(), strict=True)))] += 1
    return drawn


def fits(drawn: Counter, chances: dict) -> bool:
    assert set(drawn) <= set(chances)
    expected = np.array(list(chances.values())) * drawn.total()
    return bool(chisquare([drawn[key] for key in chances], expected).pvalue > 1e-3)


def test_random_clients_are_uniform_over_sets_of_clients_and_over_the_tasks_of_each():
    tasks = [(0, 1), (0, 1), (1,), (0,)]
    sizes = [[1, 1], [1, 1], [0, 1], [1, 0]]
    chances = {
        tuple(zip(pair, choice, strict=True)): 1 / 6 / len(tasks[pair[0]]) / len(tasks[pair[1]])
        for pair in itertools.combinations(range(4), 2)
        for choice in itertools.product(*(tasks[i] for i in pair))
    }
    assert fits(outcomes(RandomClients(), 3000, sizes=sizes, budget=2), chances)


def test_full_participation_takes_every_able_pair_once_with_weights_that_sum_to_one():
    view = view_of(SIZES, [2, 1, 3, 1], 0.5)
    allocation, _ = Full().allocate(view, None)
    drawn = np.zeros_like(view.sizes)
    drawn[allocation.client, allocation.task] = allocation.count
    assert (drawn == view.able).all()
    weight = view.share[allocation.client, allocation.task] * allocation.count
    step = np.bincount(allocation.task, weight / (view.capacity[allocation.client] * allocation.probability))
    np.testing.assert_allclose(step, 1, rtol=1e-15)


@pytest.mark.parametrize("name", sorted(ALLOCATIONS))
@pytest.mark.parametrize("budget", [2, 3, 5])
def test_probability_is_the_expected_count_per_processor_of_every_rule(name, budget):
    """Over 1500 seeds; five standard errors. An aggregation that divides by p is biased where this fails."""
    rule, trials = ALLOCATIONS[name](), 1500
    sizes = [[4, 4, 4], [4, 0, 4], [4, 4, 4], [4, 4, 4], [0, 4, 4]]
    capacity, losses = np.array([1, 2, 1, 3, 1]), np.ones((5, 3)) + np.eye(5, 3)
    total = np.zeros((5, 3))
    for seed in range(trials):
        allocation, _ = rule.allocate(view_of(sizes, capacity, budget, seed=seed, losses=losses), rule.start(5, 3))
        total[allocation.client, allocation.task] += allocation.count
    expected = capacity[:, None] * allocation.probabilities
    error = 5 * np.sqrt(np.maximum(expected, 1 / trials) / trials)
    np.testing.assert_array_less(np.abs(total / trials - expected), error)


# --- splits --------------------------------------------------------------------------


def frames(rule: AllocationRule, rounds: int, sizes_at, **view) -> list[np.ndarray]:
    """The count tables [clients, tasks] of the first rounds, `sizes_at(t)` being the sizes in round t."""
    state, tables = rule.start(*np.shape(sizes_at(1))), []
    for t in range(1, rounds + 1):
        allocation, state = rule.allocate(view_of(sizes_at(t), round=t, **view), state)
        table = np.zeros(np.shape(sizes_at(t)), dtype=int)
        table[allocation.client, allocation.task] = allocation.count
        tables.append(table)
    return tables


@given(st.integers(1, 9), st.integers(1, 4), st.integers(1, 12), st.integers(0, 99))
def test_splits_have_parts_that_differ_by_at_most_one_and_as_many_clients_as_the_budget(clients, tasks, budget, seed):
    everything = np.ones((clients, tasks))
    for rule in (RandomSplit(), RotatingSplit(), FixedSplit()):
        for table in frames(rule, 4, lambda t: everything, budget=budget, seed=seed):
            assert (table.sum(1) <= 1).all()
            assert table.sum() == min(budget, clients)
            assert np.ptp(table.sum(0)) <= 1 or (isinstance(rule, FixedSplit) and budget < clients)


def test_mfa_rand_draws_every_even_split_equally_often():
    chances = {
        tuple((i, int(i not in first)) for i in range(4)): 1 / 6 for first in itertools.combinations(range(4), 2)
    }
    assert fits(outcomes(RandomSplit(), 1200, sizes=np.ones((4, 2)), budget=4), chances)


def test_mfa_rand_favours_no_task_when_there_are_fewer_clients_than_tasks():
    trained = Counter(
        task for pairs in outcomes(RandomSplit(), 300, sizes=np.ones((4, 3)), budget=1) for _, task in pairs
    )
    assert set(trained) == {0, 1, 2}


@given(st.integers(1, 8), st.integers(1, 4), st.integers(0, 99), st.integers(1, 9), st.booleans())
def test_every_pair_meets_once_in_a_frame_of_mfa_rr(clients, tasks, seed, budget, for_ever):
    budget = clients if for_ever else budget
    able = np.random.default_rng(seed).random((clients, tasks)) < 0.8
    able[:, 0] = able[0] = True
    tables = frames(FixedSplit() if for_ever else RotatingSplit(), 3 * tasks, lambda t: able, budget=budget, seed=seed)
    for frame in range(3):
        met = sum(tables[frame * tasks : (frame + 1) * tasks])
        taking_part = met.any(1)
        assert taking_part.sum() == min(budget, clients)
        assert (met == able * taking_part[:, None]).all()


def test_mfa_rr_draws_a_new_split_each_frame_and_fedcluster_never():
    everything = np.ones((12, 3))
    rotating = frames(RotatingSplit(), 9, lambda t: everything, budget=12)
    for_ever = frames(FixedSplit(), 9, lambda t: everything, budget=12)
    assert not (rotating[0] == rotating[3]).all()
    assert not (rotating[3] == rotating[6]).all()
    assert all((for_ever[t] == for_ever[t + 3]).all() for t in range(6))


def test_mfa_rr_with_a_partial_budget_reaches_every_client_in_the_end():
    tables = frames(RotatingSplit(), 60, lambda t: np.ones((10, 2)), budget=3)
    assert sum(tables).all()


@pytest.mark.parametrize("split", [RotatingSplit, FixedSplit])
def test_a_task_that_arrives_within_a_frame_joins_at_the_next_one(split):
    def sizes_at(t):
        return np.ones((6, 3)) * [1, 1, t >= 4]

    tables = frames(split(), 8, sizes_at, budget=6)
    assert (sum(tables[2:4]) == [1, 1, 0]).all()
    assert (sum(tables[4:7]) == 1).all()


@pytest.mark.parametrize("split", [RotatingSplit, FixedSplit])
def test_a_task_that_waits_for_the_next_frame_has_no_probability_in_this_one(split):
    rule = split()
    _, state = rule.allocate(view_of([[1, 1, 0]] * 6, budget=6), rule.start(6, 3))
    allocation, _ = rule.allocate(view_of([[1, 1, 1]] * 6, budget=6, round=2), state)
    np.testing.assert_allclose(allocation.probabilities, [[0.5, 0.5, 0]] * 6)


def test_a_client_that_arrives_within_a_frame_of_mfa_rr_joins_at_the_next_one():
    def sizes_at(t):
        return np.ones((5, 2)) * (np.arange(5) < (5 if t >= 2 else 4))[:, None]

    tables = frames(RotatingSplit(), 4, sizes_at, budget=5)
    assert (sum(tables[:2])[4] == 0).all()
    assert (sum(tables[2:]) == 1).all()


@pytest.mark.parametrize("name", sorted(ALLOCATIONS))
def test_nobody_present_means_nobody_trains(name):
    rule = ALLOCATIONS[name]()
    view = view_of(np.zeros((3, 2)), 0, 0.0, losses=np.zeros((3, 2)))
    assert len(rule.allocate(view, rule.start(3, 2))[0]) == 0


def test_a_client_that_arrives_joins_the_smallest_part_of_fedcluster_and_keeps_it():
    def sizes_at(t):
        return np.ones((8, 2)) * (np.arange(8) < (8 if t >= 2 else 5))[:, None]

    tables = frames(FixedSplit(), 6, sizes_at, budget=8)
    assert sorted(tables[0].sum(0)) == [2, 3]
    assert (tables[1].sum(0) == 4).all()
    assert all((tables[t] == tables[t + 2]).all() for t in (1, 2, 3))


def test_fedcluster_with_a_partial_budget_asks_everybody_in_turn_for_the_task_of_its_part():
    whole = frames(FixedSplit(), 40, lambda t: np.ones((10, 2)), budget=10)
    some = frames(FixedSplit(), 40, lambda t: np.ones((10, 2)), budget=3)
    assert all(table.sum() == 3 for table in some)
    assert sum(some).all()
    assert all(((part == whole) | (part == 0)).all() for part, whole in zip(some, whole, strict=True))
