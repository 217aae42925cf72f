"""Figures 1 and 2 of Bhuyan et al. 2022: the chain's mathematics, verdicts on made-up frames, the quick form."""

import numpy as np
import pandas as pd
import pytest
import torch
from shared import FAILS, HOLDS, OPEN, quick, verdicts

from mmfl import models
from mmfl.papers.evidence import every, greater
from mmfl.papers.mfa.chain import Chain, table
from mmfl.papers.mfa.quadratic import first
from mmfl.papers.mfa.quadratic_findings import RAND, ROTATE, find_gains, find_gaps, noisier

SMALL = Chain(clients=5, block=2, curvature=0.1)
POINTS = np.random.default_rng(0).normal(size=(7, 11))


# --- the chain --------------------------------------------------------------------------------------------------------


def test_excess_is_what_the_model_computes_above_its_least_value():
    model = models.Quadratic(11, SMALL.curvature).double()
    for point, excess in zip(POINTS, SMALL.excess(POINTS), strict=True):
        model.point.data = torch.from_numpy(point)
        value = torch.func.vmap(model)(SMALL.data.x.double()).mean().item()
        assert value - SMALL.least == pytest.approx(excess)
    assert SMALL.excess(SMALL.optimum) == 0
    assert SMALL.excess(np.zeros(11)) == pytest.approx(-SMALL.least)
    assert SMALL.distance(np.zeros(11)) == pytest.approx(SMALL.start)


def test_curvature_of_every_client_lies_between_the_constants_of_the_problem():
    problem = SMALL.problem(steps=2, models=1, gradient_bound=3.0)
    curvature = np.einsum("ni,kij,nj->nk", POINTS, SMALL.matrices, POINTS) / (POINTS**2).sum(1)[:, None]
    assert curvature.min() >= problem.strong_convexity - 1e-12
    assert curvature.max() <= problem.smoothness + 1e-12
    assert (problem.local_steps, problem.clients, problem.gradient_bound) == (2, 5, 3.0)
    for chain in (SMALL, Chain(clients=1, block=3, curvature=0.1), Chain(clients=2, block=1, curvature=0.1)):
        every = np.linalg.eigvalsh(chain.matrices)
        assert (chain.eigenvalues.min(), chain.eigenvalues.max()) == pytest.approx((every.min(), every.max()))


def test_clients_differ_by_how_far_the_best_for_all_is_from_the_best_for_each():
    assert Chain(clients=1, block=3, curvature=0.1).problem(1, 1, 1.0).heterogeneity == pytest.approx(0, abs=1e-12)
    losses = 0.5 * np.einsum("i,kij,j->k", SMALL.optimum, SMALL.matrices, SMALL.optimum) - SMALL.vectors @ SMALL.optimum
    least_of_first = min_by_descent(SMALL.matrices[0], SMALL.vectors[0])  # the others are least, 0, at the origin
    assert SMALL.problem(1, 1, 1.0).heterogeneity == pytest.approx(losses.mean() - least_of_first / 5)


def min_by_descent(matrix, vector):
    point = np.zeros(len(vector))
    for _ in range(2000):
        point -= 0.2 * (matrix @ point - vector)
    return 0.5 * point @ matrix @ point - vector @ point


def test_no_local_step_meets_a_longer_gradient_than_where_it_set_out():
    rate = 1.9 / SMALL.problem(1, 1, 1.0).smoothness
    for point in POINTS:
        steepest, local = SMALL.steepest(point[None]), np.tile(point, (5, 1))
        for _ in range(20):
            gradients = np.einsum("kij,kj->ki", SMALL.matrices, local) - SMALL.vectors
            assert np.linalg.norm(gradients, axis=1).max() <= steepest * (1 + 1e-12)
            local -= rate * gradients


# --- Figure 1 ---------------------------------------------------------------------------------------------------------


def gaps(random, rotating, models, rounds=1000, rate="constant", clients=24):
    """A frame of two rounds: all runs begin alike and end with these gaps, one per seed."""
    return pd.DataFrame(
        [
            {"method": method, "seed": seed, "round": t, "gap": gap, "rate": rate, "models": models, "clients": clients}
            for method, ends in ((RAND, random), (ROTATE, rotating))
            for seed, end in enumerate(ends)
            for t, gap in ((0, -1.7113), (rounds, end))
        ]
    )


def test_two_models_end_alike_and_many_end_lower_where_split_in_rotation():
    few = gaps([-3.11, -3.12, -3.115], [-3.118, -3.118, -3.117], models=2)
    many = gaps([-3.0, -3.02, -3.01], [-3.12, -3.121, -3.12], models=12)
    found = find_gaps({"gaps": pd.concat([few, many])})
    assert {claim.verdict for claim in found.claims} == {HOLDS}
    assert len(found.claims) == 6
    assert found.table["gap, reference runs"].tolist() == [
        "-3.113 ± 0.012", "-3.118 ± 0.000", "-3.073 ± 0.072", "-3.122 ± 0.006"
    ]  # fmt: skip
    assert found.table["gap"].iloc[0] == "-3.115 ± 0.005"


def test_a_gap_on_the_wrong_side_fails_and_a_noisy_one_is_not_decided():
    wrong = find_gaps({"gaps": gaps([-3.2, -3.21, -3.2], [-3.0, -3.01, -3.01], models=12)})
    assert verdicts(wrong, "ends lower") == [FAILS]
    noisy = find_gaps({"gaps": gaps([-3.0, -3.3, -3.1], [-3.1, -3.12, -3.11], models=12)})
    assert verdicts(noisy, "ends lower") == [OPEN]
    apart = find_gaps({"gaps": gaps([-3.2, -3.2, -3.21], [-3.0, -3.0, -3.01], models=2)})
    assert verdicts(apart, "alike") == [FAILS]


def test_reference_and_start_are_of_the_papers_federation_and_rounds_only():
    found = find_gaps({"gaps": gaps([-2.0, -2.1], [-2.0, -2.1], models=2, rounds=100, clients=12)})
    assert set(found.table["gap, reference runs"]) == {"—"}
    assert not [claim for claim in found.claims if "F*" in claim.text]


def test_noise_is_judged_by_the_ratio_of_standard_deviations():
    wide, narrow = pd.Series([0.0, 1.0, 2.0, 3.0]), pd.Series([0.0, 0.1, 0.2, 0.3])
    assert noisier("", wide, narrow).verdict is HOLDS
    assert noisier("", narrow, wide).verdict is FAILS
    assert noisier("", wide, wide + 1).verdict is OPEN
    assert noisier("", wide, 0 * wide).verdict is HOLDS  # alike to the last digit kept
    assert noisier("", wide[:1], narrow[:1]).verdict is OPEN


# --- Figure 2 ---------------------------------------------------------------------------------------------------------


def gains(random, rotating, steps=5, seeds=3):
    """Rounds needed by number of models, with a little noise; one model by itself needs T_1 = 100."""
    return pd.DataFrame(
        [
            {
                "method": method, "seed": seed, "models": models, "together": rounds + seed,
                "one": 100, "steps": steps, "alone": 100,
            }
            for method, needed in ((RAND, random), (ROTATE, rotating))
            for models, rounds in needed.items()
            for seed in range(seeds)
        ]
    )  # fmt: skip


LINEAR = {2: 100, 4: 100, 12: 101}


def test_first_round_that_meets_a_condition():
    assert first(np.array([True, False])) == 0
    assert np.isnan(first(np.zeros(4, dtype=bool)))


def test_gain_is_rounds_in_turn_over_rounds_together():
    found = find_gains({"gains": gains({2: 125}, {2: 100}, seeds=1)})
    line = found.table.iloc[0]
    assert line[["E", "M", RAND, ROTATE, f"{RAND}, one model"]].tolist() == [5, 2, "1.60", "2.00", "2.00"]


def test_linear_and_sub_linear_gains_are_told_apart():
    found = find_gains({"gains": gains({2: 110, 4: 120, 12: 150}, LINEAR)})
    assert {claim.verdict for claim in found.claims} == {HOLDS}
    other = find_gains({"gains": gains(LINEAR, {2: 110, 4: 120, 12: 150})})
    assert verdicts(other, "nearly 1") == [FAILS]
    assert verdicts(other, "ahead of") == [FAILS]


def test_a_gain_that_falls_once_does_not_grow():
    found = find_gains({"gains": pd.concat([gains({2: 110, 4: 240, 12: 300}, LINEAR), gains(LINEAR, LINEAR, steps=1)])})
    assert verdicts(found, f"{RAND}: gain grows") == [FAILS]
    assert verdicts(found, f"{ROTATE}: gain grows") == [HOLDS]
    assert "E = 5, M = 2 to 4" in next(claim.ours for claim in found.claims if f"{RAND}: gain grows" in claim.text)


def test_runs_that_never_met_the_target_are_counted_and_left_out():
    known = gains({2: 110, 4: 120}, {2: 100, 4: 100})
    late = known.assign(together=known["together"].where((known["models"] != 4) | (known["seed"] != 0)))
    found = find_gains({"gains": late})
    assert "2 runs did not meet" in " ".join(found.notes)
    assert found.table[RAND].iloc[1].startswith(f"{np.mean([400 / 121, 400 / 122]):.2f}")


LOW, HIGH, UNCLEAR = (pd.Series(values) for values in ([1.0, 1.1, 1.0], [2.0, 2.1, 2.1], [0.9, 2.2, 1.1]))


@pytest.mark.parametrize(
    ("second", "verdict", "where"),
    [
        ((HIGH + 1, LOW), HOLDS, "a"),
        ((UNCLEAR, LOW), OPEN, "b"),
        ((LOW, HIGH), FAILS, "b"),
        ((HIGH[:1], LOW[:1]), OPEN, "b"),
    ],
)
def test_several_settings_are_as_certain_as_the_least_certain(second, verdict, where):
    pairs = {"at a": (HIGH, LOW), "at b": second}
    claim = every("", "", {where: greater("", "", *pair) for where, pair in pairs.items()})
    assert claim.verdict is verdict
    assert f" at {where}," in claim.ours


def test_observations_become_rows_by_replica_and_round():
    lines = table([(RAND, 0), (ROTATE, 1)], np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]), "distance", [0, 2])
    assert lines.to_numpy().tolist() == [[RAND, 0, 0, 1.0], [RAND, 0, 2, 5.0], [ROTATE, 1, 0, 2.0], [ROTATE, 1, 2, 6.0]]


# --- the quick form ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_quick_runs_of_mfa_rand_vary_far_more_and_only_the_gain_of_mfa_rr_is_linear(tmp_path_factory):
    _, found = quick(tmp_path_factory, "mfa-fig1", "mfa-fig2")
    assert verdicts(found["mfa-fig1"], "M = 2: MFA-Rand varies") == [HOLDS] * 2
    for words, claims in (("nearly 1 at M = 6", 2), ("below 1", 1), ("ahead of", 1), ("mfa-rr: gain grows", 1)):
        assert verdicts(found["mfa-fig2"], words) == [HOLDS] * claims
