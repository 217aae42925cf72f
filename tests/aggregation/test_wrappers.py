"""Rules made of another rule, and the smaller views of a round that they rest on."""

import inspect
import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from conftest import refusals, refused, table_of, toy_task, view_of
from draws import told
from mmfl import Federation
from mmfl.aggregation import (
    AGGREGATIONS,
    AggregationRule,
    AggregationWrapper,
    NormClipping,
    ServerAdam,
    ServerMomentum,
    StalenessWeighted,
    Unbiased,
)
from mmfl.aggregation.noisy import NoisySum
from mmfl.allocation import (
    ALLOCATIONS,
    AllocationRule,
    AllocationWrapper,
    Fair,
    Fixed,
    FixedSplit,
    Full,
    LossVariance,
    Pareto,
    RandomClients,
    RandomProcessors,
    RandomSplit,
    Ranklist,
    ResidualVariance,
    RotatingSplit,
    RoundRobinTasks,
    SequentialTasks,
    UpdateVariance,
    WarmUp,
    sampling,
)
from mmfl.federation import RoundView
from mmfl.federation.availability import Trace
from mmfl.privacy import CentralNoise
from mmfl.randomness import Purpose
from mmfl.registry import build
from mmfl.updates import Trained, Updates

SIZES = np.array([[10, 0, 5], [20, 30, 0], [5, 5, 5], [0, 40, 10], [8, 8, 8]])
CAPACITY = np.array([2, 1, 3, 1, 2])
VALUES = np.random.default_rng(5).lognormal(0, 1, SIZES.shape)

# Rules that spend the budget processor by processor, by client, and those that do not heed it or pick without chances.
PER_PROCESSOR = {
    "random-processors": RandomProcessors(),
    "loss-variance": LossVariance(),
    "update-variance": UpdateVariance(mix=0.3),
    "residual-variance": ResidualVariance(floor=0.2),
    "fair": Fair(),
}
PER_CLIENT = {
    "random-clients": RandomClients(),
    "random-split": RandomSplit(),
    "rotating-split": RotatingSplit(),
    "fixed-split": FixedSplit(),
}
OTHERS = {"full": Full(), "fixed": Fixed(0.6), "ranklist": Ranklist(), "pareto": Pareto(fill=True)}
EVERY = {**PER_PROCESSOR, **PER_CLIENT, **OTHERS}


def measured(view: RoundView) -> RoundView:
    """The view with all signals."""
    return view.with_signals(losses=VALUES, norms=VALUES[::-1].copy(), residuals=2 - np.tanh(VALUES))


def view_at(round=1, budget=2.0, seed=0, sizes=SIZES, capacity=CAPACITY) -> RoundView:
    return measured(view_of(sizes, np.minimum(capacity, (sizes > 0).sum(1)), budget, round=round, seed=seed))


def same(one, other) -> bool:
    """Whether two allocations are equal in all they say."""
    return one.certain == other.certain and all(
        np.array_equal(getattr(one, name), getattr(other, name))
        for name in ("client", "task", "count", "probability", "probabilities")
    )


def chosen(rule: AllocationRule, rounds: int, sizes_at=lambda t: SIZES) -> list[list[int]]:
    """The tasks that train in each round."""
    state, tasks = rule.start(*SIZES.shape), []
    for t in range(1, rounds + 1):
        view = view_at(t, 3.0, sizes=sizes_at(t))
        allocation, state = rule.allocate(view, state)
        state = rule.observe(np.where(table_of(allocation) > 0, VALUES, np.nan), view, state)
        tasks.append(sorted(set(allocation.task.tolist())))
    return tasks


def arriving(*arrivals):
    """Sizes when the tasks arrive in these rounds."""
    return lambda t: SIZES * (np.array(arrivals) <= t)


# --- all the budget to one task ------------------------------------------------------


@pytest.mark.parametrize("name", EVERY)
def test_round_robin_trains_task_t_mod_s_in_round_t_and_no_other(name):
    assert chosen(RoundRobinTasks(EVERY[name]), 7) == [[1], [2], [0], [1], [2], [0], [1]]


def test_round_robin_skips_tasks_that_have_not_arrived():
    rule = RoundRobinTasks(RandomClients())
    assert chosen(rule, 8, arriving(1, 1, 5)) == [[1], [0], [1], [0], [2], [0], [1], [2]]
    assert chosen(rule, 5, arriving(4, 1, 1)) == [[2], [1], [2], [1], [2]]
    assert chosen(rule, 4, arriving(3, 9, 9)) == [[], [], [0], [0]]


def test_sequential_tasks_follow_each_other_and_the_last_goes_on():
    assert chosen(SequentialTasks(RandomClients(), 2), 8) == [[0], [0], [1], [1], [2], [2], [2], [2]]
    assert chosen(SequentialTasks(Full(), 1), 4) == [[0], [1], [2], [2]]
    assert chosen(SequentialTasks(RandomSplit()), 3) == [[0], [0], [0]]


def test_a_sequential_task_that_has_not_arrived_leaves_its_rounds_to_another():
    rule = SequentialTasks(RandomClients(), 2)
    assert chosen(rule, 6, arriving(2, 1, 1)) == [[1], [0], [1], [1], [2], [2]]
    assert chosen(rule, 8, arriving(1, 1, 7)) == [[0], [0], [1], [1], [1], [1], [2], [2]]
    assert chosen(rule, 3, arriving(9, 9, 9)) == [[], [], []]


@pytest.mark.parametrize("name", PER_PROCESSOR)
@given(st.floats(0.1, 9.0), st.integers(1, 9))
def test_all_the_budget_goes_to_the_one_task_as_far_as_there_are_clients(name, budget, round):
    view = view_at(round, budget)
    rule = RoundRobinTasks(PER_PROCESSOR[name])
    allocation, _ = rule.allocate(view, rule.start(*SIZES.shape))
    p, task = allocation.probabilities, round % 3
    able = SIZES[:, task] > 0
    assert ((p > 0) == (able[:, None] & (np.arange(3) == task))).all()
    assert CAPACITY @ p.sum(1) == pytest.approx(min(budget, able.sum()), abs=1e-12)
    assert (CAPACITY * p[:, task] <= 1 + 1e-12).all()


@pytest.mark.parametrize("name", PER_CLIENT)
@given(st.floats(0.1, 9.0), st.integers(1, 9), st.integers(0, 99))
def test_as_many_clients_as_the_budget_train_the_one_task_as_far_as_there_are_any(name, budget, start, seed):
    rule = RoundRobinTasks(PER_CLIENT[name])
    state = rule.start(*SIZES.shape)
    for t in range(start, start + 3):
        allocation, state = rule.allocate(view_at(t, budget, seed), state)
        able = (SIZES[:, t % 3] > 0).sum()
        drawn = min(max(1, round(budget)), able)
        assert len(allocation) == drawn
        assert (CAPACITY * allocation.probabilities.sum(1)).sum() == pytest.approx(drawn)


def outcomes(rule, state, view, per_processor):
    """Every outcome of a rule on one task, with its chance: each processor drawn or not, or each order of clients."""
    clients = len(view.sizes)
    if not per_processor:
        orders = list(itertools.permutations(range(clients)))
        for order in orders:
            yield 1 / len(orders), rule.allocate(told(view, clients=order, tasks=np.zeros(clients), parts=order), state)
        return
    expects = rule.allocate(view, state)[0].probabilities.sum(1) * view.capacity
    for drawn in itertools.product([False, True], repeat=clients):
        chance = np.prod(np.where(drawn, expects, 1 - expects))
        if chance > 0:
            u = np.where(drawn, expects / 2, (1 + expects) / 2)
            yield chance, rule.allocate(told(view, tasks=u), state)


UPDATES = torch.from_numpy(np.random.default_rng(3).normal(size=(5, 3, 4)))


def step(allocation, view, task) -> np.ndarray:
    """The step of the unbiased aggregation when client i's update for task s is UPDATES[i, s]."""
    client = allocation.client[allocation.rows(task)]
    updates = Updates.of(task, Trained(client, UPDATES[client, task], np.ones(len(client)), client), allocation)
    return -Unbiased().aggregate(torch.zeros(4, dtype=torch.float64), updates, view, None)[0].numpy()


@pytest.mark.parametrize("name", [*PER_PROCESSOR, *PER_CLIENT, "fixed", "full"])
@pytest.mark.parametrize("budget", [0.7, 2.0, 3.0, 9.0])
def test_over_all_draws_one_task_gets_its_expected_counts_and_its_full_step(name, budget):
    rule, view = RoundRobinTasks(EVERY[name]), view_at(4, budget)
    state, mean, count = rule.start(*SIZES.shape), 0.0, 0.0
    total = 0.0
    for chance, (allocation, _) in outcomes(rule, state, view, name in PER_PROCESSOR or name == "fixed"):
        total += chance
        count += chance * table_of(allocation)
        mean += chance * step(allocation, view, task=1)
        p = allocation.probabilities
    assert total == pytest.approx(1)
    np.testing.assert_allclose(count, view.capacity[:, None] * p, atol=1e-12)
    np.testing.assert_allclose(mean, view.share[:, 1] @ UPDATES[:, 1].numpy(), atol=1e-12)


def test_full_participation_in_one_task_is_certain_and_a_draw_is_not():
    for inner, certain in ((Full(), True), (RandomProcessors(), False), (WarmUp(RandomClients()), True)):
        allocation, _ = RoundRobinTasks(inner).allocate(view_at(1), None)
        assert allocation.certain is certain
    np.testing.assert_allclose(allocation.probabilities, (SIZES * [0, 1, 0] > 0) / CAPACITY[:, None])


# --- a first round with everyone -----------------------------------------------------


@pytest.mark.parametrize("name", EVERY)
def test_a_warm_up_trains_everyone_on_everything_for_certain_and_asks_for_nothing(name):
    rule = WarmUp(EVERY[name])
    state, view = rule.start(*SIZES.shape), view_of(SIZES, CAPACITY, 2.0)
    assert rule.asks(view, state) == {}
    allocation, after = rule.allocate(view, state)
    assert after is state
    assert allocation.certain
    assert (table_of(allocation) == (SIZES > 0)).all()
    np.testing.assert_array_equal(allocation.probabilities, (SIZES > 0) / CAPACITY[:, None])


@pytest.mark.parametrize("name", EVERY)
def test_after_a_warm_up_the_inner_rule_decides_with_what_it_learnt_there(name):
    inner, rule = EVERY[name], WarmUp(EVERY[name])
    first = view_at(1)
    losses = np.where(SIZES > 0, VALUES, np.nan)
    state = rule.observe(losses, first, rule.allocate(first, rule.start(*SIZES.shape))[1])
    own = inner.observe(losses, first, inner.start(*SIZES.shape))
    assert repr(state) == repr(own)
    assert rule.needs == inner.needs
    for t in (2, 3, 4):
        view = view_at(t)
        asked, expected = rule.asks(view, state), inner.asks(view, own)
        assert asked.keys() == expected.keys()
        assert all((asked[signal] == expected[signal]).all() for signal in asked)
        (allocation, state), (alone, own) = rule.allocate(view, state), inner.allocate(view, own)
        assert same(allocation, alone)
        seen = np.where(table_of(alone) > 0, VALUES, np.nan)
        state, own = rule.observe(seen, view, state), inner.observe(seen, view, own)
        assert repr(state) == repr(own)


def test_wrappers_wrap_each_other():
    warm_then_turns = WarmUp(RoundRobinTasks(RandomProcessors()))
    assert chosen(warm_then_turns, 1) == [[0, 1, 2]]
    later = chosen(warm_then_turns, 9)[1:]
    assert all(set(tasks) <= {t % 3} for t, tasks in enumerate(later, 2))
    assert any(later)
    assert chosen(RoundRobinTasks(WarmUp(RandomClients())), 4) == [[1], [2], [0], [1]]


# --- what is refused -----------------------------------------------------------------


@refusals(
    (lambda: RoundRobinTasks("random-clients"), "'round-robin-tasks'", "inner is 'random-clients'", "an allocation"),
    (lambda: SequentialTasks(None), "'sequential-tasks'", "inner is None", "an allocation"),
    (lambda: WarmUp(3), "'warm-up'", "inner is 3", "an allocation"),
    (lambda: SequentialTasks(RandomClients(), 0), "'sequential-tasks'", "rounds is 0", "at least 1"),
    (lambda: SequentialTasks(RandomClients(), 1.5), "'sequential-tasks'", "rounds is 1.5", "whole number"),
    (lambda: build("allocation", "warm-up", ALLOCATIONS), "'warm-up'", "inner"),
    (
        lambda: build("allocation", {"name": "warm-up", "inner": "random-clint"}, ALLOCATIONS),
        "'random-clint'",
        "did you mean 'random-clients'?",
    ),
)
def test_a_wrapper_of_nothing_that_allocates_is_refused(make, words):
    with refused(*words):
        make()


def test_a_wrapper_is_configured_by_the_name_or_the_table_of_its_inner_rule():
    rule = build("allocation", {"name": "round-robin-tasks", "inner": "update-variance"}, ALLOCATIONS)
    assert isinstance(rule.inner, UpdateVariance)
    inner = {"name": "loss-variance", "mix": 0.25, "draw": "systematic"}
    rule = build("allocation", {"name": "sequential-tasks", "rounds": 3, "inner": inner}, ALLOCATIONS)
    assert (rule.rounds, rule.inner.mix, rule.inner.draw) == (3, 0.25, sampling.systematic)


# --- smaller views -------------------------------------------------------------------


@given(st.integers(0, 10**6), st.integers(1, 6), st.integers(1, 4))
def test_a_view_of_some_tasks_keeps_their_sizes_and_shares_and_as_many_processors_as_they_need(seed, clients, tasks):
    rng = np.random.default_rng(seed)
    sizes = rng.integers(0, 4, (clients, tasks))
    capacity = np.minimum(rng.integers(1, tasks + 1, clients), (sizes > 0).sum(1))
    view = view_of(sizes, capacity, 2.5, round=7, seed=3, losses=rng.random(sizes.shape))
    marked = rng.random(tasks) < 0.5
    some = view.only(marked)
    assert (some.sizes[:, marked] == sizes[:, marked]).all()
    assert (some.share[:, marked] == view.share[:, marked]).all()
    assert not some.sizes[:, ~marked].any()
    assert not some.share[:, ~marked].any()
    assert (some.capacity == np.minimum(capacity, (sizes[:, marked] > 0).sum(1))).all()
    assert (some.budget, some.round, some.seed) == (2.5, 7, 3)
    assert some.losses is view.losses
    assert (some.uniform(Purpose.TASKS, 2) == view.uniform(Purpose.TASKS, 2)).all()
    assert (view.sizes == sizes).all()


TASKS = [toy_task("red"), toy_task("green")]


def federation(**options) -> Federation:
    return Federation(TASKS, 4, **options)


def present(made: Federation, rounds) -> list[list[int]]:
    return [np.flatnonzero(made.view(t, rate=0.5, seed=0).present).tolist() for t in rounds]


def test_a_client_is_there_from_its_arrival_to_its_departure_and_when_it_is_available():
    made = federation(arrivals=[1, 2, 3, 4], departures=[0, 4, 3, 6])
    assert present(made, (1, 2, 3, 4, 5, 6)) == [[0], [0, 1], [0, 1], [0, 3], [0, 3], [0]]
    made = federation(departures=[0, 3, 0, 0], availability=Trace([[1, 1, 1, 0], [1, 1, 0, 1]]))
    assert present(made, (1, 2, 3, 4)) == [[0, 1, 2], [0, 1, 3], [0, 2], [0, 3]]


def test_shares_capacity_and_budget_are_those_of_who_has_not_departed():
    made = federation(departures=[0, 3, 0, 3], lacks=[[0, 0], [0, 0], [0, 1], [0, 0]], capacity=[2, 1, 1, 2])
    before, after = (made.view(t, rate=0.5, seed=0) for t in (2, 3))
    np.testing.assert_allclose(before.share, made.sizes / made.sizes.sum(0))
    np.testing.assert_allclose(after.share.sum(0), 1)
    np.testing.assert_allclose(after.share[[0, 2]], made.sizes[[0, 2]] / made.sizes[[0, 2]].sum(0))
    assert not after.share[[1, 3]].any()
    assert (before.capacity.tolist(), after.capacity.tolist()) == ([2, 1, 1, 2], [2, 0, 1, 0])
    assert (before.budget, after.budget) == (3.0, 1.5)


# --- what a wrapper does not change, its inner rule answers ------------------------------

CHANGED = {
    ServerMomentum: {"start", "aggregate"},
    ServerAdam: {"start", "aggregate"},
    NormClipping: {"start", "aggregate", "residuals", "report", "sums_updates"},
    NoisySum: {"start", "aggregate", "spent"},
    StalenessWeighted: {"start", "aggregate", "sums_updates"},
    RoundRobinTasks: {"allocate"},
    SequentialTasks: {"allocate"},
    WarmUp: {"asks", "allocate"},
}


def public(kind: type) -> dict[str, object]:
    return {name: member for name, member in vars(kind).items() if not name.startswith("_")}


def recorder(kind: type):
    """A rule whose methods return their name and arguments, and whose attributes are like nobody else's."""

    def method(name):
        return lambda self, *arguments: (name, arguments)

    members = {name: method(name) if inspect.isfunction(each) else object() for name, each in public(kind).items()}
    return type("Recorder", (kind,), members)()


@pytest.mark.parametrize("wrapper", CHANGED, ids=lambda wrapper: wrapper.__name__)
def test_whatever_a_wrapper_does_not_change_its_inner_rule_answers_with_its_own_state(wrapper):
    kind = AggregationRule if issubclass(wrapper, AggregationRule) else AllocationRule
    inner = recorder(kind)
    rule = NoisySum(inner, CentralNoise(1.0, 1.0), True) if wrapper is NoisySum else wrapper(inner)
    left = public(kind).keys() - CHANGED[wrapper]
    assert len(left) >= 4
    for name in left:
        if not inspect.isfunction(vars(kind)[name]):
            assert getattr(rule, name) is getattr(inner, name)
            continue
        given = {each: object() for each in list(inspect.signature(getattr(kind, name)).parameters)[1:]}
        given |= {"view": view_at(2)} if "view" in given else {}
        given |= {"state": SimpleNamespace(inner=object())} if "state" in given else {}
        given |= {"states": [SimpleNamespace(inner=object())]} if "states" in given else {}
        called, received = getattr(rule, name)(**given)
        assert called == name
        for (argument, value), seen in zip(given.items(), received, strict=True):
            if argument == "state" and kind is AggregationRule:
                assert seen is value.inner
            elif argument == "states":
                assert [seen[0]] == [value[0].inner]
            elif argument == "view" and wrapper in (RoundRobinTasks, SequentialTasks):
                assert np.flatnonzero(seen.able.any(0)).tolist() == [rule.task(value)]
            else:
                assert seen is value


def test_every_rule_around_another_is_a_wrapper_and_tested_as_one():
    rules = {**ALLOCATIONS, **AGGREGATIONS}.values()
    around = {rule for rule in rules if "inner" in inspect.signature(rule).parameters}
    assert around | {NoisySum} == set(CHANGED)  # it comes from an option of the run, and not by name
    assert all(issubclass(rule, AggregationWrapper | AllocationWrapper) for rule in around)
