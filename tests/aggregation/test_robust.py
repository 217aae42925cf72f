"""Robust aggregations: what they are, and how many false updates they bear."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.stats import trim_mean

import mmfl
from conftest import refusals, refused, toy_task, view_of
from mmfl.aggregation import (
    Average,
    FedVARP,
    GeometricMedian,
    Krum,
    Median,
    MultiKrum,
    NormClipping,
    TrimmedMean,
    Unbiased,
    robust,
)
from mmfl.methods import make_method
from mmfl.updates import Updates

FAR = 1e36  # float32 ends at 3.4e38
RULES = {
    "median": Median(),
    "trimmed-mean": TrimmedMean(0.3),
    "krum": Krum(0.3),
    "multi-krum": MultiKrum(0.3),
    "geometric-median": GeometricMedian(),
}
EVERY = pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
MATRICES = st.builds(
    lambda clients, seed: np.random.default_rng(seed).integers(-8, 9, (clients, 4)).astype(float),
    st.integers(1, 13),
    st.integers(0, 10**6),
)


def updates_of(rows, round: int = 1, client=None) -> tuple[Updates, mmfl.RoundView]:
    """Updates with these rows, and the view of their round; clients have 1, 2, 3, ... examples."""
    client = np.arange(len(rows)) if client is None else np.asarray(client)
    view = view_of(np.arange(1, client.max(initial=0) + 2)[:, None], round=round)
    flat, ones = torch.as_tensor(rows, dtype=torch.float32), np.ones(len(rows))
    return Updates(0, client, ones.astype(int), 0.5 * ones, flat, ones, ones.astype(int)), view


def step(rule, rows) -> np.ndarray:
    updates, view = updates_of(rows)
    return -rule.aggregate(torch.zeros(updates.flat.shape[1]), updates, view, None)[0].numpy()


def honest(clients: int, parameters: int = 20, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(1, 1, (clients, parameters))


# What each rule is.


@pytest.mark.parametrize("clients", range(1, 9))
def test_the_median_and_the_trimmed_mean_are_those_of_numpy_and_scipy(clients):
    rows = honest(clients)
    np.testing.assert_allclose(step(Median(), rows), np.median(rows, 0), rtol=1e-5)
    np.testing.assert_allclose(step(TrimmedMean(0), rows), rows.mean(0), rtol=1e-5)
    np.testing.assert_allclose(step(TrimmedMean(0.25), rows[:8]), reference_trimmed(rows), rtol=1e-5)


def reference_trimmed(rows: np.ndarray) -> np.ndarray:
    trimmed = min(-(-len(rows) // 4), (len(rows) - 1) // 2)
    return trim_mean(rows, trimmed / len(rows) + 1e-9, axis=0)


@pytest.mark.parametrize("clients", [4, 7, 12])
def test_the_geometric_median_has_the_least_sum_of_distances(clients):
    rows = honest(clients, 5)

    def distances(point):
        return np.linalg.norm(rows - point, axis=1).sum()

    found = minimize(distances, rows.mean(0), tol=1e-12)
    centre = step(GeometricMedian(), rows)
    assert distances(centre) <= found.fun * (1 + 1e-6)
    np.testing.assert_allclose(centre, found.x, atol=2e-3)


def test_the_geometric_median_of_points_on_a_line_is_the_one_in_the_middle():
    np.testing.assert_allclose(step(GeometricMedian(), [[0.0], [1.0], [100.0]]), [1], atol=1e-4)


@pytest.mark.parametrize(("clients", "attackers"), [(3, 0), (5, 1), (10, 3), (13, 4)])
def test_krum_and_multi_krum_are_their_definition(clients, attackers):
    rows = honest(clients)
    scores = np.array([np.sort([((a - b) ** 2).sum() for b in rows])[1 : clients - attackers - 1].sum() for a in rows])
    lowest = np.isclose(scores, scores.min(), rtol=1e-9)
    np.testing.assert_allclose(step(Krum(0.3), rows), rows[lowest].mean(0), rtol=1e-5)
    best = np.argsort(scores)[: clients - attackers]
    np.testing.assert_allclose(step(MultiKrum(0.3), rows), rows[best].mean(0), rtol=1e-5)


@EVERY
def test_of_one_or_two_updates_the_centre_is_their_mean_and_of_none_there_is_no_step(rule):
    for clients in (1, 2):
        rows = honest(clients)
        np.testing.assert_allclose(step(rule, rows), rows.mean(0), atol=1e-4)
    assert not step(rule, honest(0)).any()


@EVERY
def test_blocks_of_columns_change_nothing(rule, monkeypatch):
    whole = step(rule, honest(9))
    monkeypatch.setattr(robust, "_BLOCK_BYTES", 9 * 8 * 3)
    np.testing.assert_allclose(step(rule, honest(9)), whole, rtol=1e-6)


# What all have in common.


@EVERY
@given(MATRICES, st.randoms(use_true_random=False))
def test_the_order_of_the_clients_does_not_matter(rule, rows, random):
    order = random.sample(range(len(rows)), len(rows))
    np.testing.assert_allclose(step(rule, rows[order]), step(rule, rows), atol=1e-3)


@EVERY
@given(MATRICES, st.integers(-50, 50))
def test_updates_moved_by_a_vector_move_the_centre_by_it(rule, rows, by):
    vector = by * np.arange(1, 5)
    np.testing.assert_allclose(step(rule, rows + vector), step(rule, rows) + vector, atol=1e-3)


@EVERY
def test_examples_probabilities_and_counts_have_no_say(rule):
    updates, view = updates_of(honest(7))
    other = replace(updates, count=np.arange(1, 8), probability=np.linspace(0.1, 0.9, 7))
    steps = [rule.aggregate(torch.zeros(20), each, view, None)[0] for each in (updates, other)]
    assert torch.equal(*steps)


# Breakdown points: of n clients, so many false updates leave the centre near the honest ones, and no more.

BREAKDOWN = [
    *(("median", n, (n - 1) // 2) for n in (3, 4, 9, 10)),
    *(("geometric-median", n, (n - 1) // 2) for n in (3, 4, 9, 10)),
    *(("trimmed-mean", n, f) for n, f in ((3, 1), (9, 3), (10, 3), (20, 6))),
    *((rule, n, f) for rule in ("krum", "multi-krum") for n, f in ((5, 1), (9, 3), (10, 3), (20, 6))),
]


def attacked(clients: int, attackers: int, size: float, attack: str) -> np.ndarray:
    """Rows of which the last ones are false: all the same, all different, or half on either side."""
    rows = honest(clients)
    direction = {"together": np.ones((attackers, 20)), "apart": honest(attackers, seed=1)}
    direction["either side"] = np.resize([1.0, -1.0], attackers)[:, None] * np.ones((attackers, 20))
    rows[clients - attackers :] = size * direction[attack]
    return rows


@pytest.mark.parametrize("attack", ["together", "apart", "either side"])
@pytest.mark.parametrize("size", [3.0, 100.0, 1e6, FAR])
@pytest.mark.parametrize(("name", "clients", "attackers"), BREAKDOWN)
def test_below_the_breakdown_point_no_attack_moves_the_centre_far(name, clients, attackers, size, attack):
    rows = attacked(clients, attackers, size, attack)
    good = rows[: clients - attackers]
    centre = step(RULES[name], rows)
    diameter = max(np.linalg.norm(a - b) for a in good for b in good)
    # A geometric median is within 2 (n - f) / (n - 2f) radii of honest updates, the others within their diameter or so.
    factor = 2 * (clients - attackers) / (clients - 2 * attackers) if name == "geometric-median" else 2
    assert np.linalg.norm(centre - good.mean(0)) <= factor * diameter


@pytest.mark.parametrize(("name", "clients", "attackers"), BREAKDOWN)
def test_above_the_breakdown_point_an_attack_moves_the_centre_as_far_as_it_likes(name, clients, attackers):
    more = clients - attackers if name.endswith("krum") else attackers + 1
    for size in (1e6, 1e20):
        assert np.linalg.norm(step(RULES[name], attacked(clients, more, size, "together"))) > 0.05 * size


@pytest.mark.parametrize("name", ["average", "unbiased", "self-normalised"])
def test_a_single_attacker_breaks_aggregations_that_are_not_robust(name):
    rule = make_method({"name": "mine", "allocation": "full", "aggregation": name}).aggregation
    assert np.linalg.norm(step(rule, attacked(20, 1, 1e6, "together"))) > 1e4


# Norm clipping.


def clip(rule, state, rows, round=1, client=None):
    updates, view = updates_of(rows, round, client)
    weights, state = rule.aggregate(torch.zeros(2), updates, view, state)
    return -weights.numpy(), state, rule.report(view, 0, state)


def test_a_given_bound_is_the_largest_norm():
    rule, rows = NormClipping(Average(weighted=False), bound=1.0), [[3.0, 4.0], [0.3, 0.4]]
    found, _, report = clip(rule, rule.start(2, torch.zeros(2)), rows)
    np.testing.assert_allclose(found, [0.45, 0.6], rtol=1e-6)
    assert report == {"norm_bound": 1.0, "clipped": 1}


def test_the_bound_follows_the_last_norms_of_clients_in_recent_rounds():
    rule = NormClipping(Average(weighted=False), window=2, factor=2)
    state = rule.start(5, torch.zeros(2))
    bounds = []
    for round, norms in enumerate([{0: 1, 1: 2, 2: 3}, {0: 5}, {}, {3: 9, 4: 100}, {}, {}, {}], 1):
        rows = np.array([[norm, 0.0] for norm in norms.values()]).reshape(-1, 2)
        _, state, report = clip(rule, state, rows, round, np.array(list(norms), dtype=int))
        bounds.append(report.get("norm_bound"))
    assert bounds == [4, 6, 10, 109, 109, None, None]  # of 1 2 3, 5 2 3, 5, 9 100, 9 100, none, none


def test_clipping_bounds_what_a_minority_of_clients_does_however_large_its_updates():
    for size in (1e3, FAR):
        rule, rows = NormClipping(Average(weighted=False)), attacked(9, 3, size, "together")[:, :2]
        found, _, report = clip(rule, rule.start(9, torch.zeros(2)), rows)
        assert np.linalg.norm(found) <= report["norm_bound"] <= np.linalg.norm(rows[:6], axis=1).max()


def test_where_most_updates_are_zero_nothing_is_left_of_the_others():
    rule = NormClipping()
    found, _, report = clip(rule, rule.start(3, torch.zeros(2)), [[0.0, 0.0], [0.0, 0.0], [1.0, 1.0]])
    assert not found.any()
    assert report == {"norm_bound": 0.0, "clipped": 1}


@pytest.mark.parametrize("inner", [Unbiased(), FedVARP(), Median()], ids=lambda rule: type(rule).__name__)
def test_with_a_bound_beyond_all_norms_clipping_is_the_inner_rule(inner):
    federation = mmfl.Federation([toy_task()], 6)
    runs = [
        mmfl.train(federation, mmfl.Method("mine", mmfl.allocation.RandomProcessors(), rule), rounds=4, rate=0.5)
        for rule in (inner, NormClipping(inner, bound=1e9))
    ]
    assert torch.equal(runs[0].weights[0], runs[1].weights[0])


def test_an_allocation_by_residuals_sees_those_of_clipped_updates():
    rule = NormClipping(bound=1.0)
    updates, view = updates_of([[3.0, 4.0], [0.3, 0.4]])
    np.testing.assert_allclose(rule.residuals(updates, view, rule.start(2, torch.zeros(2))), [1, 0.5], rtol=1e-6)


# Options.


def part(**options):
    return lambda: make_method({"name": "mine", "allocation": "full", "aggregation": options})


@refusals(
    (part(name="trimmed-mean", share=0.5), "trimmed-mean", "share is 0.5", "[0, 0.5)"),
    (part(name="krum", share=-0.1), "'krum'", "share is -0.1", "[0, 0.5)"),
    (part(name="multi-krum", share="much"), "'multi-krum'", "share is 'much'"),
    (part(name="geometric-median", smoothing=0), "smoothing is 0", "a positive number"),
    (part(name="norm-clipping", bound=0), "bound is 0", "a positive number"),
    (part(name="norm-clipping", factor=-1), "factor is -1", "a positive number"),
    (part(name="norm-clipping", window=0), "window is 0", "a whole number of at least 1"),
    (part(name="norm-clipping", bound=2.0, factor=3.0), "factor is 3.0", "beside a bound"),
    (part(name="norm-clipping", inner="medain"), "unknown aggregation 'medain'", "did you mean 'median'?"),
    (part(name="median", share=0.2), "unknown option 'share'"),
)
def test_invalid_options_are_refused(make, words):
    with refused(*words):
        make()


def test_allocations_that_need_a_memory_refuse_rules_without_one():
    method = {"name": "mine", "allocation": "expected-residual-variance", "aggregation": "krum"}
    with refused("needs expected residuals", "Krum remembers no updates"):
        mmfl.train(mmfl.Federation([toy_task()], 4), method, rounds=1)
