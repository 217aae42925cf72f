"""Probabilities of least variance: against a convex solver, against duality, against the conditions of optimality."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy.optimize import minimize, minimize_scalar

from conftest import refusals, refused, view_of
from mmfl.allocation import LeastVariance, LossVariance, ResidualVariance, UpdateVariance, least_variance

RULES = {"losses": LossVariance, "norms": UpdateVariance, "residuals": ResidualVariance}
SIGNALS = pytest.mark.parametrize("signal", RULES)

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


def solved(importance, capacity, budget):
    """The least objective that a general solver finds over the pairs of some importance.

    It moves in units of where it starts, an even spread, and compares with the objective there.
    """
    pairs = np.nonzero(importance)
    own, processors = (importance > 0).sum(1), capacity[importance.any(1)].sum()
    even = np.where(importance > 0, budget / processors / np.maximum(own, 1)[:, None], 0.0)
    start = objective(importance, capacity, even)

    def table(x):
        p = even.copy()
        p[pairs] *= x
        return p

    found = minimize(
        lambda x: objective(importance, capacity, table(x)) / start,
        np.ones(len(pairs[0])),
        jac=lambda x: -(capacity[:, None] * importance**2)[pairs] / even[pairs] / x**2 / start,
        bounds=[(1e-4, None)] * len(pairs[0]),
        constraints=[
            {"type": "ineq", "fun": lambda x: 1 - capacity @ table(x).sum(1) / budget},
            {"type": "ineq", "fun": lambda x: 1 - table(x).sum(1)},
        ],
        method="SLSQP",
        options={"maxiter": 1000, "ftol": 1e-12},
    )
    assert found.success, found.message
    return float(found.fun) * start


@given(problems())
@example((np.array([[1e-9], [1.0], [1e9]]), np.array([3, 1, 2]), 4.0))
@example((np.array([[1.0], [1.0], [2.0]]), np.array([1, 1, 1]), 2.0))
def test_the_conditions_of_karush_kuhn_and_tucker_hold(problem):
    """At a price x of the budget and y_i >= 0 of client i's time, U / p = sqrt(x + y_i), and y_i = 0 if sum_s p < 1."""
    importance, capacity, budget = problem
    p = least_variance(importance, capacity, budget)
    price = [row[row > 0] / chance[row > 0] for row, chance in zip(importance, p, strict=True) if row.any()]
    busy = p[importance.any(1)].sum(1)
    for one in price:
        np.testing.assert_allclose(one, one[0], rtol=1e-12)
    idle = np.array([one[0] for one, time in zip(price, busy, strict=True) if time < 1 - 1e-12])
    always = np.array([one[0] for one, time in zip(price, busy, strict=True) if time >= 1 - 1e-12])
    np.testing.assert_allclose(idle, idle[:1].sum(), rtol=1e-12)
    assert (always >= idle.max(initial=0.0) * (1 - 1e-9)).all()
    if budget < capacity[importance.any(1)].sum() * (1 - 1e-9):
        assert len(idle)


@given(problems())
def test_clients_without_processors_get_nothing_and_change_nothing(problem):
    importance, capacity, budget = problem
    p = least_variance(importance, capacity, budget)
    crowd = np.vstack([importance, 5 * importance])
    q = least_variance(crowd, np.concatenate([capacity, np.zeros_like(capacity)]), budget)
    np.testing.assert_allclose(q, np.vstack([p, np.zeros_like(p)]), rtol=1e-12)


def test_least_variance_of_no_importance_is_no_allocation():
    assert not least_variance(np.zeros((2, 2)), np.array([1, 1]), 1.0).any()


# --- the rules -----------------------------------------------------------------------


@st.composite
def rounds_of(draw):
    """A round with gaps, absent clients, unequal capacities and a budget from 0.1 past V, and a signal with zeros."""
    clients, tasks = draw(st.integers(1, 7)), draw(st.integers(1, 4))
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    sizes = rng.integers(1, 60, (clients, tasks)) * (rng.random((clients, tasks)) < 0.75)
    sizes[rng.integers(clients), rng.integers(tasks)] = 7
    own = (sizes > 0).sum(1)
    capacity = np.minimum(rng.integers(1, tasks + 1, clients), own)
    budget = draw(st.floats(0.1, 1.3 * capacity.sum()) | st.integers(1, int(capacity.sum())))
    signal = rng.lognormal(0, draw(st.sampled_from([0.0, 1.0, 4.0])), sizes.shape)
    signal *= rng.random(sizes.shape) < draw(st.sampled_from([0.0, 0.5, 1.0]))
    return view_of(sizes, capacity, budget), signal


def chances(rule, view, **signals):
    return rule.allocate(view.with_signals(**signals), None)[0].probabilities


def check_constraints(p, view, budget=None):
    """All that must hold of any p; by default all the budget is spent."""
    assert (p >= 0).all()
    assert (p[~view.able] == 0).all()
    assert (p.sum(1) <= 1 + 1e-12).all()
    spent = min(view.budget, view.processors) if budget is None else budget
    assert view.capacity @ p.sum(1) == pytest.approx(spent, abs=1e-12)


@SIGNALS
@given(rounds_of())
def test_every_rule_meets_every_constraint_and_gives_every_able_pair_a_chance(signal, case):
    view, values = case
    p = chances(RULES[signal](), view, **{signal: values})
    check_constraints(p, view)
    assert ((p > 0) == view.able).all()


def unequal_round(seed, rate, **options):
    """Four clients of unequal data and capacity, some of whom lack tasks, and a generator for their signals."""
    rng = np.random.default_rng([seed, round(100 * rate)])
    sizes = rng.integers(1, 60, (4, 3)) * (rng.random((4, 3)) < 0.7)
    sizes[np.arange(4), rng.integers(0, 3, 4)] = 9
    capacity = rng.integers(1, (sizes > 0).sum(1) + 1)
    return view_of(sizes, capacity, rate * capacity.sum(), **options), rng


@SIGNALS
@pytest.mark.parametrize("rate", [0.02, 0.3, 0.8, 1.0, 1.5])
@pytest.mark.parametrize("seed", range(4))
def test_every_rule_finds_the_minimum_of_a_general_solver_over_share_times_signal(signal, rate, seed):
    view, rng = unequal_round(seed, rate)
    sizes, capacity = view.sizes, view.capacity
    values = rng.lognormal(0, 1, (4, 3)) * (rng.random((4, 3)) < 0.8)
    p = chances(RULES[signal](floor=0.05), view, **{signal: values})

    share = sizes / np.maximum(sizes.sum(0), 1)
    values = np.maximum(values, 0.05 * (share * values).sum() / (sizes > 0).any(0).sum())
    importance = share * values / capacity[:, None]
    ours = objective(importance, capacity, p)
    best = solved(importance, capacity, min(view.budget, view.processors))
    assert ours == pytest.approx(best, rel=1e-6)
    assert ours <= best * (1 + 1e-7)


@SIGNALS
@pytest.mark.parametrize("rate", [0.1, 0.5, 1.0])
@pytest.mark.parametrize("seed", range(3))
def test_priorities_minimise_the_sum_over_tasks_of_their_square_times_the_variance(signal, rate, seed):
    """The variance of task s is the sum over its processors of (d x / B)^2 (1 / p - 1)."""
    priority = np.array([4.0, 1.0, 0.3])
    view, rng = unequal_round(seed, rate, priority=priority)
    values, capacity = rng.lognormal(0, 1, (4, 3)), view.capacity
    p = chances(RULES[signal](floor=0.0), view, **{signal: values})
    check_constraints(p, view)

    terms = capacity[:, None] * (view.share * values / capacity[:, None]) ** 2
    ours = float(priority**2 @ np.divide(terms, p, out=np.zeros_like(p), where=p > 0).sum(0))
    best = solved(priority * view.share * values / capacity[:, None], capacity, view.budget)
    assert ours == pytest.approx(best, rel=1e-6)
    assert ours <= best * (1 + 1e-7)
    ignored = chances(RULES[signal](floor=0.0), view_of(view.sizes, capacity, view.budget), **{signal: values})
    worse = float(priority**2 @ np.divide(terms, ignored, out=np.zeros_like(p), where=p > 0).sum(0))
    assert worse > ours


@pytest.mark.parametrize("draw", ["independent", "systematic", "without-repeats"])
def test_what_is_mixed_in_is_divided_by_priority_and_keeps_the_constraints(draw):
    view = view_of([[3, 9, 4], [1, 0, 5], [7, 7, 7]], [3, 1, 2], 2.4, priority=[6.0, 1.0, 2.0])
    signal = np.array([[0.1, 5.0, 1.0], [1.0, 0.0, 2.0], [0.5, 0.5, 0.5]])
    plain, mixed = (chances(LeastVariance("norms", mix=mix, draw=draw), view, norms=signal) for mix in (0.0, 0.25))
    check_constraints(mixed, view)
    even = 0.4 * np.array([[6 / 9, 1 / 9, 2 / 9], [6 / 8, 0, 2 / 8], [6 / 9, 1 / 9, 2 / 9]])
    np.testing.assert_allclose(mixed, 0.75 * plain + 0.25 * even, rtol=1e-12)


@given(rounds_of(), st.floats(0, 1), st.sampled_from([0.0, 1e-6, 0.3]))
@example((view_of([[1, 1], [1, 0]], [2, 1], 3.0), np.zeros((2, 2))), 1.0, 0.0)
def test_mixing_keeps_the_constraints_and_every_pair_above_its_share_of_an_even_spread(case, mix, floor):
    view, values = case
    p = chances(LeastVariance("norms", floor=floor, mix=mix), view, norms=values)
    least_variant = chances(LeastVariance("norms", floor=floor), view, norms=values)
    spent = min(view.budget, view.processors)
    check_constraints(p, view, (1 - mix) * (view.capacity @ least_variant.sum(1)) + mix * spent)
    even = spent / view.processors / np.maximum(view.tasks_of, 1)[:, None] * view.able
    assert (p >= mix * even * (1 - 1e-12)).all()
    np.testing.assert_allclose(p, (1 - mix) * least_variant + mix * even, rtol=1e-12)
    if floor > 0:
        check_constraints(p, view)


@SIGNALS
def test_no_draw_weighs_more_than_twenty_of_an_average_client(signal):
    """Clients of unequal data, a third of them with nothing to learn, and a task that all have nearly solved."""
    rng = np.random.default_rng(0)
    sizes = np.ceil(rng.lognormal(3, 1, (120, 3))).astype(int)
    values = rng.lognormal(0, 0.7, (120, 3)) * (rng.random((120, 3)) < 0.7) * [1, 1, 1e-5]
    view = view_of(sizes, rng.integers(1, 4, 120), 20.0)
    mean = (view.share * values).sum() / 3

    def heaviest(values, **options):
        p = chances(RULES[signal](**options), view, **{signal: values})
        return (view.share / (view.capacity[:, None] * p)).max()

    average = heaviest(np.maximum(values, mean))
    assert heaviest(values) < 20 * average < 10
    assert heaviest(values, floor=1e-6) > 1e4


@given(rounds_of())
def test_without_a_floor_pairs_of_no_signal_get_nothing_and_the_others_all_they_can_take(case):
    view, values = case
    p = chances(LossVariance(floor=0.0), view, losses=values)
    telling = view.able & (values > 0)
    if telling.any():
        assert ((p > 0) == telling).all()
        check_constraints(p, view, min(view.budget, view.capacity[telling.any(1)].sum()))
    else:
        check_constraints(p, view)


@given(rounds_of(), st.floats(1e-30, 1e30) | st.just(-1.0))
def test_neither_the_unit_nor_the_sign_of_the_signal_matters(case, scale):
    view, values = case
    p, q = (chances(UpdateVariance(), view, norms=norms) for norms in (values, scale * values))
    np.testing.assert_allclose(q, p, rtol=1e-9)


@SIGNALS
def test_a_signal_that_is_zero_everywhere_is_like_one_that_is_the_same_everywhere(signal):
    view = view_of([[3, 3, 0], [3, 0, 3], [0, 3, 3]], [1, 2, 1], 2.0)
    p = chances(RULES[signal](), view, **{signal: np.zeros((3, 3))})
    np.testing.assert_allclose(p * view.capacity[:, None], view.able / 3, rtol=1e-12)


NO_NUMBERS = st.sampled_from([np.nan, np.inf, -np.inf])


@given(rounds_of(), st.integers(0, 10**6), NO_NUMBERS, st.sampled_from([0.3, 1.0]), NO_NUMBERS | st.just(1e300))
def test_signals_that_are_no_numbers_count_like_the_largest_of_those_who_can_train(case, seed, bad, share, elsewhere):
    view, values = case
    lost = np.random.default_rng(seed).random(values.shape) < share
    known = view.able & ~lost
    mended = np.where(lost, values[known].max(initial=0.0), values)
    broken = np.where(view.able, np.where(lost, bad, values), elsewhere)
    p, expected = (chances(ResidualVariance(), view, residuals=residuals) for residuals in (broken, mended))
    check_constraints(p, view)
    np.testing.assert_allclose(p, expected, rtol=1e-9)


def test_each_rule_asks_for_its_own_signal_of_everybody_who_can_train_and_for_no_other():
    view = view_of([[10, 0, 5], [20, 30, 0], [0, 40, 10]])
    for signal, rule in RULES.items():
        asked = rule().asks(view, None)
        assert set(asked) == {signal} == set(rule().needs)
        assert (asked[signal] == view.able).all()


@refusals(
    (lambda: LossVariance(floor=-0.1), "floor is -0.1", "[0, 1]"),
    (lambda: UpdateVariance(floor=1.5), "floor is 1.5", "[0, 1]"),
    (lambda: ResidualVariance(mix=1.01), "mix is 1.01", "[0, 1]"),
    (lambda: LossVariance(mix=float("nan")), "mix is nan", "[0, 1]"),
    (lambda: LossVariance(draw="sistematic"), "'sistematic'", "did you mean 'systematic'?"),
)
def test_settings_outside_their_range_are_refused(make, words):
    with refused(*words):
        make()
