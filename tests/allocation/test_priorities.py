"""What a task's priority means for each allocation, and that no method gives a task less for a higher one."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import table_of, view_of
from mmfl.allocation import (
    Fair,
    Fixed,
    FixedSplit,
    Full,
    Groups,
    Pareto,
    RandomClients,
    RandomProcessors,
    RandomSplit,
    Ranklist,
    RotatingSplit,
    RoundRobinTasks,
    SequentialTasks,
    WarmUp,
)
from mmfl.allocation.bandit import Bandit
from mmfl.methods import METHODS, make_method

SIZES = [[10, 0, 5], [20, 30, 0], [5, 5, 5], [0, 40, 10]]
CAPACITY = [2, 1, 3, 1]
PRIORITY = [3.0, 1.0, 2.0]
# Each client's priorities as shares of its tasks, by hand.
SHARES = np.array([[3 / 5, 0, 2 / 5], [3 / 4, 1 / 4, 0], [1 / 2, 1 / 6, 1 / 3], [0, 1 / 3, 2 / 3]])


def chances(rule, view, state=None):
    return rule.allocate(view, state)[0].probabilities


def tables(rule, rounds, tasks=3, clients=12, sizes_at=None, **view) -> list[np.ndarray]:
    """The count tables [clients, tasks] of the first rounds; by default everyone has every task."""
    state, found = rule.start(clients, tasks), []
    for t in range(1, rounds + 1):
        sizes = np.ones((clients, tasks)) if sizes_at is None else sizes_at(t)
        allocation, state = rule.allocate(view_of(sizes, round=t, **view), state)
        found.append(table_of(allocation))
    return found


# --- at random -----------------------------------------------------------------------


@pytest.mark.parametrize(("budget", "rate"), [(1.4, 0.2), (100.0, 1.0)])
def test_an_active_processor_takes_a_task_with_probability_proportional_to_priority(budget, rate):
    view = view_of(SIZES, CAPACITY, budget, priority=PRIORITY)
    np.testing.assert_allclose(chances(RandomProcessors(), view), rate * SHARES)


def test_a_random_client_takes_a_task_with_probability_proportional_to_priority():
    drawn = np.zeros((4, 3))
    for seed in range(1500):
        view = view_of(SIZES, CAPACITY, 2, seed=seed, priority=PRIORITY)
        allocation, _ = RandomClients().allocate(view, None)
        assert len(allocation) == 2
        drawn += table_of(allocation)
    np.testing.assert_allclose(allocation.probabilities * np.array(CAPACITY)[:, None], SHARES / 2)
    np.testing.assert_allclose(drawn / 1500, SHARES / 2, atol=4 * np.sqrt(0.25 / 1500))


def test_a_fixed_number_is_divided_by_priority_and_a_table_is_not_changed():
    view = view_of(SIZES, CAPACITY, priority=PRIORITY)
    np.testing.assert_allclose(chances(Fixed([0.2, 1.0, 0.5, 0.0]), view), SHARES * [[0.2], [1.0], [0.5], [0.0]])
    table = np.where(np.array(SIZES) > 0, 0.1, 0.0)
    np.testing.assert_array_equal(chances(Fixed(table), view), table)


@pytest.mark.parametrize("alpha", [1.0, 2.0, 3.5])
def test_fair_chances_are_proportional_to_priority_times_a_power_of_the_loss(alpha):
    rule, losses = Fair(alpha), np.array([0.5, 2.0, 1.0])
    view = view_of(SIZES, CAPACITY, 1.4, priority=PRIORITY)
    state = rule.observe(np.broadcast_to(losses, view.sizes.shape), view, rule.start(4, 3))
    weight = view.able * PRIORITY * losses ** (alpha - 1)
    np.testing.assert_allclose(chances(rule, view, state), 0.2 * weight / weight.sum(1, keepdims=True))


@pytest.mark.parametrize("rule", [Full(), WarmUp(RandomClients())])
def test_full_participation_and_a_warm_up_know_no_priorities(rule):
    allocations = [rule.allocate(view_of(SIZES, CAPACITY, priority=p), None)[0] for p in ((), PRIORITY)]
    np.testing.assert_array_equal(*map(table_of, allocations))
    np.testing.assert_array_equal(*(allocation.probabilities for allocation in allocations))


# --- splits and turns ----------------------------------------------------------------


@pytest.mark.parametrize("rule", [RandomSplit(), RotatingSplit(), FixedSplit()])
def test_parts_have_sizes_in_the_ratio_of_the_priorities(rule):
    for table in tables(rule, 9, budget=12, priority=[1.0, 3.0, 2.0]):
        assert table.sum(0).tolist() == [2, 6, 4]


@given(st.integers(1, 9), st.lists(st.integers(1, 4), min_size=1, max_size=4), st.integers(0, 99))
def test_parts_that_cannot_have_their_exact_size_differ_from_it_by_less_than_two(clients, priority, seed):
    share = np.array(priority) / sum(priority)
    for rule in (RandomSplit(), RotatingSplit(), FixedSplit()):
        options = {"budget": clients, "seed": seed, "priority": priority}
        for table in tables(rule, 3, len(priority), clients, **options):
            assert table.sum() == clients
            assert (np.abs(table.sum(0) - clients * share) < 2).all()


@pytest.mark.parametrize("rule", [RandomSplit(), RotatingSplit(), FixedSplit()])
def test_the_remainder_of_a_split_is_divided_by_priority_too(rule):
    """Three clients and slots 2, 1, 1: 1.5, 0.75 and 0.75 on average."""
    drawn = sum(tables(rule, 1, 3, 3, budget=3, seed=seed, priority=[2, 1, 1])[0] for seed in range(800))
    np.testing.assert_allclose(drawn / 800, [[0.5, 0.25, 0.25]] * 3, atol=4 * np.sqrt(0.25 / 800))


@pytest.mark.parametrize("rule", [RotatingSplit(), FixedSplit()])
@pytest.mark.parametrize(
    ("priority", "slots"), [([2, 1, 1], [2, 1, 1]), ([1.5, 1, 0.5], [3, 2, 1]), ([9, 9, 9], [1] * 3)]
)
def test_every_pair_meets_as_often_as_its_task_has_slots_in_a_frame(rule, priority, slots):
    length = sum(slots)
    found = tables(rule, 3 * length, clients=7, budget=7, priority=priority)
    for frame in range(3):
        assert (sum(found[frame * length : (frame + 1) * length]) == slots).all()


@pytest.mark.parametrize("split", [RotatingSplit, FixedSplit])
def test_a_task_that_is_not_there_takes_no_slots(split):
    """Tasks 0 and 1 are two slots and one; task 2 comes in round 2 and joins in round 4, with four slots."""

    def sizes_at(t):
        return np.ones((7, 3)) * [1, 1, t >= 2]

    found = tables(split(), 10, clients=7, budget=7, sizes_at=sizes_at, priority=[2, 1, 4])
    assert (sum(found[:3]) == [2, 1, 0]).all()
    assert (sum(found[3:10]) == [2, 1, 4]).all()


def test_round_robin_gives_a_task_as_many_rounds_of_a_frame_as_it_has_slots():
    found = tables(RoundRobinTasks(RandomClients()), 8, budget=4, priority=[2, 1, 1])
    assert [int(table.sum(0).argmax()) for table in found] == [1, 0, 2, 0, 1, 0, 2, 0]  # slot t mod 4 in round t
    assert all(table.any(0).sum() == 1 for table in found)


@pytest.mark.parametrize(
    ("priority", "order"),
    [([1, 1, 1], [0, 1, 2]), ([1, 3, 2], [1, 2, 0]), ([1, 2, 2], [1, 2, 0]), ([2, 2, 9], [2, 0, 1])],
)
def test_sequential_training_begins_with_the_highest_priority(priority, order):
    found = tables(SequentialTasks(RandomClients(), rounds=2), 7, budget=4, priority=priority)
    assert [int(table.sum(0).argmax()) for table in found] == [*np.repeat(order, 2), order[-1]]


def test_sequential_training_goes_on_with_the_next_task_while_one_is_not_there():
    def sizes_at(t):
        return np.ones((12, 3)) * [1, t >= 3, 1]

    found = tables(SequentialTasks(RandomClients(), rounds=2), 6, budget=4, sizes_at=sizes_at, priority=[2, 3, 1])
    assert [int(table.sum(0).argmax()) for table in found] == [0, 0, 0, 0, 2, 2]


# --- bandits -------------------------------------------------------------------------


def picks(rule, scores, budget, round=1, **view) -> dict[int, int]:
    """The task of each client that trains, where `scores` are the bandit's indices."""
    view = view_of(np.ones(np.shape(scores)), 1, budget, round=round, **view)
    allocation, _ = rule.allocate(view, Bandit(scores / view.share, np.ones(np.shape(scores)), 1.0))
    return dict(zip(allocation.client.tolist(), allocation.task.tolist(), strict=True))


SCORES = np.array([[9.0, 8, 7], [6, 9, 1], [5, 5, 9], [4, 4, 4], [3, 7, 2]])
# Ranklists by hand:  task 0: 0 1 2 3 4    task 1: 1 0 4 2 3    task 2: 2 0 3 4 1


@pytest.mark.parametrize(
    ("round", "budget", "expected"),
    [
        (4, 5, {0: 0, 1: 1, 2: 0, 3: 2, 4: 0}),  # slots 0 1 0 2 from slot 0, then task 0 again
        (5, 4, {1: 1, 0: 0, 2: 2, 3: 0}),  # slots 1 0 2 0
    ],
)
def test_tasks_of_ranklist_pick_in_the_order_of_their_slots(round, budget, expected):
    assert picks(Ranklist(), SCORES, budget, round, priority=[2, 1, 1]) == expected


def test_under_ranklist_a_task_whose_clients_are_all_picked_gives_its_turns_to_the_others():
    view = view_of([[1, 0], [1, 1], [1, 1], [0, 1]], 1, 4, round=3, priority=[5, 1])
    allocation, _ = Ranklist().allocate(view, Ranklist().start(4, 2))
    assert sorted(allocation.client.tolist()) == [0, 1, 2, 3]


def test_under_pareto_a_client_trains_the_task_of_the_best_rank_over_priority_and_the_front_is_the_same():
    # Ranks of the front: client 0: 1, 2, 2; client 1: 2, 1, 5; client 2: 3, 4, 1.
    assert picks(Pareto(), SCORES, 5) == {0: 0, 1: 1, 2: 2}
    assert picks(Pareto(), SCORES, 5, priority=[1, 1, 2.5]) == {0: 2, 1: 1, 2: 2}  # 2 / 2.5 < 1
    assert picks(Pareto(), SCORES, 5, priority=[4, 1, 1]) == {0: 0, 1: 0, 2: 0}


# --- groups --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("priority", "copies"), [((), [1, 2]), ([1, 1, 3], [2, 1]), ([100, 1, 1.6], [0, 2]), ([7, 7, 7], [1, 2])]
)
def test_pseudo_tasks_copy_the_tasks_of_largest_priority_times_mean_loss(priority, copies):
    """Five kinds of clients; the mean losses of the tasks are in the ratio 1 to 3 to 2."""
    kind = np.arange(30) % 5
    losses = (1 + np.array([kind, (2 * kind) % 5, (3 * kind) % 5]).T) * [1.0, 3.0, 2.0]
    losses += 0.01 * np.random.default_rng(0).standard_normal(losses.shape)
    rule = Groups(largest=5)
    _, cycle = rule.allocate(view_of(np.ones((30, 3)), 1, 15, losses=losses, priority=priority), rule.start(30, 3))
    assert cycle.tasks.tolist() == [0, 1, 2, *copies]


# --- every method --------------------------------------------------------------------

ROUNDS = 32
NO_EFFECT = {"full"}


def trainings(method: str, priority, seed: int) -> np.ndarray:
    """How often each of three tasks trains, [tasks], where losses, norms and residuals are those of four kinds of
    clients and do not change."""
    rng = np.random.default_rng(seed)
    kind = np.arange(16) % 4
    values = 1 + np.array([kind, (2 * kind) % 5, (3 * kind) % 4]).T + 0.02 * rng.standard_normal((16, 3))
    sizes = rng.integers(5, 20, (16, 3))
    capacity = np.resize([1, 2, 3], 16)
    rule = make_method(method).allocation
    state, trained = rule.start(16, 3), np.zeros(3, dtype=np.int64)
    for t in range(1, ROUNDS + 1):
        view = view_of(sizes, capacity, 0.3 * capacity.sum(), round=t, seed=seed, priority=priority)
        allocation, state = rule.allocate(view.with_signals(**dict.fromkeys(rule.needs, values)), state)
        count = table_of(allocation)
        trained += count.sum(0)
        state = rule.observe(np.where(count > 0, values, np.nan), view, state)
    return trained


def of_each_allocation() -> list[str]:
    """The first method with each allocation, options included."""
    rules = {name: make_method(name).allocation for name in sorted(METHODS, reverse=True)}
    return sorted({f"{type(rule)} {vars(rule)}": name for name, rule in rules.items()}.values())


@pytest.mark.parametrize("method", of_each_allocation())
def test_doubling_a_priority_never_lowers_a_tasks_trainings_and_raises_those_of_the_task_with_fewest(method):
    """Sums over three seeds. Under groups and one task after another, a task that is already first gains none."""
    seeds = range(3)
    before = sum(trainings(method, [1, 1, 1], seed) for seed in seeds)
    for task in range(3):
        priority = np.ones(3)
        priority[task] = 2.0
        after = sum(trainings(method, priority, seed) for seed in seeds)
        if method in NO_EFFECT:
            assert (after == before).all()
        else:
            assert after[task] >= before[task]
            assert after[task] > 1.1 * before[task] or before[task] > before.min()
