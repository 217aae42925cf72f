"""Group sampling: clusters of like losses, the rotation of the tasks over them, and who joins in between."""

import itertools
from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import pdist
from scipy.stats import chisquare
from sklearn.metrics import adjusted_rand_score

from conftest import refusals, refused, table_of, view_of
from mmfl.allocation.groups import Cycle, Groups, k_means

RATE = 0.5


def planted(clients, tasks, kinds, seed=0, noise=0.02):
    """Losses [clients, tasks] of that many kinds of clients, far apart, and the kind of each client."""
    rng = np.random.default_rng(seed)
    centres = 1 + rng.permuted(np.tile(np.arange(kinds), (tasks, 1)), axis=1).T
    kind = rng.permutation(np.arange(clients) % kinds)
    return centres[kind] + noise * rng.standard_normal((clients, tasks)), kind


def view_at(round, losses, able=None, rate=RATE, seed=0, capacity=1):
    """A round in which `able` clients (all by default) hold ten examples a task and lose `losses`."""
    able = np.ones(np.shape(losses), dtype=bool) if able is None else np.asarray(able, dtype=bool)
    capacity = np.minimum(capacity, able.sum(1))
    return view_of(10 * able, capacity, rate * capacity.sum(), round=round, seed=seed, losses=losses)


def play(rule, view, state):
    """A round as the training loop plays it: no loss that was not asked for is seen."""
    asked = rule.asks(view, state)
    signals = {name: np.where(pairs, view.signals[name], 0.0) for name, pairs in asked.items()}
    return rule.allocate(replace(view, signals=signals), state)


def run(rule, rounds, losses, able_at=lambda t: None, **view):
    """Count tables and states of the first rounds."""
    state, tables, states = rule.start(*np.shape(losses)), [], []
    for t in range(1, rounds + 1):
        allocation, state = play(rule, view_at(t, losses, able_at(t), **view), state)
        tables.append(table_of(allocation))
        states.append(state)
    return tables, states


def first_cycle(losses, rule=None, **view) -> Cycle:
    rule = Groups() if rule is None else rule
    return play(rule, view_at(1, losses, **view), rule.start(*np.shape(losses)))[1]


def same(a: Cycle, b: Cycle) -> bool:
    return all(np.array_equal(getattr(a, f.name), getattr(b, f.name)) for f in fields(Cycle))


# --- C-step --------------------------------------------------------------------------


@pytest.mark.parametrize("standardise", [True, False])
@pytest.mark.parametrize(
    ("clients", "tasks", "kinds"), [(10, 1, 2), (30, 2, 2), (30, 2, 4), (30, 3, 5), (30, 4, 4), (5000, 2, 3)]
)
def test_planted_kinds_of_clients_are_found_and_are_as_many_as_the_cycle_is_long(clients, tasks, kinds, standardise):
    losses, kind = planted(clients, tasks, kinds, seed=kinds)
    cycle = first_cycle(losses, Groups(standardise=standardise))
    assert adjusted_rand_score(kind, cycle.cluster) == 1
    assert len(cycle.tasks) == kinds
    np.testing.assert_allclose(cycle.centroids, [losses[cycle.cluster == k].mean(0) for k in range(kinds)])


@pytest.mark.parametrize(
    ("clients", "largest", "length"), [(30, None, 4), (30, 3, 3), (30, 1, 2), (7, None, 3), (3, None, 2)]
)
def test_clusters_number_from_the_tasks_to_twice_as_many_half_the_clients_or_the_limit(clients, largest, length):
    losses = np.array([[1.0, 1.0], [1.0, 9.0], [9.0, 1.0], [9.0, 9.0]])[np.arange(clients) % 4]
    losses += 0.01 * np.arange(clients)[:, None]
    assert len(first_cycle(losses, Groups(largest=largest)).tasks) == length


def test_a_task_with_large_losses_hides_the_kinds_of_another_unless_standardised():
    rng = np.random.default_rng(1)
    kind = np.arange(20) % 2
    losses = np.stack([100 + 5 * rng.random(20), 1.0 * kind], axis=1)
    agreement = [
        adjusted_rand_score(kind, first_cycle(losses, Groups(standardise=standardise, largest=2)).cluster)
        for standardise in (True, False)
    ]
    assert agreement[0] == 1
    assert agreement[1] < 0.5


def test_one_task_after_the_other_decides_the_clusters_of_inconsistent_tasks():
    rng = np.random.default_rng(2)
    kind = np.stack([rng.permutation(np.arange(24) % 3) for _ in range(2)], axis=1)
    losses = 1 + kind + 0.02 * rng.standard_normal(kind.shape)
    _, states = run(Groups(consistent=False), 9, losses)
    by_cycle = {state.number: state for state in states}
    assert len(by_cycle) == 3
    for number, cycle in by_cycle.items():
        assert adjusted_rand_score(kind[:, (number - 1) % 2], cycle.cluster) == 1
        assert adjusted_rand_score(kind[:, number % 2], cycle.cluster) < 0.5


def test_a_loss_of_a_task_that_a_client_lacks_counts_as_the_mean():
    losses, kind = planted(24, 3, 3)
    able = np.ones((24, 3), dtype=bool)
    able[np.arange(6), np.arange(6) % 3] = False
    cycle = first_cycle(np.where(able, losses, 0.0), able=able)
    np.testing.assert_allclose(cycle.mean, [losses[able[:, s], s].mean() for s in range(3)])
    filled = np.where(able, losses, cycle.mean)
    np.testing.assert_allclose(cycle.centroids[0], filled[cycle.cluster == 0].mean(0))
    assert adjusted_rand_score(kind[6:], cycle.cluster[6:]) == 1


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_loss_that_is_no_number_counts_like_the_largest(bad):
    losses, _ = planted(20, 2, 3)
    mended = losses.copy()
    losses[3, 1] = bad
    mended[3, 1] = losses[np.isfinite(losses)].max()
    assert same(first_cycle(losses), first_cycle(mended))


def test_clusters_that_last_keep_their_numbers_so_that_turns_stay_regular():
    losses, _ = planted(20, 2, 3, noise=0.1)
    rng = np.random.default_rng(0)
    rule = Groups()
    cycles = [first_cycle(losses + 0.01 * rng.standard_normal(losses.shape), rule, seed=seed) for seed in range(8)]
    assert all((cycle.cluster == cycles[0].cluster).all() for cycle in cycles)
    assert cycles[0].cluster[0] == 0


@pytest.mark.parametrize(("noise", "kinds"), [(0.0, 1), (1e-8, 1), (1e-8, 2)])
def test_fewer_kinds_of_clients_than_tasks_are_dealt_into_even_parts(noise, kinds):
    losses = 1 + np.arange(11)[:, None] % kinds + noise * np.random.default_rng(0).standard_normal((11, 3))
    cycles = [first_cycle(losses, seed=seed) for seed in range(3)]
    for cycle in cycles:
        assert sorted(np.bincount(cycle.cluster)) == [3, 4, 4]
    assert not (cycles[0].cluster == cycles[1].cluster).all()


# --- T-steps -------------------------------------------------------------------------


@settings(max_examples=30)
@given(st.integers(1, 3), st.integers(2, 12), st.integers(0, 99))
def test_every_task_of_a_cycle_meets_every_cluster_once(tasks, clients, seed):
    losses = np.random.default_rng(seed).random((clients, tasks)) + 1
    tables, states = run(Groups(), 4 * tasks + 1, losses, rate=1.0, seed=seed)
    assert states[-1].number > 2
    for number in range(1, states[-1].number):
        of_cycle = [t for t, state in enumerate(states) if state.number == number]
        cycle = states[of_cycle[0]]
        assert len(of_cycle) == len(cycle.tasks)
        assert (sum(tables[t] for t in of_cycle) == np.bincount(cycle.tasks, minlength=tasks)).all()
        for t in of_cycle:
            assert (tables[t].sum(1) == 1).all()
            assert len(np.unique(np.column_stack([cycle.cluster, tables[t]]), axis=0)) == len(cycle.centroids)


def test_task_s_trains_on_cluster_s_plus_tau():
    losses, _ = planted(20, 3, 4)
    tables, states = run(Groups(), 4, losses)
    for tau, count in enumerate(tables):
        for s, task in enumerate(states[0].tasks[:3]):
            trained = states[0].cluster[count[:, task] > 0]
            copies = np.flatnonzero(states[0].tasks == task)
            assert (s + tau) % 4 in trained
            assert set(trained) == {(int(copy) + tau) % 4 for copy in copies}


@pytest.mark.parametrize(
    ("kinds", "scale", "tasks"), [(5, [1.0, 3.0, 2.0], [0, 1, 2, 1, 2]), (7, [1.0, 2.0], [0, 1, 1, 0, 1, 0, 1])]
)
def test_pseudo_tasks_copy_the_tasks_of_largest_mean_loss_worst_first_and_repeat(kinds, scale, tasks):
    losses, kind = planted(30, len(scale), kinds)
    cycle = first_cycle(losses * scale, Groups(largest=kinds))
    assert adjusted_rand_score(kind, cycle.cluster) == 1
    assert cycle.tasks.tolist() == tasks


def test_mean_losses_weigh_clients_by_their_data():
    losses = np.array([[1.0, 2.0], [5.0, 3.0], [9.0, 1.0]] * 4) + 0.01 * np.arange(12)[:, None]
    sizes = np.array([[100, 10], [1, 10], [1, 10]] * 4)
    rule = Groups()
    _, cycle = rule.allocate(view_of(sizes, 1, 4, losses=losses), rule.start(12, 2))
    assert cycle.tasks.tolist() == [0, 1, 1]


@pytest.mark.parametrize(("rate", "expected"), [(0.01, 1), (1 / 6, 2), (0.5, 5), (1.0, 10), (3.0, 10)])
def test_a_cluster_sends_its_share_of_clients_and_at_least_one(rate, expected):
    losses, _ = planted(30, 3, 3)
    tables, _ = run(Groups(), 3, losses, rate=rate)
    assert (np.sum(tables, axis=1) == expected).all()


def test_the_share_is_of_the_clients_of_a_cluster_that_are_there_whoever_of_them_can_train_the_task():
    losses = np.array([[1.0, 9.0]] * 16 + [[9.0, 1.0]] * 4)
    able = np.ones((20, 2), dtype=bool)
    able[:6, 0] = False
    rule = Groups(largest=2)
    cycle = first_cycle(losses, rule, able=able)
    assert table_of(play(rule, view_at(1, losses, able), cycle)[0]).sum(0).tolist() == [8, 2]
    away = able & ~np.isin(np.arange(20), [0, 1, 2, 6, 7, 8])[:, None]
    allocation, _ = play(rule, view_at(1, losses, away), cycle)
    assert table_of(allocation).sum(0).tolist() == [5, 2]
    np.testing.assert_allclose(allocation.probabilities[9:16, 0], 5 / 7)


def test_sampled_clients_are_as_frequent_as_their_probability_says_and_all_sets_alike():
    """Four clients of cluster 0, three of which are able for task 0; two of them train it."""
    losses = np.array([[1.0, 9.0], [1.1, 9.0], [1.0, 9.1], [1.2, 9.0], [9.0, 1.0], [9.1, 1.0], [9.0, 1.1]])
    able = np.ones((7, 2), dtype=bool)
    able[3, 0] = False
    capacity = np.array([1, 2, 1, 1, 1, 1, 1])
    rule, drawn = Groups(), np.zeros((7, 2))
    cycle = first_cycle(losses, rule, able=able, capacity=capacity)
    pairs = {(0, 1): 0, (0, 2): 0, (1, 2): 0}
    for seed in range(1200):
        allocation, _ = play(rule, view_at(1, losses, able, seed=seed, capacity=capacity), cycle)
        drawn += table_of(allocation)
        pairs[tuple(allocation.client[allocation.task == 0].tolist())] += 1
    assert chisquare(list(pairs.values())).pvalue > 1e-3
    expected = capacity[:, None] * allocation.probabilities
    np.testing.assert_allclose(expected[:, 0], [2 / 3, 2 / 3, 2 / 3, 0, 0, 0, 0])
    np.testing.assert_allclose(expected[:, 1], [0, 0, 0, 0, 2 / 3, 2 / 3, 2 / 3])
    assert allocation.probabilities[1, 0] == pytest.approx(1 / 3)
    assert np.abs(drawn / 1200 - expected).max() < 5 * np.sqrt(0.25 / 1200)


# --- what is measured ----------------------------------------------------------------


@pytest.mark.parametrize("consistent", [True, False])
def test_losses_are_measured_at_c_steps_of_everybody_and_else_of_nobody(consistent):
    losses, _ = planted(20, 2, 3)
    able = np.random.default_rng(0).random(losses.shape) < 0.9
    able[:, 0] = True
    rule = Groups(consistent)
    state = rule.start(20, 2)
    for t in range(1, 8):
        view = view_at(t, losses, able)
        asked, before = rule.asks(view, state), state.number
        _, state = play(rule, view, state)
        if state.number > before:
            assert (asked["losses"] == able).all()
        else:
            assert asked == {}
    assert state.number >= 2


def test_within_a_cycle_only_newcomers_are_measured_and_only_on_tasks_that_rotate():
    losses, _ = planted(20, 3, 3)
    rule = Groups()
    early = np.ones((20, 3), dtype=bool)
    early[15:] = early[:, 2] = False
    _, state = play(rule, view_at(1, losses, early), rule.start(20, 3))
    asked = rule.asks(view_at(2, losses), state)["losses"]
    assert asked[15:, :2].all()
    assert asked.sum() == 10
    _, state = play(rule, view_at(2, losses), state)
    assert rule.asks(view_at(2, losses), state) == {}


# --- who comes and goes --------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"metric": "euclidean"}, {"consistent": False}])
def test_newcomers_join_the_cluster_of_their_kind_and_stay_until_the_next_c_step(options):
    losses, kind = planted(24, 3, 3)
    late = np.arange(24) >= 16
    rule = Groups(**options)
    _, states = run(rule, 4, losses, lambda t: np.ones((24, 3)) * ~late[:, None] if t == 1 else None)
    assert (states[0].cluster[late] == -1).all()
    assert (states[1].cluster[~late] == states[0].cluster[~late]).all()
    assert adjusted_rand_score(kind, states[1].cluster) == 1
    assert (states[2].cluster == states[1].cluster).all()
    assert states[3].number == 2
    assert adjusted_rand_score(kind, states[3].cluster) == 1


def test_cosine_compares_directions_and_euclidean_distances():
    losses = np.array([[1.0, 2.0]] * 4 + [[6.0, 5.0]] * 4 + [[4.0, 8.0]])
    early = np.arange(9)[:, None] < [8, 8]
    cosine, euclidean = (
        run(Groups(metric=metric), 2, losses, lambda t: early if t == 1 else None)[1][1].cluster[8]
        for metric in ("cosine", "euclidean")
    )
    assert (cosine, euclidean) == (0, 1)


def test_a_newcomer_whose_losses_are_no_numbers_joins_those_who_lose_most():
    losses = np.array([[1.0, 1.0]] * 4 + [[9.0, 9.0]] * 4 + [[np.nan, np.inf]])
    early = np.arange(9)[:, None] < [8, 8]
    _, states = run(Groups(metric="euclidean"), 2, losses, lambda t: early if t == 1 else None)
    assert states[1].cluster[8] == 1


def test_newcomers_among_inconsistent_tasks_go_by_the_task_of_the_cycle():
    rng = np.random.default_rng(3)
    kind = np.stack([rng.permutation(np.arange(24) % 2) for _ in range(2)], axis=1)
    losses = 1 + kind * [1.0, 9.0] + 0.02 * rng.standard_normal(kind.shape)
    late = np.arange(24) >= 16
    _, states = run(
        Groups(consistent=False, largest=2), 2, losses, lambda t: np.ones((24, 2)) * (~late | (t > 1))[:, None]
    )
    assert adjusted_rand_score(kind[:, 0], states[1].cluster) == 1


def test_a_newcomer_to_a_single_task_goes_by_distance():
    losses = np.array([[1.0, 0.0], [1.1, 0.0], [9.0, 0.0], [9.1, 0.0], [8.0, 0.0]])
    early = np.array([[1, 0]] * 4 + [[0, 0]], dtype=bool)
    _, states = run(Groups(), 2, losses, lambda t: early if t == 1 else None)
    assert states[1].cluster.tolist() == [0, 0, 1, 1, 1]


def test_absent_clients_keep_their_cluster_until_the_cycle_ends():
    losses, kind = planted(24, 3, 3)
    away = np.arange(24) % 2 == 0
    here = np.ones((24, 3), dtype=bool)
    rule = Groups()
    tables, states = run(rule, 3, losses, lambda t: here & ~away[:, None] if t == 2 else here)
    assert all((state.cluster == states[0].cluster).all() for state in states)
    assert not tables[1][away].any()
    state = play(rule, view_at(4, losses, here & ~away[:, None]), states[2])[1]
    assert state.number == 2
    assert (state.cluster[away] == -1).all()
    assert adjusted_rand_score(kind, play(rule, view_at(5, losses), state)[1].cluster) == 1


def test_a_new_task_joins_at_the_next_c_step():
    losses, _ = planted(24, 3, 3)
    tables, states = run(Groups(largest=3), 5, losses, lambda t: np.ones((24, 3)) * [1, 1, t >= 2])
    length = len(states[0].tasks)
    assert not sum(tables[:length])[:, 2].any()
    assert set(states[0].tasks) == {0, 1}
    assert states[length].tasks.tolist() == [0, 1, 2]
    assert tables[length][:, 2].any()


def test_a_task_of_a_single_client_trains_on_it_once_a_cycle():
    losses, _ = planted(12, 2, 2)
    able = np.ones((12, 2), dtype=bool)
    able[1:, 1] = False
    tables, states = run(Groups(largest=2), 6, losses, lambda t: able, rate=0.1)
    assert len(states[0].tasks) == 2
    for cycle in range(3):
        trained = sum(tables[2 * cycle : 2 * cycle + 2])
        assert trained[0, 1] == 1
        assert trained[:, 0].sum() == 2


def test_rounds_with_nobody_there_train_nobody_and_put_a_c_step_off():
    losses, _ = planted(20, 2, 2)
    nobody = np.zeros((20, 2), dtype=bool)
    rule = Groups(largest=2)
    away = (1, 3, 4, 5)
    tables, states = run(rule, 7, losses, lambda t: nobody if t in away else None)
    assert all(rule.asks(view_at(t, losses, nobody), rule.start(20, 2)) == {} for t in away)
    assert [state.round for state in states] == [0, 2, 2, 2, 2, 6, 6]
    assert [state.number for state in states] == [0, 1, 1, 1, 1, 2, 2]
    assert [bool(count.any()) for count in tables] == [t not in away for t in range(1, 8)]


# --- small, equal and strange --------------------------------------------------------


strange = st.sampled_from([0.0, 1.0, -1.0, 1e-9, 3e38, np.nan, np.inf]) | st.floats(0.0, 10.0)


@st.composite
def histories(draw):
    """Losses of few clients, and four rounds in which some of them are there."""
    clients, tasks = draw(st.integers(1, 7)), draw(st.integers(1, 3))
    losses = np.array(draw(st.lists(strange, min_size=clients * tasks, max_size=clients * tasks)))
    able = np.random.default_rng(draw(st.integers(0, 999))).random((4, clients, tasks)) < draw(st.floats(0, 1))
    options = {"consistent": draw(st.booleans()), "standardise": draw(st.booleans())}
    metric = draw(st.sampled_from(["cosine", "euclidean"]))
    return losses.reshape(clients, tasks), able, Groups(**options, metric=metric), draw(st.floats(0.05, 1.5))


@given(histories())
@example((np.full((6, 2), np.nan), np.ones((4, 6, 2), dtype=bool), Groups(), 0.5))
@example((np.ones((6, 2)), np.ones((4, 6, 2), dtype=bool), Groups(), 0.5))
def test_whatever_comes_everybody_there_has_a_cluster_and_draws_follow_the_probabilities(history):
    losses, able, rule, rate = history
    state = rule.start(*losses.shape)
    for t in range(1, 5):
        view = view_at(t, losses, able[t - 1], rate=rate)
        allocation, state = play(rule, view, state)
        count, expected = table_of(allocation), view.capacity[:, None] * allocation.probabilities
        rotating = able[t - 1][:, state.tasks].any(1)
        assert (state.cluster[rotating] >= 0).all()
        assert ((expected > 0) >= (count > 0)).all()
        assert ((expected > 0) <= able[t - 1]).all()
        assert (count.sum(1) <= 1).all()
        np.testing.assert_allclose(expected.sum(0), count.sum(0))
        assert np.isfinite(state.centroids).all()


# --- the same again ------------------------------------------------------------------


def reported(losses, rule=None, rounds=1, **view):
    """What the rule reports in each of the first rounds."""
    rule, found = Groups() if rule is None else rule, []
    state = rule.start(*np.shape(losses))
    for t in range(1, rounds + 1):
        seen = view_at(t, losses, **view)
        _, state = play(rule, seen, state)
        found.append(rule.report(seen, state))
    return found, state


def test_a_clustering_is_reported_in_the_plane_once_with_distances_as_k_means_saw_them():
    losses, _ = planted(10, 2, 2)
    found, state = reported(losses, rounds=2)
    assert found[1] == {}
    clusters = found[0]["clusters"]
    assert clusters["client"] == list(range(10))
    assert clusters["cluster"] == state.cluster.tolist()
    assert sum(clusters["explained"]) == pytest.approx(1, abs=1e-3)
    points, plane = (losses - state.mean) / state.scale, np.array([clusters["x"], clusters["y"]]).T
    np.testing.assert_allclose(pdist(plane), pdist(points), atol=1e-3)


def test_of_many_clients_some_are_reported_and_where_all_are_alike_none():
    losses, _ = planted(1200, 3, 3)
    clusters = reported(losses)[0][0]["clusters"]
    assert len(clusters["client"]) == 500
    assert (clusters["client"][0], clusters["client"][-1]) == (0, 1199)
    assert reported(np.ones((8, 2)))[0][0] == {}


def test_clusters_of_a_single_task_lie_on_a_line():
    losses, _ = planted(12, 2, 2)
    for rule, seen in ((Groups(consistent=False), losses), (Groups(), losses[:, :1])):
        clusters = reported(seen, rule)[0][0]["clusters"]
        assert clusters["explained"] == [1.0, 0.0]
        assert set(clusters["y"]) == {0.0}


@refusals(
    (lambda: Groups(metric="cosin"), "metric", "cosin", "did you mean 'cosine'"),
    (lambda: Groups(metric="manhattan"), "manhattan", "expected one of"),
    (lambda: Groups(largest=0), "largest", "0", "at least 1"),
    (lambda: Groups(largest=2.5), "largest", "2.5", "whole number"),
)
def test_options_that_mean_nothing_are_refused(make, words):
    with refused(*words):
        make()


def test_the_best_clustering_of_few_points_is_found_with_every_seed():
    """Against all ways to divide ten points into three clusters; with ten starts, some seeds miss the best."""
    points = np.random.default_rng(1).normal(size=(10, 3))
    ways = np.array(list(itertools.product(range(3), repeat=10)))
    member = (ways[:, :, None] == np.arange(3)).astype(float)  # [ways, points, clusters]
    member = member[member.any(1).all(1)]

    def spread(member):
        centre = np.einsum("wpk,pd->wkd", member, points) / member.sum(1)[:, :, None]
        return ((points[None] - np.einsum("wpk,wkd->wpd", member, centre)) ** 2).sum((1, 2))

    found = [(k_means(points, 3, seed)[:, None] == np.arange(3))[None].astype(float) for seed in range(12)]
    np.testing.assert_allclose([spread(each)[0] for each in found], spread(member).min())
