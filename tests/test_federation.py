"""The pool of clients: sizes, capacities, gaps, arrivals and availability, round by round."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import refusals, refused, toy_task
from mmfl import Federation, Task, UserError, data, models, partition
from mmfl.arrivals import exponential
from mmfl.availability import Always, Bernoulli, Trace
from mmfl.data import from_arrays

TASKS = [toy_task("red"), toy_task("green"), toy_task("blue")]


def owned(owners: int, name="owned"):
    """A task whose 60 examples belong to `owners` people."""
    x, owner = np.random.default_rng(0).random((60, 3)), np.arange(60) % owners
    return toy_task(name, data=from_arrays(x, owner % 4, owner))


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


def test_the_seed_fixes_partition_capacity_and_gaps():
    def drawn(seed):
        made = federation(40, capacity="mixed", lacks=0.5, seed=seed)
        return [
            [shards.index.tolist() for shards in made.shards],
            made.capacity.tolist(),
            made.sizes.tolist(),
        ]

    assert drawn(0) == drawn(0)
    assert all(one != other for one, other in zip(drawn(0), drawn(1), strict=True))


def test_tasks_of_the_same_data_are_split_independently():
    made = federation()
    assert made.shards[0].index.tolist() != made.shards[1].index.tolist()


@pytest.mark.parametrize(
    ("capacity", "expected"),
    [
        (1, [1] * 8),
        (2, [2] * 8),
        ([3, 1, 2, 1, 1, 1, 3, 2], [3, 1, 2, 1, 1, 1, 3, 2]),
        ([1, 3, 2], [1, 3, 2, 1, 3, 2, 1, 3]),
        ("all", [3] * 8),
    ],
)
def test_capacity_is_a_number_a_list_a_repeated_list_or_all(capacity, expected):
    assert federation(8, capacity=capacity).capacity.tolist() == expected


def test_capacity_all_counts_the_tasks_that_a_client_has():
    assert federation(2, lacks=[[0, 1, 1], [0, 0, 0]], capacity="all").capacity.tolist() == [1, 3]


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


def test_everyone_is_always_available_by_default():
    assert federation().availability == Always()
    assert federation().view(3, rate=1.0, seed=5).present.all()


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
    (lambda: federation(-3), "clients is -3", "at least 1"),
    (lambda: federation(None), "no owners", "clients=..."),
    (lambda: federation(None, [owned(5), owned(4, "four")]), "different numbers of owners", "5", "4"),
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
    (
        lambda: federation(2, capacity=[3, 3], lacks=[[0, 0, 0], [0, 1, 0]]),
        "client 1",
        "capacity 3",
        "1 to 2",
    ),
    (lambda: federation(2, capacity=[1, 1, 1]), "3 capacities for 2 clients"),
    (lambda: federation(capacity="mixd"), "'mixd'", "did you mean 'mixed'?"),
    (lambda: federation(capacity="plenty"), "'plenty'", "all, mixed"),
    (lambda: federation(capacity=1.5), "capacity", "1.5"),
    (lambda: federation(3, arrivals=[1, 2]), "2 arrivals for 3 clients"),
    (lambda: federation(task_arrivals={"gren": 2}), "'gren'", "did you mean 'green'?"),
    (lambda: federation(partition={"rad": partition.iid()}), "'rad'", "did you mean 'red'?"),
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


@pytest.mark.parametrize(("first", "gap", "words"), [(0, 2.0, "first is 0"), (3, 0.0, "gap is 0.0"), (99, 1.0, "99")])
def test_impossible_arrivals_are_refused(first, gap, words):
    with pytest.raises(UserError, match=words):
        federation(arrivals=exponential(first, gap))
