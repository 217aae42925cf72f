"""The independent draw: its distribution, its limits, its addresses."""

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from conftest import every_draw, view_of
from mmfl.randomness import Purpose
from mmfl.sampling import independent

P = np.array([[0.3, 0.2, 0.1], [0.0, 0.6, 0.4], [0.25, 0.0, 0.0]])


def test_independent_draw_has_the_joint_distribution_of_independent_processors():
    capacity, rounds = np.array([2, 1, 1]), 4000
    chances = Counter()
    for chance, count in every_draw(P, capacity):
        chances[count.tobytes()] += chance
    drawn = Counter(independent(P, view_of(P > 0, capacity, round=t)).tobytes() for t in range(rounds))
    keys = [key for key, chance in chances.items() if chance > 1e-12]
    assert set(drawn) <= set(keys)
    expected = np.array([chances[key] for key in keys]) * rounds
    assert chisquare([drawn[key] for key in keys], expected).pvalue > 1e-3


@given(st.integers(0, 10**6), st.integers(1, 6), st.integers(1, 4))
def test_no_client_uses_more_processors_than_it_has_nor_takes_a_task_of_probability_zero(seed, clients, tasks):
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.ones(tasks + 1), clients)[:, :tasks] * (rng.random((clients, tasks)) < 0.7)
    capacity = rng.integers(0, 4, clients)
    count = independent(p, view_of(p > 0, capacity, seed=seed))
    assert (count >= 0).all()
    assert (count.sum(1) <= capacity).all()
    assert not count[p == 0].any()


def test_a_processor_takes_one_task_even_where_rounding_makes_two_intervals_overlap():
    """The first interval ends just past u; with its end rounded down, the second begins at u."""
    for seed in range(99):
        view = view_of([[1, 1]], seed=seed)
        u = view.uniform(Purpose.TASKS)[0, 0]
        first = np.nextafter(u, 1)
        if 0.25 < u < 0.5 and first + 0.5 - 0.5 <= u:
            assert independent(np.array([[first, 0.5]]), view).sum() == 1


@given(st.integers(0, 10**6), st.integers(1, 50))
def test_a_clients_draw_does_not_depend_on_the_other_clients(seed, round):
    alone = independent(P[:1], view_of([[1, 1, 1]], 2, seed=seed, round=round))
    crowd = independent(np.vstack([P, P]), view_of(np.ones((6, 3)), [2, 3, 1, 1, 2, 3], seed=seed, round=round))
    assert (alone[0] == crowd[0]).all()


def test_draws_differ_between_rounds_and_between_seeds_and_nowhere_else():
    p, sizes = np.full((20, 2), 0.4), np.ones((20, 2))
    one, again, later, other = (
        independent(p, view_of(sizes, seed=seed, round=round)) for seed, round in ((0, 1), (0, 1), (0, 2), (1, 1))
    )
    assert (one == again).all()
    assert not (one == later).all()
    assert not (one == other).all()
