"""Who holds which examples: properties of every partition."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import adjusted_rand_score

from conftest import refusals, refused, toy_task
from mmfl import Federation, partition
from mmfl.data import Dataset, from_arrays
from mmfl.partition import Shards


def labelled(labels, **options) -> Dataset:
    labels = np.asarray(labels)
    return from_arrays(np.arange(len(labels))[:, None], labels, test=([[0]], labels[:1]), **options)


def generator(seed=0):
    return np.random.default_rng(seed)


def split(rule, dataset, clients, seed=0):
    return rule(dataset, clients, generator(seed))


def check_disjoint(shards: Shards, clients: int, rows: int) -> None:
    assert len(np.unique(shards.index)) == len(shards.index) == shards.sizes.sum()
    assert ((shards.index >= 0) & (shards.index < rows)).all()
    assert len(shards.sizes) == clients


def counts_of(shards: Shards, label) -> np.ndarray:
    """Examples of each label of each client, [clients, classes]."""
    label = np.asarray(label)
    counts = np.zeros((len(shards.sizes), label.max() + 1), dtype=int)
    np.add.at(counts, (np.repeat(np.arange(len(counts)), shards.sizes), label[shards.index]), 1)
    return counts


@given(st.lists(st.integers(-1, 5), max_size=30), st.lists(st.booleans(), min_size=6, max_size=6))
def test_shards_and_owners_say_the_same_and_emptied_clients_hold_nothing(owner, marked):
    owner, marked = np.array(owner, dtype=np.int64), np.array(marked)
    shards = Shards.by_owner(owner, 6)
    check_disjoint(shards, 6, len(owner))
    assert shards.owner(len(owner)).tolist() == owner.tolist()
    assert all(shards.of(i).tolist() == np.flatnonzero(owner == i).tolist() for i in range(6))
    gone = np.isin(owner, np.flatnonzero(marked))
    assert shards.without(marked).owner(len(owner)).tolist() == np.where(gone, -1, owner).tolist()


# Every partition.

SMALL = partition.high_low(0.2, (8, 9), (2, 3))
RULES = {
    "iid": partition.iid(SMALL),
    "owners": partition.owners(least=2, most=4),
    "labels": partition.labels(0.4, SMALL),
    "labels all": partition.labels(0.4),
    "labels seed": partition.labels(0.4, SMALL, seed=1),
    "dirichlet": partition.dirichlet(0.3, SMALL),
    "dirichlet all": partition.dirichlet(0.3, partition.dirichlet_sizes(0.5)),
    "dirichlet seed": partition.dirichlet(0.3, SMALL, seed=1),
    "clusters": partition.clusters(3, 0.4, partition.uniform(3, 5)),
    "clusters seed": partition.clusters(3, sizes=partition.lognormal(1.0, 0.5, least=2, most=9), seed=1),
}


@pytest.mark.parametrize("name", RULES)
def test_a_partition_is_a_function_of_its_generator_and_only_clusters_have_groups(name):
    dataset = labelled(np.arange(300) % 5, owner=np.arange(300) // 10)
    made = [split(RULES[name], dataset, 9, seed) for seed in (1, 1, 2)]
    one, again, other = ((each.train.index.tolist(), each.train.offset.tolist()) for each in made)
    assert one == again != other
    assert (made[0].groups is not None) == name.startswith("clusters")


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
@given(clients=st.integers(3, 20), seed=st.integers(0, 99), frequency=st.lists(st.integers(40, 80), min_size=5))
def test_every_client_gets_examples_and_no_two_the_same(rule, clients, seed, frequency):
    label = generator(seed).permutation(np.repeat(np.arange(len(frequency)), frequency))
    shards = split(rule, labelled(label, owner=np.arange(len(label)) % 20), clients, seed).train
    check_disjoint(shards, clients, len(label))
    assert (shards.sizes >= 1).all()


@pytest.mark.parametrize("name", ["iid", "owners", "labels", "dirichlet", "clusters"])
def test_a_hundred_thousand_clients_are_no_obstacle(name):
    rows, clients = 400_000, 100_000
    dataset = labelled(np.arange(rows) % 10, owner=np.arange(rows) % clients)
    shards = split(partition.PARTITIONS[name](), dataset, clients).train
    check_disjoint(shards, clients, rows)
    assert (shards.sizes >= 1).all()
    assert shards.sizes.sum() >= 0.99 * rows


# Sizes.


@given(st.integers(4, 200), st.floats(0, 1), st.integers(0, 99))
def test_high_low_makes_the_given_share_of_clients_rich(clients, share, seed):
    sizes = partition.high_low(share, high=(90, 150), low=(9, 15))(clients, generator(seed), 10**6)
    rich = sizes >= 90
    assert rich.sum() == round(share * clients)
    assert (sizes[rich] <= 150).all()
    assert ((sizes[~rich] >= 9) & (sizes[~rich] <= 15)).all()


def test_a_tenth_of_the_clients_holds_52_6_percent_of_the_data_of_the_papers():
    expected = 0.1 * 120 / (0.1 * 120 + 0.9 * 12)
    assert round(expected, 3) == 0.526
    rng = generator()
    sizes = np.stack([partition.high_low()(120, rng, 10**6) for _ in range(2000)])
    volume = np.where(sizes >= 90, sizes, 0).sum(1)
    # Ratio of means, with its standard error: 12 rich clients of deviation 17.6, 108 others of deviation 2.
    assert abs(volume.mean() / sizes.sum(1).mean() - expected) < 4 * 0.011 / np.sqrt(2000)


def test_every_client_is_rich_equally_often():
    rng = generator()
    rich = sum(partition.high_low(0.25)(20, rng, 10**6) >= 90 for _ in range(4000)) / 4000
    assert np.abs(rich - 0.25).max() < 5 * np.sqrt(0.25 * 0.75 / 4000)


@given(st.integers(2, 60), st.integers(0, 99))
def test_the_rich_are_the_same_for_every_task_with_a_seed_and_the_volumes_are_not(clients, seed):
    rule = partition.high_low(0.5, seed=seed)
    one, two = (rule(clients, generator(task), 10**6) for task in (1, 2))
    assert ((one >= 90) == (two >= 90)).all()
    assert clients < 5 or (one != two).any()


def test_the_rich_differ_between_tasks_without_a_seed_and_between_seeds():
    rich = {
        tuple(partition.high_low(0.5, seed=seed)(40, generator(task), 10**6) >= 90)
        for seed, task in ((None, 1), (None, 2), (1, 1), (2, 1))
    }
    assert len(rich) == 4


def test_uniform_sizes_reach_both_ends():
    assert np.unique(partition.uniform(30, 40)(2000, generator(), 10**6)).tolist() == list(range(30, 41))


@given(st.floats(-5, 800), st.floats(0, 5), st.integers(1, 20), st.integers(0, 30) | st.none(), st.integers(0, 99))
def test_lognormal_sizes_stay_between_least_and_most_however_heavy_the_tail(mean, sigma, least, more, seed):
    most = None if more is None else least + more
    sizes = partition.lognormal(mean, sigma, least, most)(50, generator(seed), 1000)
    assert sizes.dtype == np.int64
    assert ((sizes >= least) & (sizes <= (1000 if most is None else most))).all()


def test_lognormal_sizes_have_the_median_of_the_distribution():
    sizes = partition.lognormal(4.0, 2.0, least=50)(20_000, generator(), 10**9)
    # The median's standard error is about sqrt(pi / 2) sigma / sqrt(clients) on the logarithm.
    assert abs(np.log(np.median(sizes) - 49.5) - 4.0) < 4 * 1.25 * 2 / np.sqrt(20_000)


@given(st.floats(1e-6, 1e6), st.integers(1, 5), st.integers(1, 40), st.integers(0, 300), st.integers(0, 99))
def test_dirichlet_sizes_divide_all_there_is_and_leave_nobody_below_the_least(alpha, least, clients, extra, seed):
    available = least * clients + extra
    sizes = partition.dirichlet_sizes(alpha, least)(clients, generator(seed), available)
    assert sizes.sum() == available
    assert (sizes >= least).all()


def test_dirichlet_sizes_go_from_one_client_that_has_all_to_equal_shares():
    few, many = (partition.dirichlet_sizes(alpha)(100, generator(), 100_100) for alpha in (1e-4, 1e8))
    assert few.max() > 99_000
    assert np.ptp(many) <= 2


def test_dirichlet_sizes_have_the_variance_of_the_distribution():
    rng, clients, alpha = generator(), 10, 2.0
    share = np.stack([partition.dirichlet_sizes(alpha)(clients, rng, 10**7) for _ in range(4000)]) / 10**7
    expected = (1 / clients) * (1 - 1 / clients) / (clients * alpha + 1)
    assert abs(share.var(0).mean() / expected - 1) < 0.05


# One pool.


@given(st.integers(1, 12), st.integers(0, 40), st.integers(0, 99))
def test_iid_deals_out_every_row_in_shares_that_differ_by_at_most_one(clients, extra, seed):
    rows = clients + extra
    shards = split(partition.iid(), labelled(np.zeros(rows, dtype=int)), clients, seed).train
    check_disjoint(shards, clients, rows)
    assert shards.sizes.sum() == rows
    assert np.ptp(shards.sizes) <= 1


@given(st.lists(st.integers(1, 9), min_size=1, max_size=8), st.integers(0, 20), st.integers(0, 99))
def test_iid_gives_each_client_the_number_it_asked_for(sizes, extra, seed):
    rows = sum(sizes) + extra
    shards = split(partition.iid(sizes), labelled(np.zeros(rows, dtype=int)), len(sizes), seed).train
    check_disjoint(shards, len(sizes), rows)
    assert shards.sizes.tolist() == sizes


# A fraction of the labels.


@given(
    st.floats(0.05, 1.0),
    st.integers(1, 6),
    st.lists(st.integers(1, 9), min_size=1, max_size=8),
    st.integers(0, 99),
)
def test_labels_deals_labels_evenly_and_gives_each_client_what_it_asked_for(fraction, classes, sizes, seed):
    clients = len(sizes)
    label = np.arange(classes * max(sizes) * clients) % classes
    shards = split(partition.labels(fraction, sizes), labelled(label), clients, seed).train
    check_disjoint(shards, clients, len(label))
    assert shards.sizes.tolist() == sizes
    each = max(1, round(fraction * classes))
    counts = counts_of(shards, label)
    assert ((counts > 0).sum(1) == np.minimum(each, sizes)).all()
    for row in counts:
        assert np.ptp(np.sort(row)[classes - each :]) <= 1
    if min(sizes) >= each:
        assert np.ptp((counts > 0).sum(0)) <= 1


def test_clients_of_the_papers_have_three_of_ten_labels_and_each_label_36_of_120_clients():
    label = np.arange(60_000) % 10
    held = counts_of(split(partition.labels(0.3, partition.high_low()), labelled(label), 120).train, label) > 0
    assert (held.sum(1) == 3).all()
    assert (held.sum(0) == 36).all()


def test_every_pair_of_labels_is_dealt_equally_often():
    label, rng = np.arange(2000) % 4, generator()
    pairs = np.zeros((4, 4))
    for _ in range(200):
        held = counts_of(partition.labels(0.5, 2)(labelled(label), 6, rng).train, label) > 0
        pairs += held.T.astype(int) @ held
    often = pairs[np.triu_indices(4, 1)] / 1200
    assert np.abs(often - 1 / 6).max() < 5 * np.sqrt(1 / 6 * 5 / 6 / 600)  # complements come in twos


def test_no_label_is_favoured_when_examples_do_not_divide_evenly():
    label = np.arange(100_000) % 10
    counts = counts_of(split(partition.labels(1.0, 4), labelled(label), 5000).train, label).sum(0)
    assert np.abs(counts - 2000).max() < 5 * np.sqrt(5000 * 0.4 * 0.6)


@given(st.integers(1, 8), st.integers(0, 99), st.integers(8, 40))
def test_labels_shrinks_what_is_asked_to_what_there_is(clients, seed, rows):
    label = np.arange(rows) % 2
    shards = split(partition.labels(0.5, 1000), labelled(label), clients, seed).train
    check_disjoint(shards, clients, rows)
    assert (shards.sizes >= 1).all()
    assert all(len(set(label[shards.of(i)])) == 1 for i in range(clients))
    assert clients == 1 or shards.sizes.sum() == rows


def test_a_scarce_label_is_divided_in_proportion_and_small_clients_keep_their_one_example():
    shards = split(partition.labels(1.0, [1, 21, 41, 101]), labelled([0] * 84), 4).train
    assert shards.sizes.tolist() == [1, 1 + 10, 1 + 20, 1 + 50]  # 80 of the 160 further ones


def test_clients_with_other_labels_yield_a_label_with_fewer_examples_than_takers():
    label = [0] * 50 + [1] * 2
    shards = split(partition.labels(1.0, [1, 8, 8, 8]), labelled(label), 4).train
    counts = counts_of(shards, label)
    assert counts[:, 1].sum() == 2
    assert (shards.sizes >= 1).all()
    assert counts[1:, 0].tolist() == [4, 4, 4]


@pytest.mark.parametrize("rule", [partition.labels, partition.dirichlet])
@given(clients=st.integers(1, 30), seed=st.integers(0, 99))
def test_labels_are_the_same_for_every_task_with_a_seed(rule, clients, seed):
    label = np.arange(6000) % 6
    rule = rule(0.5, 3, seed=seed) if rule is partition.labels else rule(1e-6, 10, seed=seed)
    one, two = (counts_of(split(rule, labelled(label), clients, task).train, label) > 0 for task in (1, 2))
    assert (one == two).all()


# Dirichlet.


@given(
    st.sampled_from([1e-9, 0.01, 0.5, 10.0, 1e9]),
    st.lists(st.integers(1, 12), min_size=1, max_size=8),
    st.lists(st.integers(1, 60), min_size=1, max_size=6),
    st.integers(0, 99),
)
def test_dirichlet_keeps_sizes_exactly_while_there_are_examples(alpha, sizes, frequency, seed):
    label = np.repeat(np.arange(len(frequency)), frequency)
    clients, rows = len(sizes), len(label)
    if clients > rows:
        with refused("dirichlet", f"{clients} clients", f"{rows} examples"):
            split(partition.dirichlet(alpha, sizes), labelled(label), clients, seed)
        return
    shards = split(partition.dirichlet(alpha, sizes), labelled(label), clients, seed).train
    check_disjoint(shards, clients, rows)
    if sum(sizes) <= rows:
        assert shards.sizes.tolist() == sizes
        return
    assert shards.sizes.sum() == rows
    further = np.array(sizes) - 1
    exact = 1 + further * (rows - clients) / further.sum()
    assert (np.abs(shards.sizes - exact) < 1).all()


@pytest.mark.parametrize("frequency", [(25_000, 25_000, 25_000, 25_000), (70_000, 20_000, 5_000, 5_000)])
@pytest.mark.parametrize("alpha", [1e-4, 0.2, 2.0, 1e9])
def test_dirichlet_has_the_mean_and_the_variance_of_the_distribution(alpha, frequency):
    label = np.repeat(np.arange(4), frequency)
    clients, size = 1500, 10
    counts = counts_of(split(partition.dirichlet(alpha, size), labelled(label), clients).train, label)
    mean = np.array(frequency) / 100_000
    # Variance of a Dirichlet-multinomial count; as alpha grows, that of a multinomial one: IID data.
    variance = size * mean * (1 - mean) * (size + 4 * alpha) / (1 + 4 * alpha)
    assert np.abs(counts.mean(0) - size * mean).max() < 4.5 * np.sqrt(variance.max() / clients)
    assert np.abs(counts.var(0) / variance - 1).max() < 0.3
    assert abs(counts.var(0).sum() / variance.sum() - 1) < 0.12


def test_who_asks_for_a_label_that_ran_out_turns_to_its_other_labels():
    """Clients of one label each: those whose label is exhausted take what is left, all others keep theirs."""
    label = np.repeat([0, 1], [500, 500])
    shards = split(partition.dirichlet(1e-9, 10), labelled(label), 100).train
    counts = counts_of(shards, label)
    assert counts.sum(0).tolist() == [500, 500]
    asked = (counts > 0).sum(1)
    assert (asked == 1).sum() >= 40
    assert (shards.sizes == 10).all()


def test_requests_for_a_scarce_label_have_equal_chances():
    label = np.repeat([0, 1], [300, 9700])
    rng = generator()
    first = np.zeros(100)
    for _ in range(300):
        first += counts_of(partition.dirichlet(1e9, 100)(labelled(label), 100, rng).train, label)[:, 0]
    assert first.sum() == 300 * 300
    assert np.abs(first / 300 - 3).max() < 5 * np.sqrt(3 / 300)


# Clusters.


@given(st.integers(1, 7), st.integers(0, 20), st.integers(0, 40), st.integers(0, 99))
def test_clusters_divide_labels_and_clients_evenly(number, more, extra, seed):
    clients, classes = number + more, number + extra
    label = np.arange(classes * 100) % classes
    made = split(partition.clusters(number, sizes=classes), labelled(label), clients, seed)
    assert np.ptp(np.bincount(made.groups, minlength=number)) <= 1
    held = counts_of(made.train, label) > 0
    sets = np.array([held[made.groups == group].any(0) for group in range(number)])
    assert (held == sets[made.groups]).all()
    assert (sets.sum(0) == 1).all()
    assert np.ptp(sets.sum(1)) <= 1


@given(st.integers(2, 8), st.integers(0, 12), st.floats(0.01, 1), st.integers(0, 99))
def test_the_label_sets_of_clusters_differ_whatever_the_fraction(number, extra, within, seed):
    classes = number + extra
    label = np.arange(classes * 400) % classes
    fraction = within * (1 - 1 / classes)  # at most all labels but one
    made = split(partition.clusters(number, fraction, classes), labelled(label), number, seed)
    held = counts_of(made.train, label) > 0
    assert len(np.unique(held, axis=0)) == number
    assert (np.abs(held.sum(1) - max(1, fraction * classes)) <= 1).all()
    if fraction <= 1 / number:
        assert (held.sum(0) <= 1).all()


@given(st.integers(1, 5), st.integers(0, 40), st.integers(0, 99))
def test_clusters_are_the_same_for_every_task_with_a_seed(number, more, seed):
    rule, other = (partition.clusters(number, sizes=5, seed=seed + s) for s in (0, 1))
    ten, six = (labelled(np.arange(3000) % classes) for classes in (10, 6))
    clients = number + more
    one, two = split(rule, ten, clients, 1), split(rule, six, clients, 2)
    assert one.groups.tolist() == two.groups.tolist()
    if number > 1 and clients > 20:
        assert split(other, ten, clients, 1).groups.tolist() != one.groups.tolist()
    same = split(rule, ten, clients, 3)
    assert (counts_of(same.train, ten.y) > 0).tolist() == (counts_of(one.train, ten.y) > 0).tolist() or number == 1
    assert same.train.index.tolist() != one.train.index.tolist()


def test_clusters_without_a_seed_are_independent_between_tasks():
    rng, dataset = generator(), labelled(np.arange(1000) % 10)
    groups = [partition.clusters(5, sizes=4)(dataset, 30, rng).groups for _ in range(400)]
    agreement = [adjusted_rand_score(*pair) for pair in zip(groups[::2], groups[1::2], strict=True)]
    assert abs(np.mean(agreement)) < 4 * np.std(agreement) / np.sqrt(len(agreement))


def test_rich_clients_and_clusters_of_one_seed_are_unrelated():
    dataset = labelled(np.arange(20_000) % 10)
    together = []
    for seed in range(200):
        sizes = partition.high_low(0.5, (20, 20), (10, 10), seed=seed)
        made = split(partition.clusters(2, sizes=sizes, seed=seed), dataset, 40)
        together.append(((made.train.sizes == 20) & (made.groups == 0)).sum())
    assert abs(np.mean(together) - 10) < 4 * np.std(together) / np.sqrt(200)
    assert np.std(together) > 1


@pytest.mark.parametrize("consistent", [True, False])
def test_a_federation_has_the_same_clusters_in_all_tasks_only_with_a_seed(consistent):
    tasks = [toy_task(name) for name in "ab"]
    rule = partition.clusters(2, sizes=2, seed=3 if consistent else None)
    made = Federation(tasks, 12, partition=rule)
    sets = [counts_of(shards, task.data.y) > 0 for shards, task in zip(made.shards, tasks, strict=True)]
    same = [(held[:, None] == held[None]).all(2).tolist() for held in sets]
    assert (same[0] == same[1]) == consistent


# Natural owners.


@given(st.integers(1, 8), st.integers(0, 99))
def test_owners_gives_each_client_all_rows_of_one_owner_for_training_and_testing(clients, seed):
    owner, owner_test = np.arange(40) % 8, np.arange(24) % 8
    x, x_test = torch.zeros(40, 1), torch.zeros(24, 1)
    dataset = Dataset("owned", x, x[:, 0], x_test, x_test[:, 0], owner, owner_test)
    made = split(partition.owners(), dataset, clients, seed)
    check_disjoint(made.train, clients, 40)
    check_disjoint(made.test, clients, 24)
    chosen = [set(owner[made.train.of(i)]) | set(owner_test[made.test.of(i)]) for i in range(clients)]
    assert all(len(names) == 1 for names in chosen)
    assert len(set.union(*chosen)) == clients
    assert set(zip(made.train.sizes, made.test.sizes, strict=True)) == {(5, 3)}


@given(
    st.lists(st.integers(0, 12), min_size=1, max_size=12),
    st.integers(1, 6),
    st.integers(0, 6) | st.none(),
    st.integers(0, 99),
)
def test_owners_are_those_with_enough_examples_and_keep_at_most_what_is_allowed(numbers, least, more, seed):
    most = None if more is None else least + more
    owner = generator(seed).permutation(np.repeat(np.arange(len(numbers)), numbers))
    able = [n for n in numbers if n >= least]
    if not able:
        return
    x = torch.zeros(len(owner), 1)
    dataset = Dataset("owned", x, x[:, 0], x[:1], x[:1, 0], owner)
    shards = split(partition.owners(least, most), dataset, len(able), seed).train
    check_disjoint(shards, len(able), len(owner))
    assert shards.sizes.tolist() == [n if most is None else min(n, most) for n in able]
    assert all(len(set(owner[shards.of(i)])) == 1 for i in range(len(able)))
    with refused("owners", f"{len(able)} owners", f"{len(able) + 1} clients"):
        split(partition.owners(least, most), dataset, len(able) + 1)


def test_every_row_of_a_large_owner_may_be_kept():
    dataset = labelled(np.arange(12), owner=[0] * 12)
    rng, rule = generator(), partition.owners(most=3)
    kept = np.bincount(np.concatenate([rule(dataset, 1, rng).train.index for _ in range(2000)]), minlength=12)
    assert np.abs(kept / 2000 - 0.25).max() < 5 * np.sqrt(0.25 * 0.75 / 2000)


# What cannot be.

FIVE = labelled([0, 0, 0, 1, 1])
RARE = labelled([0, 0, 0, 0, 1])
REAL = from_arrays([[0.0]] * 5, [0.5] * 5)
OWNED = labelled([0, 1, 2, 3], owner=[0, 0, 1, 1])


@refusals(
    (lambda: split(partition.iid(), FIVE, 6), "client 5", "no example", "5 for 6 clients"),
    (lambda: split(partition.iid(3), FIVE, 2), "iid", "2 clients need 6 examples", "has 5"),
    (lambda: split(partition.iid([1, 0]), FIVE, 2), "client 1", "no example"),
    (lambda: split(partition.iid([1.5, 2]), FIVE, 2), "sizes is [1.5, 2]", "whole numbers"),
    (lambda: split(partition.iid(lambda *_: np.ones(3, int)), FIVE, 2), "3 sizes for 2 clients"),
    (lambda: split(partition.labels(), REAL, 2), "labels", "not class numbers"),
    (lambda: split(partition.labels(0.5, 1), RARE, 4), "2 of 4 clients share label 1", "has only 1."),
    (lambda: split(partition.dirichlet(1.0, 9), FIVE, 6), "dirichlet", "6 clients", "has 5 examples"),
    (lambda: split(partition.clusters(3), FIVE, 2), "clusters", "2 clients for 3 clusters"),
    (lambda: split(partition.clusters(3), FIVE, 4), "3 clusters cannot have different labels", "the 2 labels"),
    (lambda: split(partition.clusters(2, 1.0), FIVE, 4), "2 clusters cannot", "2 of the 2 labels"),
    (lambda: split(partition.owners(), FIVE, 2), "owners", "has no owners"),
    (lambda: split(partition.owners(), OWNED, 3), "owners", "2 owners for 3 clients"),
    (lambda: split(partition.owners(least=3), OWNED, 1), "0 owners with at least 3 examples for 1 clients"),
    (lambda: split(partition.iid(partition.dirichlet_sizes(least=3)), FIVE, 2), "at least 3", "2 clients", "are 5"),
)
def test_a_partition_that_cannot_be_made_is_refused(make, words):
    with refused(*words):
        make()


@refusals(
    (lambda: partition.high_low(share=2.0), "high-low", "share is 2.0", "[0, 1]"),
    (lambda: partition.high_low(high=(5, 3)), "high is (5, 3)", "(least, most)"),
    (lambda: partition.high_low(low=(0, 3)), "low is (0, 3)", "(least, most)"),
    (lambda: partition.high_low(low=7), "low is 7", "two whole numbers"),
    (lambda: partition.high_low(seed=-1), "seed is -1", "whole number"),
    (lambda: partition.uniform(0), "uniform", "least is 0"),
    (lambda: partition.uniform(5, 4), "uniform", "most is 4", "from 5"),
    (lambda: partition.lognormal(mean=float("nan")), "lognormal", "mean is nan"),
    (lambda: partition.lognormal(sigma=-1), "lognormal", "sigma is -1"),
    (lambda: partition.lognormal(least=5, most=4), "lognormal", "most is 4", "from 5"),
    (lambda: partition.dirichlet_sizes(alpha=0), "sizes 'dirichlet'", "alpha is 0", "above 0"),
    (lambda: partition.dirichlet_sizes(least=0.5), "sizes 'dirichlet'", "least is 0.5"),
    (lambda: partition.labels(0.0), "labels", "fraction is 0.0", "(0, 1]"),
    (lambda: partition.dirichlet(0.0), "partition 'dirichlet'", "alpha is 0.0"),
    (lambda: partition.clusters(0), "clusters", "number is 0"),
    (lambda: partition.clusters(2, 0.0), "clusters", "fraction is 0.0"),
    (lambda: partition.clusters(2, seed=True), "clusters", "seed is True"),
    (lambda: partition.owners(least=0), "owners", "least is 0"),
    (lambda: partition.owners(least=3, most=2), "owners", "most is 2", "from 3"),
)
def test_a_wrong_option_is_refused_with_its_name_and_what_was_expected(make, words):
    with refused(*words):
        make()
