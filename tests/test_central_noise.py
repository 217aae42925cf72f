"""Noise on sums: its size, the sensitivity of weighted sums over all draws, the accountant, and what is refused."""

import itertools
import json

import numpy as np
import pytest
import torch
from scipy.stats import kstest

import mmfl
from conftest import every_draw, refused, toy_task, view_of
from mmfl.aggregation import Average, SelfNormalised, Unbiased
from mmfl.aggregation.noisy import NoisySum
from mmfl.allocation import Allocation
from mmfl.methods import METHODS, make_method
from mmfl.privacy import CentralNoise, PrivacySpent, epsilon
from mmfl.updates import Trained, Updates

RULES = [Average(), Unbiased(), SelfNormalised()]


def federation() -> mmfl.Federation:
    return mmfl.Federation([toy_task("a"), toy_task("b", classes=3)], 6, capacity=[2, 1, 2, 1, 1, 2])


def updates_of(flat: torch.Tensor, client, allocation: Allocation, task: int = 0) -> Updates:
    steps = np.ones(len(client), dtype=np.int64)
    return Updates.of(task, Trained(np.asarray(client), flat, np.zeros(len(client)), steps), allocation)


def small() -> tuple:
    """Three clients with capacities 2, 1, 1 and uneven data, and their probabilities."""
    view = view_of(np.array([[5], [1], [3]]), capacity=np.array([2, 1, 1]))
    return view, np.array([[0.4], [0.15], [0.7]])


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
@pytest.mark.parametrize("change", ["replaced", "absent"])
def test_no_draw_lets_a_client_move_the_sum_further_than_it_is_charged_for(rule, change):
    view, p = small()
    noise, clip = CentralNoise(clip=0.5, noise=1.3, change=change), 0.5
    largest = 0.0
    for _, count in every_draw(p, view.capacity):
        allocation = Allocation.of(count, p)
        client = np.flatnonzero(count[:, 0])
        if not len(client):
            continue
        for row, signs in itertools.product(range(len(client)), itertools.product([1, -1], repeat=len(client))):
            flat = torch.zeros(len(client), 2)
            flat[:, 0] = torch.tensor(signs) * 7.0  # far beyond the bound
            other = flat.clone()
            other[row, 0] = -flat[row, 0] if change == "replaced" else 0.0
            steps = []
            for rows in (flat, other):
                noisy = NoisySum(rule, CentralNoise(clip, 1e-12), accounted=True)
                updates = updates_of(rows, client, allocation)
                steps.append(noisy.aggregate(torch.zeros(2), updates, view, noisy.start(3, torch.zeros(2)))[0])
            updates = updates_of(flat, client, allocation)
            coefficients = rule.coefficients(updates, view)
            deviation = noise.noise * clip * coefficients.max()
            charged = np.sqrt(noise.losses(coefficients)[row]) * deviation
            moved = float((steps[0] - steps[1]).norm())
            assert moved <= charged * (1 + 1e-5)
            largest = max(largest, moved / charged)
    assert largest > 1 - 1e-5  # the bound is reached


def test_inverse_probability_weights_of_any_draw_stay_below_share_by_probability():
    view, p = small()
    bound = view.share[:, 0] / p[:, 0]
    reached = np.zeros(3)
    for _, count in every_draw(p, view.capacity):
        client = np.flatnonzero(count[:, 0])
        updates = updates_of(torch.zeros(len(client), 1), client, Allocation.of(count, p))
        coefficients = Unbiased().coefficients(updates, view)
        assert (coefficients <= bound[client] * (1 + 1e-12)).all()
        reached[client] = np.maximum(reached[client], coefficients)
    np.testing.assert_allclose(reached, bound)


def test_the_noise_has_the_standard_deviation_that_it_should_have():
    view, p = small()
    count = np.array([[1], [0], [1]])
    client, flat = np.array([0, 2]), torch.zeros(2, 200_000)
    for rule in RULES:
        noisy = NoisySum(rule, CentralNoise(clip=0.5, noise=3.0), accounted=True)
        updates = updates_of(flat, client, Allocation.of(count, p))
        step, _ = noisy.aggregate(torch.zeros(200_000), updates, view, noisy.start(3, flat[0]))
        deviation = 3.0 * 0.5 * rule.coefficients(updates, view).max()
        assert abs(float(step.std()) / deviation - 1) < 5 / np.sqrt(2 * 200_000)
        assert kstest((step / deviation).numpy(), "norm").pvalue > 0.001


def test_a_server_optimiser_sees_the_noisy_sum_only():
    class Watches(mmfl.AggregationRule):
        sums_updates = True

        def coefficients(self, updates, view):
            return np.ones(len(updates))

        def aggregate(self, weights, updates, view, state):
            for read in (updates.norms, lambda: updates.flat):
                with refused("only their sum"):
                    read()
            return weights - updates.combine(2 * np.ones(len(updates))), state

    view, p = small()
    updates = updates_of(torch.ones(1, 3), [0], Allocation.of(np.array([[1], [0], [0]]), p))
    noisy = NoisySum(Watches(), CentralNoise(10.0, 0.5), accounted=True)
    once, _ = noisy.aggregate(torch.zeros(3), updates, view, noisy.start(3, torch.zeros(3)))
    assert (once + 2 * torch.ones(3)).abs().min() > 1e-3  # twice the noisy sum


@pytest.mark.parametrize("method", ["random", "mfa-rand", "full", "mmfl-lvr"])
def test_noise_almost_zero_changes_nothing_and_a_bound_clips_as_clients_would(method):
    options = {"rounds": 3, "rate": 0.6, "device": "cpu"}
    plain = mmfl.train(federation(), method, **options)
    quiet = mmfl.train(federation(), method, **options, central_noise=CentralNoise(1e3, 1e-12))
    clipped = mmfl.train(federation(), method, **options, central_noise=CentralNoise(0.05, 1e-9))
    at_clients = mmfl.train(federation(), method, **options, privacy=mmfl.privacy.Privacy(clip=0.05))
    for one, other in ((plain, quiet), (at_clients, clipped)):
        for mine, theirs in zip(one.weights, other.weights, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-6)


def test_noise_is_the_same_in_every_repetition_of_a_simulation_and_secret_noise_is_not():
    options = {"rounds": 2, "rate": 0.6, "device": "cpu"}
    one, again, secret = (
        mmfl.train(federation(), "random", **options, central_noise=CentralNoise(1.0, 1.0, secret=is_secret))
        for is_secret in (False, False, True)
    )
    assert torch.equal(one.weights[0], again.weights[0])
    assert not torch.equal(one.weights[0], secret.weights[0])


# --- the accountant ---


def test_the_cost_of_full_participation_is_that_of_as_many_gaussian_mechanisms():
    task = toy_task("a")
    run = mmfl.train(mmfl.Federation([task], 4), "full", 5, 1.0, central_noise=CentralNoise(1.0, 6.0, delta=1e-5))
    expected = [epsilon(6.0, releases, 1e-5) for releases in range(1, 6)]
    recorded = [record.extras["epsilon"] for record in run.records]
    share = run.federation.sizes[:, 0] / run.federation.sizes[:, 0].max()
    np.testing.assert_allclose(recorded, expected, rtol=1e-3)  # of the client with most data
    each = [epsilon(6.0 / each, 5, 1e-5) for each in share]
    spent = run.privacy_spent.epsilons()
    np.testing.assert_allclose(spent, each, rtol=5e-3)
    assert (spent >= np.array(each) * (1 - 1e-9)).all()


def test_records_of_a_directory_have_the_epsilon_and_a_resumed_run_goes_on_counting(tmp_path):
    def train(rounds, place, **options):
        noise = CentralNoise(1.0, 4.0, change="absent")
        return mmfl.train(federation(), "random", rounds, 0.6, central_noise=noise, directory=place, **options)

    whole = train(4, tmp_path / "whole", checkpoint_every=1)
    train(2, tmp_path / "parts", checkpoint_every=1)
    parts = train(4, tmp_path / "parts", resume=True)
    read = [json.loads(line)["epsilon"] for line in (tmp_path / "parts" / "metrics.jsonl").read_text().splitlines()]
    assert read == [record.extras["epsilon"] for record in whole.records]
    assert (np.diff(read) >= 0).all()
    np.testing.assert_array_equal(whole.privacy_spent.losses, parts.privacy_spent.losses)


def test_losses_are_rounded_up_and_nothing_costs_nothing():
    spent = PrivacySpent(np.array([0.0, 0.01234, 0.01]), 1e-6)
    assert spent.epsilons()[0] == 0
    exact = epsilon(1 / np.sqrt(0.01234) * 2, 1, 1e-6)
    assert exact <= spent.epsilons()[1] < exact * 1.005
    assert spent.largest == pytest.approx(exact)


def test_where_losses_decide_who_is_drawn_no_epsilon_is_claimed():
    run = mmfl.train(federation(), "mmfl-lvr", 2, 0.6, central_noise=CentralNoise(1.0, 4.0))
    assert run.privacy_spent is None
    assert all("epsilon" not in record.extras for record in run.records)


# --- what is refused ---


@pytest.mark.parametrize("method", [name for name in METHODS if make_method(name).needs_single_updates])
def test_methods_that_need_single_updates_are_refused(method):
    with refused("central noise", method, "single", "'random'"):
        mmfl.train(federation(), method, 1, central_noise=CentralNoise(1.0, 1.0))


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ({"clip": 0.0, "noise": 1.0}, "clip"),
        ({"clip": float("inf"), "noise": 1.0}, "clip"),
        ({"clip": 1.0, "noise": 0.0}, "noise"),
        ({"clip": 1.0, "noise": -1.0}, "noise"),
        ({"clip": 1.0, "noise": 1.0, "delta": 1.0}, "delta"),
        ({"clip": 1.0, "noise": 1.0, "change": "gone"}, "change"),
    ],
)
def test_values_that_make_no_sense_are_refused(values, word):
    with refused("central noise", word):
        CentralNoise(**values)
