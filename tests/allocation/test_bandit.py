"""The bandit rules: indices against the sums of their definition, fronts against brute force, picks by hand."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from conftest import refused, view_of
from mmfl.allocation.bandit import Bandit, Pareto, Ranklist, fronts, ucb_index

RULES = [Ranklist(), Pareto(), Pareto(fill=True)]


def bandit_of(scores, view) -> Bandit:
    """A history of one round in which every pair trained, with the losses that make `scores` the indices."""
    losses = np.asarray(scores, dtype=float) / np.where(view.able, view.share, 1.0)
    return Bandit(losses, np.ones(losses.shape), 1.0)


def pairs(allocation) -> dict:
    """The task of every client that trains."""
    assert (allocation.count == 1).all()
    assert len(set(allocation.client.tolist())) == len(allocation)
    return dict(zip(allocation.client.tolist(), allocation.task.tolist(), strict=True))


def picks(rule, view, state) -> dict:
    return pairs(rule.allocate(view, state)[0])


@st.composite
def rounds_of(draw):
    """A round in which some lack tasks and some are absent, and a history of it with ties and untrained pairs."""
    clients, tasks = draw(st.integers(1, 9)), draw(st.integers(1, 4))
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    sizes = rng.integers(1, 4, (clients, tasks)) * (rng.random((clients, tasks)) < rng.choice([0.4, 0.8, 1.0]))
    view = view_of(sizes, 1, draw(st.floats(0.1, 10)), round=draw(st.integers(1, 20)), seed=draw(st.integers(0, 99)))
    trained = rng.integers(0, 3, sizes.shape) * 1.0
    return view, Bandit(trained * rng.integers(0, 3, sizes.shape), trained, 5.0)


# --- the ucb_index -----------------------------------------------------------------------


@given(
    st.integers(1, 4), st.integers(1, 3), st.integers(0, 12), st.floats(0.05, 1.0) | st.just(1.0), st.integers(0, 10**6)
)
@example(2, 2, 1, 0.5, 0)
def test_the_index_is_that_of_the_discounted_sums_of_the_definition(clients, tasks, history, gamma, seed):
    rng = np.random.default_rng(seed)
    trained = rng.random((history, clients, tasks)) < 0.4
    losses = np.where(trained, rng.normal(1.0, 1.0, trained.shape), np.nan)
    sizes = rng.integers(0, 4, (clients, tasks))
    rule = Ranklist(gamma)
    state = rule.start(clients, tasks)
    for n in range(history):
        state = rule.observe(losses[n], view_of(sizes, round=n + 1), state)

    t = history + 1  # the decision that follows rounds 1 .. t - 1
    view = view_of(sizes, round=t)
    total = sum(gamma ** (t - 1 - n) for n in range(1, t))
    found = ucb_index(state, view)
    for k in range(clients):
        for i in range(tasks):
            seen = [n for n in range(1, t) if trained[n - 1, k, i]]
            L = sum(gamma ** (t - 1 - n) * losses[n - 1, k, i] for n in seen)
            T = sum(gamma ** (t - 1 - n) for n in seen)
            if not sizes[k, i]:
                assert found[k, i] == -np.inf
            elif not seen:
                assert found[k, i] == np.inf
            else:
                share = sizes[k, i] / sizes[:, i].sum()
                expected = share * (L / T + np.sqrt(2 * np.log(total) / T))
                assert found[k, i] == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_a_loss_that_is_no_finite_number_counts_as_not_trained():
    state = Ranklist().observe(np.array([[np.inf, np.nan, 1.0]]), view_of([[1, 1, 1]]), Ranklist().start(1, 3))
    np.testing.assert_array_equal(state.losses, [[0, 0, 1]])
    np.testing.assert_array_equal(state.trained, [[0, 0, 1]])


def test_a_pair_that_pauses_rises_above_all_others_and_past_every_float():
    rule, view = Ranklist(0.5), view_of([[1], [1]])
    state = rule.observe(np.ones((2, 1)), view, rule.start(2, 1))
    last = 0.0
    for _ in range(1200):
        state = rule.observe(np.array([[1.0], [np.nan]]), view, state)
        score = ucb_index(state, view)
        assert score[1, 0] > score[0, 0]
        assert score[1, 0] >= last
        last = score[1, 0]
    assert last == np.inf


@pytest.mark.parametrize("gamma", [0.0, -0.5, 1.01, np.nan])
@pytest.mark.parametrize("rule", [Ranklist, Pareto])
def test_a_discount_outside_zero_to_one_is_refused(rule, gamma):
    with refused("gamma", str(gamma), "(0, 1]"):
        rule(gamma)


# --- Ranklist ------------------------------------------------------------------------

SCORES = [[9, 8, 7], [6, 9, 1], [5, 5, 9], [4, 4, 4], [3, 7, 2]]
# Ranklists by hand:  task 0: 0 1 2 3 4    task 1: 1 0 4 2 3    task 2: 2 0 3 4 1


@pytest.mark.parametrize(
    ("round", "budget", "expected"),
    [
        (3, 1, {0: 0}),  # 3 mod 3: task 0 begins
        (3, 5, {0: 0, 1: 1, 2: 2, 3: 0, 4: 1}),  # task 0 again: 0, 1 and 2 are gone, so 3
        (4, 4, {1: 1, 2: 2, 0: 0, 4: 1}),  # tasks 1, 2, 0, then 1 again: 1 and 0 are gone, so 4
        (5, 4, {2: 2, 0: 0, 1: 1, 3: 2}),  # tasks 2, 0, 1, then 2 again: 2 and 0 are gone, so 3
    ],
)
def test_ranklist_picks_as_worked_out_by_hand(round, budget, expected):
    view = view_of(np.ones((5, 3)), 1, budget, round=round)
    assert picks(Ranklist(), view, bandit_of(SCORES, view)) == expected


def literal_ranklist(score, able, round, wanted) -> dict:
    tasks = [s for s in range(able.shape[1]) if able[:, s].any()]
    picked, turn = {}, round
    while len(picked) < wanted:
        task = tasks[turn % len(tasks)]
        turn += 1
        free = [k for k in range(len(able)) if able[k, task] and k not in picked]
        if free:
            picked[max(free, key=lambda k, s=task: score[k, s])] = task
    return picked


@given(st.integers(1, 9), st.integers(1, 4), st.integers(1, 9), st.integers(1, 9), st.integers(0, 10**6))
def test_ranklist_is_the_turns_of_the_definition_where_no_indices_are_equal(clients, tasks, budget, round, seed):
    rng = np.random.default_rng(seed)
    view = view_of(rng.integers(0, 3, (clients, tasks)), 1, budget, round=round)
    state = Bandit(rng.random((clients, tasks)), rng.uniform(0.5, 2, (clients, tasks)), 3.0)
    wanted = min(budget, int(view.present.sum()))
    expected = literal_ranklist(ucb_index(state, view), view.able, round, wanted)
    assert picks(Ranklist(), view, state) == expected


# --- Pareto --------------------------------------------------------------------------


def dominates(a, b) -> bool:
    return all(x >= y for x, y in zip(a, b, strict=True)) and any(x > y for x, y in zip(a, b, strict=True))


def literal_fronts(scores) -> list:
    left, found = list(range(len(scores))), []
    while left:
        front = [c for c in left if not any(dominates(scores[j], scores[c]) for j in left)]
        found.append(front)
        left = [c for c in left if c not in front]
    return found


VALUES = st.sampled_from([-np.inf, -0.0, 0.0, 1.0, 2.0, np.inf]) | st.floats(-5, 5)


@given(st.integers(1, 4).flatmap(lambda tasks: st.lists(st.tuples(*[VALUES] * tasks), max_size=12)))
@example([(np.inf, np.inf)] * 3)
@example([(0.0, 1.0), (-0.0, 1.0)])
@example([(1.0, 2.0), (2.0, 1.0), (1.0, 1.0), (0.0, 2.0), (2.0, 1.0)])
def test_fronts_are_those_of_brute_force(scores):
    table = np.array(scores).reshape(len(scores), -1 if scores else 1)
    assert [front.tolist() for front in fronts(table)] == literal_fronts(scores)


@given(rounds_of())
def test_pareto_takes_from_the_front_all_or_as_many_as_the_budget_allows(case):
    view, state = case
    here = np.flatnonzero(view.present).tolist()
    tasks = view.able.any(0)
    found = literal_fronts(ucb_index(state, view)[here][:, tasks].tolist()) if here else [[]]
    wanted = min(len(here), max(1, round(view.budget)))
    first = {here[c] for c in found[0]}
    taken = set(picks(Pareto(), view, state))
    assert taken <= first
    assert len(taken) == min(wanted, len(first))
    filled = set(picks(Pareto(fill=True), view, state))
    assert taken <= filled
    assert len(filled) == wanted
    for front in ({here[c] for c in front} for front in found):
        assert len(filled & front) == min(len(front), wanted)
        wanted -= len(filled & front)


@given(rounds_of())
def test_under_pareto_each_client_trains_a_task_in_which_fewest_clients_stand_above_it(case):
    view, state = case
    score = ucb_index(state, view)
    for client, task in picks(Pareto(fill=True), view, state).items():
        above = {s: sum(score[:, s] > score[client, s]) for s in range(score.shape[1]) if view.able[client, s]}
        assert above[task] == min(above.values())


def test_pareto_picks_as_worked_out_by_hand():
    # The front of SCORES: 0 (9 8 7), 1 (6 9 1) and 2 (5 5 9); 0 dominates 3 (4 4 4) and 4 (3 7 2). Both of these are
    # the second front. Client 3 stands third for task 2 and fourth and fifth elsewhere; 4 stands third for task 1.
    view = view_of(np.ones((5, 3)), 1, 5)
    state = bandit_of(SCORES, view)
    assert picks(Pareto(), view, state) == {0: 0, 1: 1, 2: 2}
    assert picks(Pareto(fill=True), view, state) == {0: 0, 1: 1, 2: 2, 3: 2, 4: 1}


def test_pareto_takes_every_client_of_a_large_front_equally_often():
    scores = [[1, 4], [2, 3], [3, 2], [4, 1], [0, 0]]
    taken = np.zeros(5)
    for seed in range(600):
        view = view_of(np.ones((5, 2)), 1, 2, seed=seed)
        taken[list(picks(Pareto(), view, bandit_of(scores, view)))] += 1
    assert taken[4] == 0
    np.testing.assert_allclose(taken[:4] / 600, 0.5, atol=5 * np.sqrt(0.25 / 600))


# --- both ----------------------------------------------------------------------------


@pytest.mark.parametrize("rule", RULES)
def test_a_pick_has_probability_one_over_its_clients_processors_and_all_else_none(rule):
    view = view_of(np.ones((4, 3)), [1, 2, 3, 1], 3)
    allocation, _ = rule.allocate(view, rule.start(4, 3))
    assert not allocation.certain
    np.testing.assert_array_equal(allocation.probability * view.capacity[allocation.client], 1)
    assert np.count_nonzero(allocation.probabilities) == len(allocation) == 3


@pytest.mark.parametrize("rule", RULES)
def test_ties_are_broken_at_random_and_the_same_way_for_the_same_seed(rule):
    def drawn(seed, round):
        view = view_of(np.ones((30, 2)), 1, 4, seed=seed, round=round)
        return tuple(sorted(picks(rule, view, rule.start(30, 2)).items()))

    assert [drawn(seed, 1) for seed in range(8)] == [drawn(seed, 1) for seed in range(8)]
    assert len({drawn(seed, 1) for seed in range(8)}) == 8
    assert len({drawn(0, round) for round in range(1, 9)}) == 8


@pytest.mark.parametrize("rule", RULES)
def test_of_a_single_task_every_client_trains_before_any_trains_again(rule):
    state, trained = rule.start(5, 1), np.zeros((5, 1), dtype=int)
    for t, distinct in enumerate([2, 4, 5], start=1):
        view = view_of(np.ones((5, 1)), 1, 2, round=t)
        picked = picks(rule, view, state)
        losses = np.full((5, 1), np.nan)
        losses[list(picked)] = 1.0
        trained += np.isfinite(losses)
        state = rule.observe(losses, view, state)
        assert np.count_nonzero(trained) == distinct


@pytest.mark.parametrize(("rule", "clients", "drawn"), [(Ranklist(), 100_000, 1000), (Pareto(fill=True), 2000, 200)])
def test_a_large_federation_is_allocated_with_and_without_a_history(rule, clients, drawn):
    rng = np.random.default_rng(0)
    view = view_of(rng.integers(1, 9, (clients, 5)), 1, drawn)
    for state in (rule.start(clients, 5), Bandit(rng.random((clients, 5)), rng.uniform(0.5, 2, (clients, 5)), 50.0)):
        assert len(picks(rule, view, state)) == drawn
