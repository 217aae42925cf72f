"""The draws: their distributions, exactly and as drawn; their limits; their addresses."""

import itertools
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy.stats import chisquare

from conftest import refusals, refused, view_of
from draws import outcomes, pieces, systematic_at, told, without_repeats_at
from mmfl.allocation import Fixed, LossVariance, RandomProcessors
from mmfl.allocation.sampling import DRAWS, ascending, draw_named, independent, systematic, without_repeats
from mmfl.randomness import Purpose

P = np.array([[0.3, 0.2, 0.1], [0.0, 0.6, 0.4], [0.25, 0.0, 0.0]])
EVERY = pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
LAST = 1 - 2.0**-53  # the largest number that a uniform draw can give


def constant_on(piece, drawn):
    """The draw on a piece of u, with its width: the same at its first, a middle and its last point."""
    low, high = piece
    at = [drawn(float(low)), drawn(float((low + high) / 2)), drawn(float(high) - 2.0**-53)]
    assert (at[0] == at[1]).all()
    assert (at[2] == at[1]).all()
    return high - low, at[1]


def mean(weighted):
    """The exact mean of tables of counts."""
    return sum(weight * np.vectorize(Fraction, otypes=[object])(count.astype(object)) for weight, count in weighted)


@st.composite
def eighths(draw, clients=4):
    """Probabilities that are whole numbers of eighths, in rows of at most 1, and capacities from 0 to 3."""
    n, tasks = draw(st.integers(1, clients)), draw(st.integers(1, 3))
    cuts = st.lists(st.integers(0, 8), min_size=tasks, max_size=tasks).map(sorted)
    rows = draw(st.lists(cuts, min_size=n, max_size=n))
    capacity = draw(st.lists(st.integers(0, 3), min_size=n, max_size=n))
    return np.diff(rows, axis=1, prepend=0) / 8, np.array(capacity)


def expected(p, capacity):
    return np.vectorize(Fraction, otypes=[object])(p * capacity[:, None])


@given(st.lists(st.floats(0, 1) | st.sampled_from([0.25, 0.5]), max_size=40))
def test_clients_with_equal_numbers_stay_in_their_order(numbers):
    expected = sorted(range(len(numbers)), key=lambda place: (numbers[place], place))
    assert ascending(np.array(numbers)).tolist() == expected


# --- marginals, exactly --------------------------------------------------------------


@given(eighths())
@example((np.array([[1.0], [1.0]]), np.array([1, 3])))
@example((np.array([[0.875, 0.125], [0.0, 0.5]]), np.array([3, 1])))
def test_systematic_draws_have_the_expected_counts_in_every_order_of_the_clients(case):
    p, capacity = case
    for order in itertools.permutations(range(len(p))):
        lengths = (p * capacity[:, None])[list(order)].ravel()
        draws = [
            constant_on(piece, lambda u, order=order: systematic_at(u, p, capacity, order)) for piece in pieces(lengths)
        ]
        assert sum(width for width, _ in draws) == 1
        assert (mean(draws) == expected(p, capacity)).all()


@given(eighths(clients=1))
@example((np.array([[0.25, 0.5, 0.25]]), np.array([2])))
def test_draws_without_repeats_have_the_expected_counts(case):
    p, capacity = case
    lengths = (p * capacity[:, None]).ravel()
    draws = [constant_on(piece, lambda u: without_repeats_at(u, p, capacity)) for piece in pieces(lengths)]
    assert (mean(draws) == expected(p, capacity)).all()


@given(eighths(clients=2))
def test_independent_draws_have_the_joint_distribution_of_independent_processors(case):
    """Eighths change nowhere but at eighths: one number in each, for every processor, is all there is to try."""
    p, capacity = case
    capacity = np.minimum(capacity, [2, 1][: len(p)])
    columns = int(capacity.max())
    found = Counter()
    for numbers in itertools.product((np.arange(8) + 0.5) / 8, repeat=int(capacity.sum())):
        table = np.zeros((len(p), columns))
        table[np.arange(columns) < capacity[:, None]] = numbers
        drawn = independent(p, told(view_of(p > 0, capacity), tasks=table))
        found[drawn.tobytes()] += Fraction(1, 8 ** len(numbers))
    assert found == outcomes("independent", p, capacity)


# --- as drawn ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "p", "capacity"),
    [
        ("independent", P, [2, 1, 1]),
        ("systematic", np.array([[0.25, 0.5], [0.0, 0.375], [0.625, 0.0]]), [1, 2, 1]),
        ("without-repeats", np.array([[0.25, 0.5], [0.375, 0.5]]), [1, 2]),
    ],
)
def test_draws_are_as_frequent_as_all_random_numbers_alike_say(name, p, capacity):
    """Whatever the joint distribution: of processors, of orders of clients, of first points."""
    capacity, rounds = np.array(capacity), 4000
    chances = outcomes(name, p, capacity)
    drawn = Counter(DRAWS[name](p, view_of(p > 0, capacity, round=t)).tobytes() for t in range(rounds))
    keys = [key for key, chance in chances.items() if chance > 1e-12]
    assert sum(chances.values()) == pytest.approx(1)
    assert set(drawn) <= set(keys)
    assert chisquare([drawn[key] for key in keys], [float(chances[key]) * rounds for key in keys]).pvalue > 1e-3


# --- limits --------------------------------------------------------------------------


@st.composite
def tables(draw):
    """Any probabilities with gaps, rows that are full or not, and capacities from 0 to 3."""
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    clients, tasks = draw(st.integers(1, 8)), draw(st.integers(1, 4))
    p = rng.dirichlet(np.full(tasks + 1, draw(st.sampled_from([0.3, 1.0]))), clients)[:, :tasks]
    p *= rng.random((clients, tasks)) < 0.7
    full = (rng.random(clients) < 0.3) & p.any(1)
    p[full] /= p[full].sum(1, keepdims=True)
    return p, rng.integers(0, 4, clients), draw(st.integers(0, 10**6))


def check_limits(count, p, capacity):
    assert count.dtype == np.int64
    assert (count >= 0).all()
    assert (count.sum(1) <= capacity).all()
    assert not count[p == 0].any()


def between(count, mean):
    """Whether counts are the floor or the ceiling of their means, however these were rounded."""
    return ((count >= np.floor(mean - 1e-9)) & (count <= np.ceil(mean + 1e-9))).all()


@EVERY
@given(tables())
def test_no_client_uses_more_processors_than_it_has_nor_takes_a_task_of_probability_zero(draw, case):
    p, capacity, seed = case
    check_limits(draw(p, view_of(p > 0, capacity, seed=seed)), p, capacity)


@pytest.mark.parametrize("draw", [systematic, without_repeats])
@given(tables())
@example((np.array([[0.5, 0.5], [1.0, 0.0]]), np.array([2, 1]), 0))
def test_systematic_draws_spend_the_floor_or_the_ceiling_of_what_each_client_expects_and_of_all(draw, case):
    p, capacity, seed = case
    count = draw(p, view_of(p > 0, capacity, seed=seed))
    mean = p * capacity[:, None]
    assert draw is without_repeats or between(count.sum(), mean.sum())
    assert between(count.sum(1), mean.sum(1))
    assert between(count, mean)


@st.composite
def whole(draw):
    """Probabilities in tenths whose expected counts sum to a whole number, though their floats may not."""
    n, tasks = draw(st.integers(1, 7)), draw(st.integers(1, 3))
    cuts = st.lists(st.integers(0, 10), min_size=tasks, max_size=tasks).map(sorted)
    tenths = np.diff(draw(st.lists(cuts, min_size=n, max_size=n)), axis=1, prepend=0)
    capacity = np.array([*draw(st.lists(st.integers(0, 3), min_size=n, max_size=n)), 1])
    last = -(tenths.sum(1) @ capacity[:-1]) % 10
    tenths = np.vstack([tenths, [last] + [0] * (tasks - 1)])
    return tenths / 10, capacity, int(tenths.sum(1) @ capacity) // 10


@given(whole(), st.sampled_from([0.0, 2.0**-53, 2.0**-30, 0.1, 0.5, 0.7, 1 - 2.0**-30, LAST]) | st.floats(0, LAST))
@example((np.array([[0.1, 0.1, 0.1], [0.7, 0.0, 0.0]]), np.array([1, 1]), 1), LAST)
@example((np.full((40, 1), 0.1), np.full(40, 3), 12), LAST)
@example((np.full((40, 1), 0.1), np.full(40, 3), 12), 0.0)
@example((np.array([[0.7, 0.1, 0.2]] * 9), np.ones(9, dtype=int), 9), 0.0)
def test_a_whole_budget_is_spent_exactly_wherever_the_first_point_falls_and_however_sums_are_rounded(case, u):
    p, capacity, budget = case
    count = systematic_at(u, p, capacity)
    assert count.sum() == budget
    assert (count >= 0).all()
    assert not count[(p == 0) | (capacity == 0)[:, None]].any()


@given(st.integers(0, 10**6), st.integers(1, 30), st.integers(1, 9), st.sampled_from([RandomProcessors, LossVariance]))
def test_a_rule_with_systematic_draws_and_a_whole_budget_trains_exactly_so_many(seed, clients, tenths, rule):
    rng = np.random.default_rng(seed)
    capacity = np.append(rng.integers(1, 4, clients), 0)
    capacity[-1] = -capacity.sum() % 10  # so that any number of tenths of the processors is a whole number
    sizes = np.ones((clients + 1, 3)) * (capacity > 0)[:, None]
    budget = tenths * 0.1 * capacity.sum()
    view = view_of(sizes, capacity, budget, seed=seed, losses=rng.lognormal(0, 2, sizes.shape))
    allocation, _ = rule(draw="systematic").allocate(view, None)
    assert allocation.count.sum() == tenths * capacity.sum() // 10


def test_a_processor_takes_one_task_even_where_rounding_makes_two_intervals_overlap():
    """The first interval ends just past u; with its end rounded down, the second begins at u."""
    for seed in range(99):
        view = view_of([[1, 1]], seed=seed)
        u = view.uniform(Purpose.TASKS)[0, 0]
        first = np.nextafter(u, 1)
        if 0.25 < u < 0.5 and first + 0.5 - 0.5 <= u:
            assert independent(np.array([[first, 0.5]]), view).sum() == 1


# --- addresses -----------------------------------------------------------------------


@pytest.mark.parametrize("draw", [independent, without_repeats])
@given(st.integers(0, 10**6), st.integers(1, 50))
def test_a_clients_draw_does_not_depend_on_the_other_clients(draw, seed, round):
    alone = draw(P[:1], view_of([[1, 1, 1]], 2, seed=seed, round=round))
    crowd = draw(np.vstack([P, P]), view_of(np.ones((6, 3)), [2, 3, 1, 1, 2, 3], seed=seed, round=round))
    assert (alone[0] == crowd[0]).all()


@EVERY
@pytest.mark.parametrize("step", [{"round": 1}, {"seed": 1}])
def test_draws_of_neighbouring_rounds_and_of_neighbouring_seeds_are_independent(draw, step):
    """One client that trains half the time: the four outcomes of two draws are equally frequent."""
    p, pairs = np.array([[0.5]]), Counter()
    for t in range(0, 1000, 2):
        at = {"round": 1, "seed": 0}
        key = next(iter(step))
        draws = [draw(p, view_of([[1]], **{**at, key: at[key] + t + late})).item() for late in (0, 1)]
        pairs[tuple(draws)] += 1
    assert chisquare([pairs[a, b] for a in (0, 1) for b in (0, 1)]).pvalue > 1e-3


# --- names ---------------------------------------------------------------------------


def test_a_draw_of_ones_own_is_used_as_it_is():
    def everybody(probabilities, view):
        return (probabilities > 0).astype(np.int64)

    allocation, _ = Fixed(0.1, draw=everybody).allocate(view_of([[1, 0], [1, 1]]), None)
    assert len(allocation) == 3


@refusals(
    (lambda: RandomProcessors(draw="sistematic"), "unknown draw 'sistematic'", "did you mean 'systematic'?"),
    (lambda: draw_named("without_repeats"), "did you mean 'without-repeats'?"),
    (lambda: draw_named(""), "unknown draw ''", "independent, systematic, without-repeats"),
    (lambda: draw_named(None), "unknown draw 'None'", "independent, systematic, without-repeats"),
)
def test_a_draw_that_nobody_knows_is_refused_with_the_nearest_name(make, words):
    with refused(*words):
        make()
