"""Who holds which examples: properties of every partition."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from conftest import refusals, refused
from mmfl import partition
from mmfl.data import Dataset, from_arrays
from mmfl.partition import Shards


def labelled(labels, **options) -> Dataset:
    labels = np.asarray(labels)
    return from_arrays(np.arange(len(labels))[:, None], labels, test=([[0]], labels[:1]), **options)


def generator(seed=0):
    return np.random.default_rng(seed)


def check_disjoint(shards: Shards, clients: int, rows: int) -> None:
    held = np.concatenate([shards.of(i) for i in range(clients)])
    assert len(set(held.tolist())) == len(held) == shards.sizes.sum()
    assert ((held >= 0) & (held < rows)).all()
    assert len(shards.sizes) == clients


@given(st.lists(st.integers(-1, 5), max_size=30), st.lists(st.booleans(), min_size=6, max_size=6))
def test_shards_and_owners_say_the_same_and_emptied_clients_hold_nothing(owner, marked):
    owner, marked = np.array(owner, dtype=np.int64), np.array(marked)
    shards = Shards.by_owner(owner, 6)
    check_disjoint(shards, 6, len(owner))
    assert shards.owner(len(owner)).tolist() == owner.tolist()
    assert all(shards.of(i).tolist() == np.flatnonzero(owner == i).tolist() for i in range(6))
    gone = np.isin(owner, np.flatnonzero(marked))
    assert shards.without(marked).owner(len(owner)).tolist() == np.where(gone, -1, owner).tolist()


@given(st.integers(1, 12), st.integers(0, 40), st.integers(0, 99))
def test_iid_deals_out_every_row_in_shares_that_differ_by_at_most_one(clients, extra, seed):
    rows = clients + extra
    shards = partition.iid()(labelled(np.zeros(rows, dtype=int)), clients, generator(seed)).train
    check_disjoint(shards, clients, rows)
    assert shards.sizes.sum() == rows
    assert np.ptp(shards.sizes) <= 1


@given(st.lists(st.integers(1, 9), min_size=1, max_size=8), st.integers(0, 20), st.integers(0, 99))
def test_iid_gives_each_client_the_number_it_asked_for(sizes, extra, seed):
    rows = sum(sizes) + extra
    shards = partition.iid(sizes)(labelled(np.zeros(rows, dtype=int)), len(sizes), generator(seed)).train
    check_disjoint(shards, len(sizes), rows)
    assert shards.sizes.tolist() == sizes


@given(
    st.floats(0.05, 1.0),
    st.integers(1, 6),
    st.lists(st.integers(1, 9), min_size=1, max_size=8),
    st.integers(0, 99),
)
def test_labels_deals_labels_evenly_and_gives_each_client_what_it_asked_for(fraction, classes, sizes, seed):
    clients = len(sizes)
    label = np.arange(classes * max(sizes) * clients) % classes
    shards = partition.labels(fraction, sizes)(labelled(label), clients, generator(seed)).train
    check_disjoint(shards, clients, len(label))
    assert shards.sizes.tolist() == sizes
    each = max(1, round(fraction * classes))
    counts = np.array([np.bincount(label[shards.of(i)], minlength=classes) for i in range(clients)])
    assert ((counts > 0).sum(1) == np.minimum(each, sizes)).all()
    for row in counts:
        assert np.ptp(np.sort(row)[classes - each :]) <= 1
    if min(sizes) >= each:
        assert np.ptp((counts > 0).sum(0)) <= 1


@given(st.integers(1, 8), st.integers(0, 99), st.integers(8, 40))
def test_labels_shrinks_what_is_asked_to_what_there_is(clients, seed, rows):
    label = np.arange(rows) % 2
    shards = partition.labels(0.5, 1000)(labelled(label), clients, generator(seed)).train
    check_disjoint(shards, clients, rows)
    assert (shards.sizes >= 1).all()
    assert all(len(set(label[shards.of(i)])) == 1 for i in range(clients))


def test_labels_lets_small_clients_keep_their_one_example_of_a_scarce_label():
    shards = partition.labels(1.0, [1, 1, 1, 10])(labelled([0] * 6), 4, generator()).train
    assert shards.sizes.tolist() == [1, 1, 1, 3]


@given(st.integers(4, 200), st.floats(0, 1), st.integers(0, 99))
def test_high_low_makes_the_given_share_of_clients_rich(clients, share, seed):
    sizes = partition.high_low(share, high=(90, 150), low=(9, 15))(clients, generator(seed))
    rich = sizes >= 90
    assert rich.sum() == round(share * clients)
    assert (sizes[rich] <= 150).all()
    assert ((sizes[~rich] >= 9) & (sizes[~rich] <= 15)).all()


@given(st.integers(1, 8), st.integers(0, 99))
def test_owners_gives_each_client_all_rows_of_one_owner_for_training_and_testing(clients, seed):
    owner, owner_test = np.arange(40) % 8, np.arange(24) % 8
    x, x_test = torch.zeros(40, 1), torch.zeros(24, 1)
    dataset = Dataset("owned", x, x[:, 0], x_test, x_test[:, 0], owner, owner_test)
    split = partition.owners()(dataset, clients, generator(seed))
    check_disjoint(split.train, clients, 40)
    check_disjoint(split.test, clients, 24)
    chosen = [set(owner[split.train.of(i)]) | set(owner_test[split.test.of(i)]) for i in range(clients)]
    assert all(len(names) == 1 for names in chosen)
    assert len(set.union(*chosen)) == clients
    assert set(zip(split.train.sizes, split.test.sizes, strict=True)) == {(5, 3)}


@pytest.mark.parametrize(
    "rule",
    [partition.iid(), partition.labels(0.4, partition.high_low(0.2, (8, 9), (2, 3))), partition.owners()],
    ids=["iid", "labels", "owners"],
)
def test_a_partition_is_a_function_of_its_generator(rule):
    dataset = labelled(np.arange(300) % 5, owner=np.arange(300) // 10)
    one, again, other = (rule(dataset, 9, generator(seed)).train for seed in (1, 1, 2))
    assert (one.index.tolist(), one.offset.tolist()) == (again.index.tolist(), again.offset.tolist())
    assert one.index.tolist() != other.index.tolist()


FIVE = labelled([0, 0, 0, 1, 1])
REAL = from_arrays([[0.0]] * 5, [0.5] * 5)
OWNED = labelled([0, 1, 2, 3], owner=[0, 0, 1, 1])


@refusals(
    (lambda: split(partition.iid(), FIVE, 6), "client 5", "no example", "5 for 6 clients"),
    (lambda: split(partition.iid(3), FIVE, 2), "iid", "6 examples asked for", "has 5"),
    (lambda: split(partition.iid([1, 0]), FIVE, 2), "client 1", "no example"),
    (lambda: split(partition.iid([1, 2, 1]), FIVE, 2), "3", "2 clients"),
    (lambda: split(partition.labels(0.0), FIVE, 2), "labels", "fraction is 0.0", "(0, 1]"),
    (lambda: split(partition.labels(1.5), FIVE, 2), "labels", "fraction is 1.5", "(0, 1]"),
    (lambda: split(partition.labels(), REAL, 2), "labels", "not class numbers"),
    (lambda: split(partition.labels(1.0, 9), FIVE, 3), "3 clients share label 1", "only 2 examples"),
    (lambda: split(partition.owners(), FIVE, 2), "owners", "does not know who owns"),
    (lambda: split(partition.owners(), OWNED, 3), "owners", "2 owners for 3 clients"),
    (lambda: split(partition.iid(partition.high_low(share=2.0)), FIVE, 2), "share", "2.0"),
    (lambda: split(partition.iid(partition.high_low(high=(5, 3))), FIVE, 2), "high", "(5, 3)"),
)
def test_a_partition_that_cannot_be_made_is_refused(make, words):
    with refused(*words):
        make()


def split(rule, dataset, clients):
    return rule(dataset, clients, generator())
