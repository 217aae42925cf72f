"""Clipping and noise do what they say, and the accountant agrees with closed forms and with another accountant."""

import itertools
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from mpmath import mp
from scipy.stats import kstest

import mmfl
from conftest import every_draw, refusals, refused, toy_task, view_of
from mmfl import privacy as privacy_module
from mmfl.aggregation import Unbiased, inverse_probability
from mmfl.allocation import Allocation
from mmfl.errors import UserError
from mmfl.privacy import Budget, NoiseAddress, Privacy, epsilon, epsilons
from mmfl.randomness import normal
from mmfl.updates import Trained, Updates

DELTAS = (1e-9, 1e-6, 1e-3)
RATIOS = (0.2, 0.7, 1.0, 3.0, 20.0)
CHANGES = (("replaced", 2.0), ("absent", 1.0))


def place(client, seed=0, round=1, task=0):
    return NoiseAddress(seed, round, task, np.asarray(client))


def noise_of(where, length=200, protection=None):
    """The noise that is added to updates of zero."""
    protection = protection or Privacy(clip=1.0, noise=1.0)
    return protection.protect(torch.zeros(len(where.client), length), where)


def analytic_delta(ratio, eps):
    """Theorem 8 of Balle & Wang 2018, in 50 digits: `ratio` is the standard deviation over the sensitivity."""
    with mp.workdps(50):
        ratio, eps = mp.mpf(ratio), mp.mpf(eps)
        return mp.ncdf(1 / (2 * ratio) - eps * ratio) - mp.exp(eps) * mp.ncdf(-1 / (2 * ratio) - eps * ratio)


# Clipping


@given(st.lists(st.floats(-1e3, 1e3, width=32), min_size=3, max_size=3), st.floats(0.01, 100))
def test_a_clipped_update_keeps_its_direction_and_is_no_longer_than_clip(row, clip):
    update = torch.tensor([row])
    clipped = Privacy(clip).protect(update)
    length = float(update.double().norm())
    assert float(clipped.double().norm()) <= min(length, clip) * (1 + 1e-6)
    torch.testing.assert_close(clipped * max(1.0, length / clip), update, rtol=1e-5, atol=1e-30)


def test_an_update_that_is_short_enough_is_unchanged_to_the_bit():
    updates = torch.randn(5, 40, generator=torch.Generator().manual_seed(0))
    assert torch.equal(Privacy(clip=100.0).protect(updates), updates)
    assert torch.equal(Privacy(clip=1.0).protect(torch.zeros(2, 3)), torch.zeros(2, 3))


def test_by_default_nothing_is_changed():
    updates = torch.tensor([[1e30, float("nan")]])
    assert Privacy().protect(updates) is updates


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_the_kind_of_numbers_stays(dtype):
    updates = torch.ones(2, 3, dtype=dtype)
    assert Privacy(clip=0.5).protect(updates).dtype == dtype
    assert Privacy(clip=0.5, noise=1.0).protect(updates).dtype == dtype


NOT_FINITE = pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -float("inf")])


@NOT_FINITE
def test_without_noise_an_update_that_is_not_finite_stays_so_and_is_rejected(wrong):
    updates = Privacy(clip=1.0).protect(torch.tensor([[1.0, wrong], [1.0, 0.0]]))
    trained = Trained(np.arange(2), updates, np.ones(2), np.ones(2, dtype=np.int64))
    assert Updates.of(0, trained).valid().client.tolist() == [1]


@NOT_FINITE
@pytest.mark.parametrize("where", [place([0]), None])
def test_with_noise_nobody_sees_that_an_update_was_not_finite(wrong, where):
    sent = Privacy(clip=1.0, noise=1.0).protect(torch.tensor([[1.0, wrong, 2.0]]), where)
    assert torch.isfinite(sent).all()
    if where is not None:
        assert torch.equal(sent, noise_of(where, 3))


# Noise


def test_noise_is_added_to_the_clipped_update():
    where, protection = place([4]), Privacy(clip=2.0, noise=0.5)
    update = torch.tensor([[30.0, 40.0] + [0.0] * 198])
    clipped = Privacy(clip=2.0).protect(update)
    torch.testing.assert_close(protection.protect(update, where) - clipped, noise_of(where, 200, protection))


@pytest.mark.parametrize("where", [place(range(8)), None], ids=["addressed", "unpredictable"])
@pytest.mark.parametrize(("clip", "multiplier"), [(1.0, 1.0), (0.1, 3.0)])
def test_noise_is_normal_with_standard_deviation_noise_times_clip(where, clip, multiplier):
    sent = Privacy(clip, multiplier).protect(torch.zeros(8, 20_000, dtype=torch.float64), where)
    numbers = sent.flatten().numpy() / (clip * multiplier)
    assert abs(numbers.mean()) < 5 / np.sqrt(len(numbers))
    assert abs(numbers.var() - 1) < 5 * np.sqrt(2 / len(numbers))
    assert abs((numbers**4).mean() - 3) < 5 * np.sqrt(96 / len(numbers))
    assert kstest(numbers, "norm").pvalue > 1e-6
    assert np.abs(np.corrcoef(sent.numpy()) - np.eye(8)).max() < 5 / np.sqrt(20_000)


def test_noise_reaches_far_and_alike_on_both_sides():
    words = torch.tensor([0, 1, -2, -1])
    least, greatest, *middle = normal(words).tolist()
    assert -9 < least < -8
    assert greatest == -least
    assert np.abs(middle).max() < 1e-15


def test_the_noise_of_a_simulation_depends_on_its_address_and_on_nothing_else():
    here = noise_of(place([7, 3, 5]))
    assert torch.equal(noise_of(place([3]))[0], here[1])
    assert torch.equal(noise_of(place([5, 7]))[1], here[0])
    elsewhere = [place([7], seed=1), place([7], round=2), place([7], task=1), place([8])]
    different = [here[0], *(noise_of(where)[0] for where in elsewhere)]
    for one, other in itertools.combinations(different, 2):
        assert abs(np.corrcoef(one.numpy(), other.numpy())[0, 1]) < 0.4
    assert torch.equal(noise_of(place([7]), length=50)[0], here[0, :50])


def test_noise_is_the_same_however_much_of_it_is_drawn_at_once(monkeypatch):
    whole = noise_of(place(range(10)))
    monkeypatch.setattr(privacy_module, "_BATCH_BYTES", 3 * 8 * 200)
    assert torch.equal(noise_of(place(range(10))), whole)
    assert len(torch.unique(Privacy(clip=1.0, noise=1.0).protect(torch.zeros(10, 200)), dim=0)) == 10


def test_without_an_address_noise_is_new_every_time_and_from_the_operating_system(monkeypatch):
    protection, asked = Privacy(clip=1.0, noise=1.0), []
    first, second = (protection.protect(torch.zeros(2, 1000)) for _ in range(2))
    rows = torch.cat([first, second]).numpy()
    assert np.abs(np.corrcoef(rows) - np.eye(4)).max() < 0.2
    monkeypatch.setattr(privacy_module.os, "urandom", lambda size: asked.append(size) or bytes(size))
    protection.protect(torch.zeros(2, 1000))
    assert asked == [8 * 2000]


@refusals(
    (lambda: Privacy(clip=0.0), "clip is 0.0", "> 0"),
    (lambda: Privacy(clip=float("inf")), "clip is inf"),
    (lambda: Privacy(clip=1.0, noise=-0.1), "noise is -0.1"),
    (lambda: Privacy(noise=1.0), "noise is 1.0 without clip"),
    (lambda: Privacy(1.0).protect(torch.zeros(3)), "[3]", "[clients, parameters]"),
    (lambda: Privacy(1.0).protect(torch.zeros(3, 2, dtype=torch.int64)), "torch.int64", "floats"),
    (lambda: Privacy(1.0).protect(torch.zeros(3, 2), place([0, 1])), "2 clients for 3 updates"),
    (lambda: epsilon(-1.0, 1, 1e-6), "noise is -1.0"),
    (lambda: epsilon(1.0, -1, 1e-6), "releases is -1"),
    (lambda: epsilon(1.0, 1, 0.0), "delta is 0.0", "(0, 1)"),
    (lambda: epsilon(1.0, 1, 1e-6, "removed"), "unknown change 'removed'"),
    (lambda: Budget(float("inf"), 1e-6), "epsilon is inf"),
    (lambda: Budget(1.0, 2.0), "delta is 2.0"),
    (lambda: Budget(1.0, 1e-6, "replace"), "did you mean 'replaced'?"),
    (lambda: Budget(1.0, 1e-6).noise(0), "releases is 0"),
    (lambda: Budget(1.0, 1e-6).releases(-1.0), "noise is -1.0"),
)
def test_mistakes_are_named(make, words):
    with refused(*words):
        make()


# The accountant


@pytest.mark.parametrize(("change", "sensitivity"), CHANGES)
@pytest.mark.parametrize("delta", DELTAS)
@pytest.mark.parametrize("ratio", RATIOS)
def test_one_update_costs_what_the_analytic_gaussian_mechanism_says(ratio, delta, change, sensitivity):
    spent = epsilon(ratio * sensitivity, 1, delta, change)
    if spent > 0:
        assert float(analytic_delta(ratio, spent)) == pytest.approx(delta, rel=1e-6)
    else:
        assert float(analytic_delta(ratio, 0)) <= delta


@pytest.mark.parametrize(("change", "sensitivity"), CHANGES)
def test_the_cost_of_a_run_agrees_with_composed_privacy_loss_distributions(change, sensitivity):
    accounting = pytest.importorskip("dp_accounting")
    accountant = accounting.pld.PLDAccountant()
    for _ in range(12):  # one by one, so that the losses are convolved and not scaled
        accountant.compose(accounting.GaussianDpEvent(5.0 / sensitivity))
    assert accountant.get_epsilon(1e-6) == pytest.approx(epsilon(5.0, 12, 1e-6, change), rel=1e-3)


def test_no_update_costs_nothing_and_one_without_noise_everything():
    assert epsilon(0.0, 0, 1e-6) == 0
    assert epsilon(0.0, 1, 1e-6) == np.inf
    assert epsilon(1e-3, 100, 1e-6) < np.inf


def test_every_client_pays_for_what_it_sent():
    releases = np.array([3, 0, 5, 3])
    expected = [epsilon(4.0, int(k), 1e-6) for k in releases]
    np.testing.assert_array_equal(epsilons(4.0, releases, 1e-6), expected)
    assert epsilons(4.0, [], 1e-6).shape == (0,)


@pytest.mark.parametrize("change", ["replaced", "absent"])
@pytest.mark.parametrize("limit", [0.1, 1.0, 8.0, 50.0])
def test_a_budget_is_used_up_and_never_exceeded(limit, change):
    budget, noise = Budget(limit, 1e-6, change), 12.0
    allowed = budget.releases(noise)
    assert epsilon(noise, allowed, 1e-6, change) <= limit < epsilon(noise, allowed + 1, 1e-6, change)


@pytest.mark.parametrize("releases", [1, 2, 3, 30, 999, 100_000])
def test_the_noise_for_so_many_updates_allows_exactly_so_many(releases):
    budget = Budget(4.0, 1e-6)
    noise = budget.noise(releases)
    assert budget.releases(noise) == releases
    assert epsilon(noise, releases, 1e-6) <= 4.0
    assert epsilon(noise, releases, 1e-6) == pytest.approx(4.0, rel=1e-6)
    assert budget.releases(0.0) == 0


def test_without_the_library_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with refused("dp_accounting", "mmfl[privacy]"):
        epsilon(1.0, 1, 1e-6)
    assert Privacy(clip=1.0, noise=1.0).protect(torch.zeros(1, 2)).shape == (1, 2)


def test_a_test_of_the_threshold_kind_succeeds_no_more_often_than_epsilon_and_delta_allow():
    """An attacker that knows both updates, and watches the noisy one along their difference, as the server can."""
    protection, delta, trials = Privacy(clip=1.0, noise=2.0), 1e-2, 40_000
    spent = epsilon(2.0, 1, delta)
    sent = [
        protection.protect(torch.full((trials, 1), side * 9.0, dtype=torch.float64), place(range(trials), seed=seed))
        for seed, side in enumerate((1, -1))
    ]
    excess = [
        float((sent[0] > limit).double().mean() - np.exp(spent) * (sent[1] > limit).double().mean())
        for limit in np.linspace(-3, 6, 37)
    ]
    assert max(excess) <= delta + 5 * np.sqrt(delta / trials)
    assert max(excess) > delta / 2


# The effect on the unbiased aggregation, as docs/privacy.md has it


@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
def test_noise_of_the_sampled_step_has_the_variance_that_is_documented(beta):
    """In units of P z^2 C^2; beta is the weight of stored updates, whose noise is that of an earlier round."""
    view = view_of([[3], [5], [2]], capacity=[1, 2, 3])
    p, share, capacity = np.array([[0.3], [0.6], [0.2]]), view.share[:, 0], view.capacity
    mean = 0.0
    for chance, count in every_draw(p, capacity):
        allocation = Allocation.of(count, p)
        trained = Trained(np.arange(3), torch.zeros(3, 1), np.zeros(3), np.ones(3, np.int64))
        weights = inverse_probability(Updates.of(0, trained, allocation), view)
        mean += chance * (weights**2 + beta**2 * (share - weights) ** 2).sum()
    spread = (1 - p[:, 0]) / (capacity * p[:, 0])
    assert mean == pytest.approx((share**2 * (1 + (1 + beta**2) * spread)).sum())


def test_the_unbiased_step_of_protected_updates_is_the_clipped_one_plus_noise_of_that_variance():
    view, length, protection = view_of([[3], [5]], capacity=[1, 1]), 60_000, Privacy(clip=0.5, noise=2.0)
    allocation = Allocation.of(np.ones((2, 1), dtype=np.int64), np.array([[0.4], [0.8]]))
    updates = torch.zeros(2, length)
    updates[0, 0], updates[1, 1] = 3.0, 0.1
    steps = []
    for rows in (Privacy(0.5).protect(updates), protection.protect(updates, place([0, 1]))):
        trained = Trained(np.arange(2), rows, np.zeros(2), np.ones(2, np.int64))
        steps.append(Unbiased().aggregate(torch.zeros(length), Updates.of(0, trained, allocation), view, None)[0])
    weights = np.array([3 / 8 / 0.4, 5 / 8 / 0.8])
    np.testing.assert_allclose(-steps[0][:3].numpy(), [weights[0] * 0.5, weights[1] * 0.1, 0], rtol=1e-6)
    variance = float((steps[1] - steps[0]).double().square().sum())
    assert variance == pytest.approx(length * (2.0 * 0.5) ** 2 * (weights**2).sum(), rel=0.03)


# --- in a run ---


def test_a_simulation_protects_every_update_and_repeats():
    federation = mmfl.Federation([toy_task()], clients=8)
    runs = [
        mmfl.train(federation, "mmfl-gvr", rounds=3, rate=0.5, privacy=privacy, engine=engine, device="cpu")
        for privacy in (None, Privacy(clip=1e-3), Privacy(clip=1e-3, noise=0.5))
        for engine in ("vectorised", "sequential")
    ]
    plain, _, clipped, _, noisy, again = [run.weights[0] for run in runs]
    torch.testing.assert_close(noisy, again, rtol=1e-4, atol=1e-6)
    start = mmfl.engine.Simulation("cpu").initial(federation, 0, 0)
    assert (clipped - start).norm() < 3 * 8 * 1e-3 < (plain - start).norm()
    assert not torch.equal(noisy, clipped)


def test_a_configuration_says_how_to_protect(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(
        'rounds = 2\n[privacy]\nclip = 0.1\nnoise = 0.2\n[[tasks]]\nname = "a"\ndata = "digits"\nmodel = "logistic"\n'
    )
    config = mmfl.runs.config.read(path, ["federation.clients=10"])
    assert config.privacy.build() == Privacy(0.1, 0.2)
    with pytest.raises(UserError, match=r"unknown key 'privacy\.clp': did you mean 'clip'"):
        mmfl.runs.config.read(path, ["privacy.clp=3"])
    with pytest.raises(UserError, match=r"noise is 1\.0 without clip"):
        mmfl.runs.config.read(None, ["privacy.noise=1.0"]).privacy.build()
