"""The pool of clients: sizes, capacities, gaps, arrivals and availability, round by round."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mmfl
from conftest import refusals, refused, toy_task
from mmfl import Federation, Task, data, models, partition
from mmfl.data import from_arrays
from mmfl.federation.arrivals import exponential
from mmfl.federation.availability import Bernoulli, Trace
from mmfl.randomness import Purpose, generator

TASKS = [toy_task("red"), toy_task("green"), toy_task("blue")]


def owned(owners: int, name="owned"):
    """A task whose 60 examples belong to `owners` people."""
    x, owner = np.random.default_rng(0).random((60, 3)), np.arange(60) % owners
    return toy_task(name, data=from_arrays(x, owner % 4, owner))


def belonging(name, owner, test=None, rows=4):
    """A task whose owners have `rows` examples each, all with the owner's place in the list as label and input."""
    place = np.repeat(np.arange(len(owner)), rows)
    x, y, names = np.repeat(place[:, None], 3, 1).astype(float), place % 4, np.asarray(owner)[place]
    if test is not None:
        test = (x[:1].repeat(len(test), 0), y[:1].repeat(len(test)), test)
    return toy_task(name, data=from_arrays(x, y, names, test=test))


def held(made: Federation, task: int, client: int) -> set[int]:
    """The places in the list of owners whose examples a client holds."""
    return set(made.tasks[task].data.x[made.shards[task].of(client), 0].int().tolist())


def federation(clients=12, tasks=TASKS, **options) -> Federation:
    return Federation(tasks, clients, **options)


# --- who holds what ------------------------------------------------------------------


def test_sizes_count_the_rows_that_each_client_holds():
    made = federation(7, partition={"red": partition.iid([1, 2, 3, 4, 5, 6, 7]), "blue": partition.labels(0.5, 2)})
    assert made.sizes.shape == (7, 3)
    assert made.sizes[:, 0].tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert made.sizes[:, 1].sum() == 60
    assert (made.sizes[:, 2] == 2).all()
    assert all((made.sizes[:, s] == made.shards[s].sizes).all() for s in range(3))


def test_clients_are_the_owners_where_the_data_has_them():
    made = Federation([owned(5)])
    assert (made.clients, made.test_shards[0].sizes.sum()) == (5, 10)
    assert Federation([owned(5), toy_task()]).sizes.shape == (5, 2)
    assert federation(3, [owned(5)]).clients == 3


# --- owners, by name -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other", "names"),
    [
        (["ann", "bob", "cat"], ["bob", "cat", "dan"], ["ann", "bob", "cat", "dan"]),
        (["cat", "ann", "bob"], ["dan", "bob", "cat"], ["ann", "bob", "cat", "dan"]),
        ([3, 7], [7, 9], [3, 7, 9]),
        ([3.0, 7.0], [7, 9], [3, 7, 9]),
        ([20, 100], [3, 20], [3, 20, 100]),
        (["ann"], ["bob"], ["ann", "bob"]),
        (["ann", "bob"], ["bartholomew", "bob"], ["ann", "bartholomew", "bob"]),
    ],
)
def test_clients_are_the_owners_of_all_tasks_and_who_owns_nothing_of_a_task_lacks_it(one, other, names):
    made = Federation([belonging("one", one), belonging("other", other), toy_task("all")])
    assert made.client_names.tolist() == names
    for task, owners in enumerate((one, other)):
        expected = [{owners.index(name)} if name in owners else set() for name in names]
        assert [held(made, task, client) for client in range(made.clients)] == expected
        tested = [made.test_shards[task].of(client) for client in range(made.clients)]
        inputs = made.tasks[task].data.x_test[:, 0].int()
        assert [set(inputs[rows].tolist()) for rows in tested] == expected
    assert (made.sizes[:, 2] > 0).all()
    assert [made.shards[2].sizes.sum(), made.clients] == [60, len(names)]


def test_fewer_clients_than_owners_are_the_same_owners_in_every_task():
    names = [f"person {n}" for n in range(12)]
    tasks = [belonging("one", names), belonging("other", names[::-1]), belonging("third", names[:6])]
    seen = set()
    for seed in range(5):
        made = Federation(tasks, 7, seed=seed)
        assert made.clients == 7
        for client, name in enumerate(made.client_names.tolist()):
            assert held(made, 0, client) == {names.index(name)}
            assert held(made, 1, client) == {11 - names.index(name)}
            assert held(made, 2, client) == ({names.index(name)} if name in names[:6] else set())
        seen.add(tuple(made.client_names.tolist()))
    assert len(seen) == 5


def test_the_same_owners_in_all_tasks_are_divided_as_each_task_alone_would_be():
    tasks = [belonging("one", ["b", "c", "a"]), belonging("other", ["c", "a", "b"])]
    made = Federation(tasks, partition=partition.owners(most=2), seed=3)
    for s, task in enumerate(tasks):
        alone = partition.owners(most=2)(task.data, 3, generator(3, Purpose.PARTITION, s))
        assert made.shards[s].index.tolist() == alone.train.index.tolist()
        assert made.test_shards[s].index.tolist() == alone.test.index.tolist()


def test_owners_with_too_few_examples_in_a_task_lack_it_and_those_with_too_few_in_all_are_no_clients():
    few = belonging("few", ["ann", "bob"], rows=3)
    many = belonging("many", ["bob", "cat"], rows=9)
    made = Federation([few, many, toy_task("all")], partition={"many": partition.owners(4), "few": partition.owners(2)})
    assert made.client_names.tolist() == ["ann", "bob", "cat"]
    assert (made.sizes[:, :2] > 0).tolist() == [[True, False], [True, True], [False, True]]
    with refused("no client has data for task 'few'"):
        Federation([few, many], partition=partition.owners(4))
    again = Federation([few, many], partition={"many": partition.owners(4), "few": partition.owners(2)}, clients=3)
    assert again.sizes.tolist() == made.sizes[:, :2].tolist()


def test_other_partitions_of_data_with_owners_leave_clients_to_their_numbers():
    tasks = [belonging("one", ["ann", "bob"]), belonging("other", [3, 4])]
    made = Federation(tasks, 5, partition=partition.iid())
    assert made.client_names.tolist() == [0, 1, 2, 3, 4]
    made = Federation(tasks, partition={"other": partition.iid()})
    assert made.client_names.tolist() == ["ann", "bob"]
    assert (made.sizes > 0).all()


def test_lists_by_client_are_in_the_order_of_the_names():
    tasks = [belonging("one", ["cat", "ann"]), belonging("other", ["cat", "bob"])]
    made = Federation(tasks, capacity=[1, 1, 2], arrivals=[4, 5, 6], lacks=[[0, 0], [0, 0], [0, 0]])
    assert made.client_names.tolist() == ["ann", "bob", "cat"]
    assert (made.capacity.tolist(), made.arrivals.tolist()) == ([1, 1, 2], [4, 5, 6])
    with refused("client 1 ('bob')", "capacity 2", "1 to 1"):
        Federation(tasks, capacity=[1, 2, 2])


NAMED, NUMBERED = belonging("named", ["ann", "bob"]), belonging("numbered", [0, 1])


@refusals(
    (
        lambda: Federation([NAMED, NUMBERED]),
        "task 'named' are names ('ann')",
        "task 'numbered' numbers (0)",
        "cannot be matched",
        "another partition",
    ),
    (lambda: Federation([NUMBERED, NAMED], 2), "task 'named' are names", "cannot be matched"),
    (
        lambda: Federation([belonging("one", ["ann"]), belonging("other", ["bob", "cat"])], 4),
        "tasks 'one', 'other' together have 3 owners for 4 clients",
    ),
    (lambda: Federation([NAMED], 3), "data 'data' has 2 owners for 3 clients"),
    (lambda: Federation([NAMED], partition=partition.owners(least=9)), "0 owners with at least 9 examples"),
    (lambda: Federation([NAMED, toy_task()], partition=partition.owners()), "has no owners"),
    (
        lambda: Federation([belonging("one", list("abcdef"), test=["f"])], 1, seed=1),
        "no client has test examples of task 'one'",
    ),
)
def test_owners_that_cannot_be_clients_are_refused(make, words):
    with refused(*words):
        make()


def test_the_seed_fixes_partition_capacity_and_gaps():
    def drawn(seed):
        made = federation(40, capacity="mixed", lacks=0.5, seed=seed)
        return [shards.index.tolist() for shards in made.shards], made.capacity.tolist(), made.sizes.tolist()

    assert drawn(0) == drawn(0)
    assert all(one != other for one, other in zip(drawn(0), drawn(1), strict=True))


def test_tasks_of_the_same_data_are_split_independently():
    made = federation()
    assert made.shards[0].index.tolist() != made.shards[1].index.tolist()


@pytest.mark.parametrize(
    ("capacity", "expected"),
    [(1, [1] * 4), ([2, 1, 3, 1], [2, 1, 3, 1]), ([1, 3, 2], [1, 3, 2, 1]), ("all", [3, 3, 3, 1])],
)
def test_capacity_is_a_number_a_list_a_repeated_list_or_all_of_a_clients_tasks(capacity, expected):
    lacks = [[0, 0, 0]] * 3 + [[0, 1, 1]]
    assert federation(4, lacks=lacks, capacity=capacity).capacity.tolist() == expected


def test_mixed_capacity_is_a_quarter_all_a_half_half_and_a_quarter_one():
    values, counts = np.unique(federation(40, capacity="mixed").capacity, return_counts=True)
    assert dict(zip(values.tolist(), counts.tolist(), strict=True)) == {3: 10, 2: 20, 1: 10}


def test_mixed_capacity_rounds_half_of_a_clients_own_tasks_up():
    lacks = np.tile([[0, 0, 0], [0, 0, 1], [0, 1, 1]], (20, 1))
    capacity = federation(60, capacity="mixed", lacks=lacks).capacity
    assert [set(capacity[start::3]) for start in range(3)] == [{1, 2, 3}, {1, 2}, {1}]


@given(st.floats(0, 1), st.integers(0, 9))
def test_a_share_of_clients_lacks_exactly_one_task(share, seed):
    lacking = federation(20, lacks=share, seed=seed).sizes == 0
    assert lacking.any(1).sum() == round(share * 20)
    assert (lacking.sum(1) <= 1).all()


def test_a_table_says_who_lacks_what():
    table = np.array([[0, 1, 0], [0, 0, 0], [1, 0, 1]])
    assert ((federation(3, lacks=table).sizes == 0) == table).all()


# --- who is there --------------------------------------------------------------------


@given(st.integers(1, 9), st.floats(0.05, 1), st.floats(0.1, 1), st.integers(0, 99))
def test_shares_sum_to_one_and_the_budget_is_the_rate_of_the_processors_of_who_is_there(round, rate, probability, seed):
    made = federation(capacity=[1, 2], lacks=0.5, arrivals=[1, 3, 5] * 4, availability=Bernoulli(probability))
    view = made.view(round, rate=rate, seed=seed)
    there = made.availability.available(round, 12, seed) & (np.array([1, 3, 5] * 4) <= round)
    assert (view.sizes == np.where(there[:, None], made.sizes, 0)).all()
    np.testing.assert_allclose(view.share.sum(0), view.able.any(0), rtol=1e-12)
    np.testing.assert_allclose(view.share * view.sizes.sum(0), view.sizes)
    assert (view.capacity == np.where(there, made.capacity, 0)).all()
    assert view.processors == made.capacity[there].sum()
    assert view.budget == pytest.approx(rate * view.processors)


def test_clients_and_tasks_take_part_from_the_round_of_their_arrival():
    made = federation(3, arrivals=[1, 2, 4], task_arrivals={"blue": 3}, capacity="all")
    there = [made.view(t, rate=0.5, seed=0).able.astype(int).tolist() for t in (1, 2, 3, 4)]
    none, early, late = [0, 0, 0], [1, 1, 0], [1, 1, 1]
    assert there == [[early, none, none], [early, early, none], [late, late, none], [late, late, late]]
    assert made.view(2, rate=0.5, seed=0).capacity.tolist() == [2, 2, 0]
    assert [made.present_tasks(t).tolist() for t in (2, 3)] == [[True, True, False], [True, True, True]]


def test_a_view_has_the_priorities_of_the_tasks_whoever_is_there():
    made = Federation([toy_task("a", priority=2), toy_task("b"), toy_task("c", priority=0.5)], 4)
    view = made.view(1, rate=1.0, seed=0)
    for each in (view, view.without(np.arange(4) == 2), view.only(np.arange(3) == 1), view.with_signals(x=view.share)):
        assert each.priority.tolist() == [2.0, 1.0, 0.5]
    assert federation(3).view(1, rate=1.0, seed=0).priority.tolist() == [1.0, 1.0, 1.0]


def test_bernoulli_clients_are_there_as_often_as_it_says_independently_of_each_other():
    there = np.array([Bernoulli(0.3).available(t, 50, seed=2) for t in range(200)])
    assert there.mean() == pytest.approx(0.3, abs=4 * np.sqrt(0.21 / there.size))
    assert there.sum(1).var() == pytest.approx(50 * 0.21, rel=0.4)
    assert (there[7] == Bernoulli(0.3).available(7, 50, seed=2)).all()
    assert not (there[7] == Bernoulli(0.3).available(7, 50, seed=3)).all()
    assert (Bernoulli(0.3).available(7, 20, seed=2) == there[7, :20]).all()


def test_a_trace_starts_over_at_its_end():
    made = federation(3, availability=Trace([[1, 0, 1], [0, 1, 0]]))
    there = [made.view(t, rate=1.0, seed=t).present.astype(int).tolist() for t in (1, 2, 3, 4)]
    assert there == [[1, 0, 1], [0, 1, 0], [1, 0, 1], [0, 1, 0]]


# --- what is refused -----------------------------------------------------------------


@refusals(
    (lambda: federation(tasks=[]), "no tasks"),
    (lambda: federation(0), "clients is 0", "at least 1"),
    (lambda: federation(None), "no owners", "clients=..."),
    (lambda: federation(tasks=[toy_task("red"), toy_task("red")]), "two tasks", "'red'"),
    (lambda: federation(61), "client 60", "no example"),
    (lambda: federation(6, [owned(5)]), "5 owners for 6 clients"),
    (lambda: federation(2, lacks=[[1, 1, 1], [0, 0, 0]]), "client 0", "no data", "1 such"),
    (lambda: federation(2, lacks=[[0, 0, 1], [0, 0, 1]]), "no client has data", "'blue'"),
    (lambda: federation(2, lacks=[[0, 1], [0, 0]]), "lacks", "(2, 2)", "(2, 3)"),
    (lambda: federation(lacks=1.5), "lacks is 1.5", "[0, 1]"),
    (lambda: federation(lacks=-0.1), "lacks is -0.1", "[0, 1]"),
    (lambda: federation(tasks=TASKS[:1], lacks=0.1), "lacks", "two tasks"),
    (lambda: federation(capacity=0), "client 0", "capacity 0", "1 to 3"),
    (lambda: federation(capacity=[1, 4]), "client 1", "capacity 4", "1 to 3"),
    (lambda: federation(2, capacity=3, lacks=[[0, 0, 0], [0, 1, 0]]), "client 1", "capacity 3", "1 to 2"),
    (lambda: federation(2, capacity=[1, 1, 1]), "3 capacities for 2 clients"),
    (lambda: federation(capacity="mixd"), "'mixd'", "did you mean 'mixed'?"),
    (lambda: federation(capacity=1.5), "capacity", "1.5"),
    (lambda: federation(3, arrivals=[1, 2]), "2 arrivals for 3 clients"),
    (lambda: federation(task_arrivals={"gren": 2}), "'gren'", "did you mean 'green'?"),
    (lambda: federation(partition={"rad": partition.iid()}), "'rad'", "did you mean 'red'?"),
    (lambda: federation("3"), "clients is '3'", "whole number"),
    (lambda: federation(True), "clients is True", "whole number"),
    (lambda: federation(2.5), "clients is 2.5", "whole number"),
    (lambda: federation(float("nan")), "clients is nan", "whole number"),
    (lambda: federation(10**12), "1000000000000 clients would take at least", "this machine has"),
    (lambda: federation(seed=1.5), "seed is 1.5", "whole number"),
    (lambda: federation(lacks=float("nan")), "lacks is nan", "[0, 1]"),
    (lambda: federation(lacks="0.1"), "lacks is '0.1'", "[0, 1]"),
    (lambda: federation(lacks=True), "lacks is True", "[0, 1]"),
    (lambda: federation(2, lacks=[[0, 0, np.nan], [0, 0, 0]]), "lacks", "values other than 0 and 1"),
    (lambda: federation(2, lacks=[["", "x", ""], ["", "", ""]]), "lacks", "values other than 0 and 1"),
    (lambda: federation(capacity=True), "capacity is True", "whole numbers"),
    (lambda: federation(2, capacity=[True, 2]), "capacity is [True, 2]", "whole numbers"),
    (lambda: federation(2, capacity=[[1, 2]]), "capacity is [[1, 2]]", "whole numbers"),
    (lambda: federation(2, arrivals=[1, 1.5]), "arrivals is [1, 1.5]", "whole numbers"),
    (lambda: federation(2, arrivals=3), "arrivals is 3", "a round for each client"),
    (lambda: federation(2, departures=[0, -1]), "departures has -1"),
    (lambda: federation(2, departures=[0, True]), "departures is [0, True]", "whole numbers"),
    (lambda: federation(task_arrivals={"red": 2.5}), "arrival of task 'red' is 2.5", "whole number"),
    (lambda: exponential(0), "first is 0", "at least 1"),
    (lambda: exponential(1, float("inf")), "gap is inf", "positive"),
    (lambda: federation(arrivals=exponential(99)), "first is 99", "12 clients"),
    (lambda: Trace([[1, 0.5]]), "values other than 0 and 1"),
    (lambda: Bernoulli(0.0), "probability is 0.0", "(0, 1]"),
    (lambda: Bernoulli(1.1), "probability is 1.1", "(0, 1]"),
    (lambda: Trace([1, 0, 1]), "(3,)", "[rounds, clients]"),
    (lambda: Trace([]), "[rounds, clients]"),
    (lambda: Trace([[1, 0], [1]]), "[rounds, clients]"),
    (lambda: federation(availability=Trace([[1, 0]])).view(1, rate=1.0, seed=0), "2 clients", "12"),
)
def test_an_impossible_federation_is_refused_with_the_reason(make, words):
    with refused(*words):
        make()


def test_a_federation_of_real_images_describes_itself():
    made = federation(20, [Task("digits", models.LogisticRegression, data.digits())])
    assert "1,438 examples" in made.describe()["tasks"]
    assert "20 clients" in repr(made)


def test_clients_arrive_one_by_one_after_the_first_with_random_gaps():
    made = federation(arrivals=exponential(first=5, gap=3.0), seed=4)
    assert (made.arrivals[:5] == 1).all()
    assert (made.arrivals[5:] > 1).all()
    assert (np.diff(made.arrivals) >= 0).all()
    assert (federation(arrivals=exponential(5, 3.0), seed=4).arrivals == made.arrivals).all()
    assert (federation(arrivals=exponential(5, 3.0), seed=5).arrivals != made.arrivals).any()
    gaps = exponential(1, 3.0)(4000, np.random.default_rng(0))
    assert gaps[-1] / 4000 == pytest.approx(3.0, rel=0.1)


# --- rounds in which nothing would train ---------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"arrivals": [4, 5]}, ["all clients arrive after the last of 3 rounds", "round 4"]),
        ({"task_arrivals": {"red": 4, "green": 9, "blue": 5}}, ["all tasks arrive after the last", "round 4"]),
        ({"departures": [1, 1]}, ["in any of 3 rounds", "nothing would train", "departures"]),
        ({"availability": Trace([[0, 0]])}, ["in any of 3 rounds", "nothing would train", "availability"]),
    ],
)
def test_a_federation_in_which_nothing_would_train_is_refused_before_training(options, words):
    made = federation(2, **options)
    with refused(*words):
        mmfl.train(made, "random", rounds=3, rate=1.0)


def test_a_task_that_arrives_after_a_short_run_or_a_client_that_does_is_no_mistake():
    made = federation(2, arrivals=[1, 9], task_arrivals={"blue": 9}, availability=Trace([[0, 0], [1, 1]]))
    made.check_rounds(3)
    mmfl.train(made, "random", rounds=3, rate=1.0)
