"""Rules that match devices with tasks: Venn's scheduling in a round, and BODS."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import refusals, refused, table_of, view_of
from mmfl.allocation import Bods, Venn
from mmfl.allocation.devices import demands, expected_improvement


@st.composite
def rounds_of(draw):
    clients, tasks = draw(st.integers(1, 20)), draw(st.integers(1, 4))
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    sizes = rng.integers(1, 60, (clients, tasks)) * (rng.random((clients, tasks)) < 0.6)
    sizes[rng.integers(clients), rng.integers(tasks)] = 7
    capacity = np.minimum(rng.integers(1, tasks + 1, clients), (sizes > 0).sum(1))
    return view_of(sizes, capacity, draw(st.floats(0.5, clients)), round=draw(st.integers(1, 5)))


@given(rounds_of())
def test_no_client_serves_a_task_that_it_cannot_train_nor_two_and_no_task_gets_more_than_it_asks_for(view):
    allocation, _ = Venn().allocate(view, None)
    count, demand = table_of(allocation), demands(view)
    assert not count[~view.able].any()
    assert (count.sum(1) <= 1).all()
    assert (count.sum(0) <= demand).all()
    unserved = demand > count.sum(0)
    idle = view.present & (count.sum(1) == 0)
    assert not (view.able[idle][:, unserved]).any()


@given(rounds_of())
def test_the_reported_probability_is_the_share_of_a_kind_that_serves_the_task(view):
    allocation, _ = Venn().allocate(view, None)
    expected = view.capacity @ np.asarray(allocation.probabilities)
    np.testing.assert_allclose(expected, table_of(allocation).sum(0), rtol=1e-12)


def test_clients_that_can_train_what_nobody_else_can_are_kept_for_it():
    """Ten clients can train both tasks and twenty the first one only: of twenty trainings each task gets ten, and the
    second one all clients that can train it."""
    sizes = np.array([[5, 5]] * 10 + [[5, 0]] * 20)
    for round in range(1, 6):
        count = table_of(Venn().allocate(view_of(sizes, 1, 20.0, round=round), None)[0])
        assert count.sum(0).tolist() == [10, 10]
        assert (count[:10] == [0, 1]).all()


def test_demands_follow_priorities_and_what_is_left_over_takes_turns():
    sizes = np.ones((20, 3), dtype=int)
    assert demands(view_of(sizes, 1, 8.0, priority=[2.0, 1.0, 1.0])).tolist() == [4, 2, 2]
    turns = sum(demands(view_of(sizes, 1, 7.0, round=round)) for round in (1, 2, 3))
    assert turns.tolist() == [7, 7, 7]


def timed(seconds, round=1, budget=6.0):
    view = view_of(np.ones(seconds.shape, dtype=int), 1, budget, round=round)
    return view.timed(0.0, seconds, np.ones(seconds.shape))


def test_bods_that_minds_time_alone_learns_to_leave_the_slow_out():
    """A third of the clients take ten times as long; over 60 rounds the mean cost falls well below that of chance."""
    seconds = np.where(np.arange(12) < 4, 50.0, 5.0)[:, None] * np.ones((1, 2))
    rule, chance = Bods(alpha=1.0), Bods(alpha=1.0, candidates=1)
    costs = {}
    for name, each in (("learned", rule), ("chance", chance)):
        state, seen = each.start(12, 2), []
        for round in range(1, 61):
            _, state = each.allocate(timed(seconds, round), state)
            seen.append(state.cost[-1])
        costs[name] = np.mean(seen[20:])
    assert costs["learned"] < 0.8 * costs["chance"]


def test_bods_cost_is_the_longest_duration_of_each_task_and_the_variance_of_selection_counts():
    seconds = np.arange(1.0, 9.0).reshape(4, 2)
    view = timed(seconds)
    count, selected = np.array([[1, 0], [0, 0], [0, 1], [1, 0]]), np.array([[3, 0], [0, 0], [0, 1], [1, 0]])
    expected = 0.25 * (7.0 + 6.0) + 0.75 * (selected[:, 0].var() + selected[:, 1].var())
    assert Bods().cost(count, selected, view) == pytest.approx(expected)


def test_improvement_is_expected_where_a_better_assignment_was_seen():
    pairs, cost = np.array([[0, 1], [2, 3], [4, 5]]), np.array([1.0, 5.0, 5.0])
    improvement = expected_improvement(pairs, cost, np.array([[0, 6], [2, 6]]))
    assert improvement[0] > improvement[1] >= 0


@given(rounds_of())
def test_bods_trains_able_pairs_alone_one_task_a_client(view):
    rule = Bods(candidates=3)
    state = rule.start(*view.sizes.shape)
    for _ in range(2):
        allocation, state = rule.allocate(view, state)
        count = table_of(allocation)
        assert not count[~view.able].any()
        assert (count.sum(1) <= 1).all()
    assert state.selected.sum() >= count.sum()


@refusals(
    (lambda: Bods(alpha=1.5), "alpha is 1.5", "[0, 1]"),
    (lambda: Bods(candidates=0), "candidates is 0", "at least 1"),
    (lambda: Bods(pool=-1), "pool is -1"),
    (lambda: Bods(memory=0), "memory is 0"),
)
def test_wrong_options_are_refused(make, words):
    refused(make, *words)
