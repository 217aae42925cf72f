"""Who trains what: each rule against its formula, its split or its distribution."""

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from conftest import refusals, refused, table_of, view_of
from mmfl.allocation import (
    ALLOCATIONS,
    AllocationRule,
    Fair,
    Fixed,
    FixedSplit,
    Full,
    LossVariance,
    RandomClients,
    RandomProcessors,
    RandomSplit,
    RotatingSplit,
)
from mmfl.runs.checkpoint import pack, unpack

SIZES = [[10, 0, 5], [20, 30, 0], [5, 5, 5], [0, 40, 10]]
LOSSES = [[1.0, 0.0, 2.0], [0.5, 3.0, 0.0], [0.1, 0.2, 0.3], [0.0, 1.0, 1.0]]

# --- every rule ----------------------------------------------------------------------

# How to make each rule: those not named here can be made without arguments.
NEEDED = {
    "fixed": {"probabilities": 0.6},
    "round-robin-tasks": {"inner": LossVariance()},
    "sequential-tasks": {"inner": RandomProcessors()},
    "warm-up": {"inner": RandomClients()},
}
# Rules that pick by what they remember: `probability` says that a pick was certain, not how likely it was.
PICK = {"ranklist", "pareto"}
# Groups are drawn as their probability says, which is tested beside them: it takes a clustering for every seed.
CLUSTER = {"groups"}


def made(name: str) -> AllocationRule:
    return ALLOCATIONS[name](**NEEDED.get(name, {}))


def seen_by(rule: AllocationRule, view, values):
    """The view with every signal that the rule needs, all of them `values`."""
    return view.with_signals(**dict.fromkeys(rule.needs, np.asarray(values, dtype=float)))


@pytest.mark.parametrize("name", sorted(ALLOCATIONS.keys() - PICK - CLUSTER))
@pytest.mark.parametrize(("budget", "priority"), [(2, ()), (5, (3.0, 1.0, 1.5))])
def test_probability_is_the_expected_count_per_processor_also_when_some_left_and_others_came(name, budget, priority):
    """Rounds 1 to 3 of 300 seeds, in which client 0 leaves and client 5 comes; four standard errors. An aggregation
    that divides by p is biased where this fails."""
    rule, trials = made(name), 300
    sizes = np.array([[4, 4, 4], [4, 0, 4], [4, 4, 4], [4, 4, 4], [0, 4, 4], [4, 4, 4]])
    there = np.array([[1, 1, 1, 1, 1, 0], [0, 1, 1, 1, 1, 0], [0, 1, 1, 1, 1, 1]])
    values = np.ones((6, 3)) + np.eye(6, 3)
    drawn, expected = np.zeros((3, 6, 3)), np.zeros((3, 6, 3))
    for seed in range(trials):
        state = rule.start(6, 3)
        for t in range(3):
            capacity = np.array([1, 2, 1, 3, 1, 2]) * there[t]
            view = view_of(sizes * there[t][:, None], capacity, budget, seed=seed, round=t + 1, priority=priority)
            allocation, state = rule.allocate(seen_by(rule, view, values), state)
            drawn[t] += table_of(allocation)
            expected[t] += capacity[:, None] * allocation.probabilities
            state = rule.observe(np.where(drawn[t] > 0, values, np.nan), view, state)
    error = 4 * np.sqrt(np.maximum(expected, 1) / trials**2)
    np.testing.assert_array_less(np.abs(drawn - expected) / trials, error)


@st.composite
def rounds_of(draw):
    """A few rounds of a federation in which clients and tasks come and go: sizes, capacities, a rate, priorities or
    none, a seed."""
    clients, tasks = draw(st.integers(1, 6)), draw(st.integers(1, 3))
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    own = rng.integers(1, 9, (clients, tasks)) * (rng.random((clients, tasks)) < 0.8)
    there = rng.random((4, clients, 1)) < rng.choice([0.3, 1.0], (4, 1, 1))
    arrived = np.arange(1, 5)[:, None, None] >= rng.integers(1, 4, tasks)
    sizes = own * there * arrived
    capacity = np.minimum(rng.integers(1, tasks + 1, clients), (sizes > 0).sum(2))
    priority = draw(st.just(()) | st.lists(st.floats(1e-6, 1e6) | st.integers(1, 3), min_size=tasks, max_size=tasks))
    return sizes, capacity, draw(st.floats(0.1, 1.2)), priority, draw(st.integers(0, 99))


@pytest.mark.parametrize("name", sorted(ALLOCATIONS))
@settings(max_examples=25)
@given(rounds_of())
def test_every_rule_trains_only_pairs_that_can_and_its_chances_are_chances(name, case):
    sizes, capacities, rate, priority, seed = case
    rule, state = made(name), made(name).start(*sizes[0].shape)
    for t, (now, capacity) in enumerate(zip(sizes, capacities, strict=True), 1):
        view = view_of(now, capacity, rate * capacity.sum(), round=t, seed=seed, priority=priority)
        view = seen_by(rule, view, np.ones(now.shape))
        before = repr(state)
        allocation, renewed = rule.allocate(view, state)
        assert repr(state) == before
        count, p = table_of(allocation), allocation.probabilities
        assert (allocation.count > 0).all()
        assert (now[allocation.client, allocation.task] > 0).all()
        assert (p[now == 0] == 0).all()
        assert ((p >= 0) & (p <= 1 + 1e-12)).all()
        assert (p[count > 0] > 0).all()
        assert (allocation.probability == p[allocation.client, allocation.task]).all()
        assert (np.diff(allocation.task) >= 0).all()
        if not (allocation.certain or name in CLUSTER):
            assert (count.sum(1) <= capacity).all()
            assert (p.sum(1) <= 1 + 1e-12).all()
        arrays = {}
        state = unpack([(pack(renewed, arrays), arrays)], renewed)
        assert repr(state) == repr(renewed)
        before = repr(state)
        renewed = rule.observe(np.where(count > 0, 1.0, np.nan), view, state)
        assert repr(state) == before
        state = renewed


@pytest.mark.parametrize("name", sorted(ALLOCATIONS))
def test_nobody_present_means_nobody_trains(name):
    rule = made(name)
    state = rule.start(3, 2)
    for t in (1, 2):
        view = seen_by(rule, view_of(np.zeros((3, 2)), 0, 0.0, round=t), np.zeros((3, 2)))
        assert not any(mask.any() for mask in rule.asks(view, state).values())
        allocation, state = rule.allocate(view, state)
        assert len(allocation) == 0
        state = rule.observe(np.full((3, 2), np.nan), view, state)


# --- random and full -----------------------------------------------------------------


@pytest.mark.parametrize(("budget", "rate"), [(1.4, 0.2), (100.0, 1.0)])
def test_random_processors_share_the_budget_evenly_over_each_clients_tasks(budget, rate):
    p = RandomProcessors().allocate(view_of(SIZES, [2, 1, 3, 1], budget), None)[0].probabilities
    np.testing.assert_allclose(p, rate * np.array([[0.5, 0, 0.5], [0.5, 0.5, 0], [1 / 3] * 3, [0, 0.5, 0.5]]))


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
    drawn = Counter()
    for t in range(2000):
        allocation, _ = RandomClients().allocate(view_of(sizes, budget=2, round=t + 1), None)
        drawn[tuple(sorted(zip(allocation.client.tolist(), allocation.task.tolist(), strict=True)))] += 1
    assert fits(drawn, chances)


def test_full_participation_takes_every_able_pair_once_with_weights_that_sum_to_one():
    view = view_of(SIZES, [2, 1, 3, 1], 0.5)
    allocation, _ = Full().allocate(view, None)
    assert (table_of(allocation) == view.able).all()
    weight = view.share[allocation.client, allocation.task] * allocation.count
    step = np.bincount(allocation.task, weight / (view.capacity[allocation.client] * allocation.probability))
    np.testing.assert_allclose(step, 1, rtol=1e-15)


# --- splits --------------------------------------------------------------------------


def frames(rule: AllocationRule, rounds: int, sizes_at, **view) -> list[np.ndarray]:
    """The count tables [clients, tasks] of the first rounds, `sizes_at(t)` being the sizes in round t."""
    state, tables = rule.start(*np.shape(sizes_at(1))), []
    for t in range(1, rounds + 1):
        allocation, state = rule.allocate(view_of(sizes_at(t), round=t, **view), state)
        tables.append(table_of(allocation))
    return tables


@given(st.integers(1, 9), st.integers(1, 4), st.integers(1, 12), st.integers(0, 99))
def test_splits_have_parts_that_differ_by_at_most_one_and_as_many_clients_as_the_budget(clients, tasks, budget, seed):
    everything = np.ones((clients, tasks))
    for rule in (RandomSplit(), RotatingSplit(), FixedSplit()):
        for table in frames(rule, 4, lambda t: everything, budget=budget, seed=seed):
            assert (table.sum(1) <= 1).all()
            assert table.sum() == min(budget, clients)
            assert np.ptp(table.sum(0)) <= 1 or (isinstance(rule, FixedSplit) and budget < clients)


@pytest.mark.parametrize("rule", [RandomSplit(), RotatingSplit(), FixedSplit()])
@pytest.mark.parametrize("tasks", [2, 3])
def test_every_even_split_is_drawn_equally_often_and_a_remainder_favours_no_task(rule, tasks):
    drawn = Counter()
    for seed in range(600):
        table = frames(rule, 1, lambda t: np.ones((4, tasks)), budget=4, seed=seed)[0]
        drawn[tuple(table.argmax(1).tolist())] += 1
    splits = itertools.product(range(tasks), repeat=4)
    even = [split for split in splits if np.ptp(np.bincount(split, minlength=tasks)) <= 1]
    assert fits(drawn, dict.fromkeys(even, 1 / len(even)))


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


def test_fedcluster_with_a_partial_budget_asks_everybody_in_turn_for_the_task_of_its_part():
    whole = frames(FixedSplit(), 40, lambda t: np.ones((10, 2)), budget=10)
    some = frames(FixedSplit(), 40, lambda t: np.ones((10, 2)), budget=3)
    assert all(table.sum() == 3 for table in some)
    assert sum(some).all()
    assert all(((part == whole) | (part == 0)).all() for part, whole in zip(some, whole, strict=True))


@given(st.integers(0, 10**6))
def test_parts_of_fedcluster_stay_as_equal_as_arrivals_allow_and_nobody_ever_moves(seed):
    rng = np.random.default_rng(seed)
    arrivals, tasks, rule = np.sort(rng.integers(1, 7, 11)), int(rng.integers(1, 5)), FixedSplit()
    arrivals[0] = 1
    state = rule.start(11, tasks)
    for t in range(1, 9):
        before = state.part
        sizes = np.ones((11, tasks)) * (arrivals <= t)[:, None]
        _, state = rule.allocate(view_of(sizes, budget=rng.integers(1, 12), round=t, seed=seed), state)
        known = before >= 0
        assert (state.part[known] == before[known]).all()
        assert ((state.part >= 0) == (arrivals <= t)).all()
        assert np.ptp(np.bincount(state.part[state.part >= 0], minlength=tasks)) <= 1


def test_a_client_of_fedcluster_that_was_away_finds_its_part_as_it_left_it():
    def sizes_at(t):
        return np.ones((7, 3)) * (np.arange(7) != 2 if 2 <= t <= 5 else np.ones(7))[:, None]

    away = frames(FixedSplit(), 9, sizes_at, budget=7)
    never = frames(FixedSplit(), 9, lambda t: np.ones((7, 3)), budget=7)
    assert all((table == 0)[2].all() for table in away[1:5])
    for table, expected in zip(away, never, strict=True):
        assert ((table == expected) | (np.arange(7) == 2)[:, None]).all()
    assert all((away[t] == never[t]).all() for t in (0, 5, 6, 7, 8))


def test_newcomers_to_equal_parts_of_fedcluster_favour_none():
    joined = Counter()
    for seed in range(300):
        rule = FixedSplit()
        sizes = np.ones((4, 3))
        _, state = rule.allocate(view_of(sizes * [[1], [1], [1], [0]], budget=4, seed=seed), rule.start(4, 3))
        _, state = rule.allocate(view_of(sizes, budget=4, seed=seed, round=2), state)
        joined[int(state.part[3])] += 1
    assert chisquare([joined[part] for part in range(3)]).pvalue > 1e-3


def test_a_frame_of_mfa_rr_that_nobody_began_begins_when_somebody_is_there():
    tables = frames(RotatingSplit(), 5, lambda t: np.ones((6, 2)) * (t >= 3), budget=6)
    assert not sum(tables[:2]).any()
    assert (sum(tables[2:4]) == 1).all()


def test_the_probabilities_of_mfa_rr_leave_out_who_waits_and_count_who_is_there():
    """Eight clients, four sampled; then client 8 comes, which must wait, and all but one of the sampled are away."""
    rule = RotatingSplit()
    sizes = np.ones((9, 2)) * (np.arange(9) < 8)[:, None]
    first, state = rule.allocate(view_of(sizes, budget=4), rule.start(9, 2))
    np.testing.assert_allclose(first.probabilities, 0.25 * sizes)
    sampled = np.unique(first.client)
    there = ~np.isin(np.arange(9), sampled[1:])
    second, _ = rule.allocate(view_of(np.ones((9, 2)) * there[:, None], budget=4, round=2), state)
    assert second.client.tolist() == [sampled[0]]
    np.testing.assert_allclose(second.probabilities, (there & (np.arange(9) < 8))[:, None] * np.full(2, 0.1))


# --- fair ----------------------------------------------------------------------------


def fair(losses, view, alpha=3.0):
    """The probabilities of a fair rule that has seen these mean losses of the tasks."""
    rule = Fair(alpha)
    state = rule.observe(np.broadcast_to(losses, view.sizes.shape), view, rule.start(*view.sizes.shape))
    return rule.allocate(view, state)[0].probabilities


FAIR_VIEW = view_of(SIZES, [2, 1, 3, 1], 1.4)


@given(st.lists(st.floats(1e-3, 1e3), min_size=3, max_size=3), st.floats(1.0, 6.0), st.floats(0.1, 12))
@example([1.0, 20.0, 300.0], 1.0, 1.4)
def test_fair_chances_are_proportional_to_powers_of_the_loss_among_each_clients_own_tasks(losses, alpha, budget):
    view = view_of(SIZES, [2, 1, 3, 1], budget)
    losses = max(losses) * np.maximum(np.array(losses) / max(losses), 1e-3)
    weight = view.able * losses ** (alpha - 1)
    expected = min(1, budget / 7) * weight / weight.sum(1, keepdims=True)
    np.testing.assert_allclose(fair(losses, view, alpha), expected, rtol=1e-9)


@pytest.mark.parametrize("alpha", [1.0, 3.0, 50.0, 1000.0, np.inf])
@pytest.mark.parametrize("losses", [[2.0, 0.1, 1e-9], [0.0, 0.0, 0.0], [0.0, 1.0, 1e300], [1e308, 1.0, 1.0]])
def test_the_fair_rule_spends_the_budget_however_much_it_prefers_the_worst_task(alpha, losses):
    p = fair(losses, FAIR_VIEW, alpha)
    np.testing.assert_allclose(p.sum(1), 1.4 / 7, rtol=1e-12)
    assert (p >= 0).all()
    assert (p[~FAIR_VIEW.able] == 0).all()


def test_the_larger_alpha_the_more_the_worst_task_counts():
    shares = [fair([1.0, 2.0, 1.5], FAIR_VIEW, alpha)[2, 1] for alpha in (1, 2, 3, 8, 30)]
    assert shares == sorted(set(shares))
    assert shares[-1] == pytest.approx(0.2, rel=1e-3)


@pytest.mark.parametrize(
    ("losses", "like"),
    [
        ([np.nan] * 3, [1.0, 1.0, 1.0]),  # no task has trained
        ([3.0, np.nan, 1.0], [3.0, 3.0, 1.0]),  # one that has not counts like the worst
        ([0.0, 0.0, 0.0], [1.0, 1.0, 1.0]),
        ([0.0, np.nan, 0.0], [1.0, 1.0, 1.0]),
        ([-1.0, -2.0, -4.0], [1.0, 2.0, 4.0]),  # losses below zero count by their size
    ],
)
def test_losses_that_count_like_others(losses, like):
    np.testing.assert_allclose(fair(losses, FAIR_VIEW), fair(like, FAIR_VIEW), rtol=1e-12)


def test_a_task_without_loss_beside_others_keeps_a_small_chance():
    p = fair([0.0, 1.0, 1.0], view_of(np.ones((4, 3)), 1, 2.0))
    assert (p > 0).all()
    assert (p[:, 0] < 1e-9).all()


def test_the_fair_rule_remembers_the_mean_over_who_trained_weighted_by_their_data():
    rule, view = Fair(), view_of([[10, 1], [30, 1], [99, 1]])
    state = rule.observe(np.array([[1.0, np.nan], [2.0, np.nan], [np.nan, np.nan]]), view, rule.start(3, 2))
    np.testing.assert_allclose(state.mean, [1.75, np.nan])
    state = rule.observe(np.array([[np.nan, np.nan], [np.nan, 4.0], [np.nan, np.nan]]), view, state)
    np.testing.assert_allclose(state.mean, [1.75, 4.0])
    state = rule.observe(np.array([[np.nan, np.nan], [np.nan, np.nan], [0.5, np.nan]]), view, state)
    np.testing.assert_allclose(state.mean, [0.5, 4.0])


@pytest.mark.parametrize("lost", [np.nan, np.inf, -np.inf])
def test_a_lost_update_teaches_the_fair_rule_nothing(lost):
    rule, view = Fair(), view_of([[10, 5], [30, 5]])
    start = rule.start(2, 2)
    some = rule.observe(np.array([[1.0, lost], [lost, lost]]), view, start)
    np.testing.assert_array_equal(some.mean, [1.0, np.nan])
    np.testing.assert_array_equal(rule.observe(np.full((2, 2), lost), view, some).mean, [1.0, np.nan])
    assert np.isnan(start.mean).all()


# --- fixed ---------------------------------------------------------------------------

TABLE = [[0.5, 0.1, 0.4], [0.0, 1.0, 0.0], [0.2, 0.2, 0.2], [0.3, 0.0, 0.6]]


def fixed(probabilities, **view):
    rule, round = Fixed(probabilities), view_of(SIZES, [2, 1, 3, 1], **view)
    rule.start(4, 3)
    return rule.allocate(round, None)[0].probabilities


@pytest.mark.parametrize("budget", [0.0, 1.0, 100.0])
def test_fixed_probabilities_are_a_number_one_per_client_or_a_table_whatever_the_budget(budget):
    np.testing.assert_allclose(
        fixed(0.6, budget=budget), [[0.3, 0, 0.3], [0.3, 0.3, 0], [0.2, 0.2, 0.2], [0, 0.3, 0.3]]
    )
    np.testing.assert_allclose(
        fixed([0.2, 1, 0.3, 0], budget=budget), [[0.1, 0, 0.1], [0.5, 0.5, 0], [0.1, 0.1, 0.1], [0, 0, 0]]
    )
    np.testing.assert_allclose(fixed(TABLE, budget=budget), np.where(np.array(SIZES) > 0, TABLE, 0))


@pytest.mark.parametrize(
    ("given_", "sizes", "expected"),
    [
        ([0.2, 0.8], [[1, 1], [1, 1]], [[0.1, 0.1], [0.4, 0.4]]),  # per client, not per task
        (1.0, [[1, 0], [1, 1], [0, 0]], [[1, 0], [0.5, 0.5], [0, 0]]),  # over the tasks that are there in the round
        ([[0.33, 0.56, 0.11]] * 2, [[1, 1, 1]] * 2, [[0.33, 0.56, 0.11]] * 2),  # sums to 1 but for rounding
    ],
)
def test_a_probability_spreads_over_the_tasks_of_its_client(given_, sizes, expected):
    np.testing.assert_allclose(Fixed(given_).allocate(view_of(sizes), None)[0].probabilities, expected, rtol=1e-15)


@refusals(
    (lambda: Fair(0.9), "'fair'", "alpha is 0.9", "at least 1"),
    (lambda: Fair(float("nan")), "'fair'", "alpha is nan", "at least 1"),
    (lambda: Fair(draw="systematik"), "'systematik'", "did you mean 'systematic'?"),
    (lambda: Fixed([0.1, 0.2]).start(3, 2), "'fixed'", "(2,)", "(3,)", "(3, 2)"),
    (lambda: Fixed(np.full((2, 3), 0.1)).start(3, 2), "'fixed'", "(2, 3)", "(3, 2)"),
    (lambda: Fixed(np.zeros((1, 1, 1))), "'fixed'", "[clients, tasks]"),
    (lambda: Fixed([[0.1, 0.2], [0.3]]), "'fixed'", "[clients, tasks]"),
    (lambda: Fixed("half"), "'fixed'", "[clients, tasks]"),
    (lambda: Fixed(None), "'fixed'", "[0, 1]"),
    (lambda: Fixed(1.5), "'fixed'", "[0, 1]"),
    (lambda: Fixed(-1e-9), "'fixed'", "[0, 1]"),
    (lambda: Fixed([0.5, float("nan")]), "'fixed'", "[0, 1]"),
    (lambda: Fixed([[0.2, 0.2], [0.6, 0.5]]), "'fixed'", "client 1", "more than 1"),
)
def test_settings_that_cannot_be_are_refused(make, words):
    with refused(*words):
        make()
