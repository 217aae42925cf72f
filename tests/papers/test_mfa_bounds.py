"""Bounds of Bhuyan et al. 2022 beside measurements: the readings, verdicts on made-up distances, the quick form."""

import numpy as np
import pandas as pd
import pytest
from shared import FAILS, HOLDS, OPEN, quick, together, verdicts

import mmfl
from mmfl.papers.mfa.bounds import COUNTED, READINGS, SLOWER, bound_of, find, predicted_gains
from mmfl.papers.mfa.chain import Chain
from mmfl.papers.mfa.quadratic import learning_rate, method_of
from mmfl.papers.mfa.quadratic_findings import RAND, ROTATE

CHAIN, MODELS = Chain(6, 1, 1.0), 3
TARGET = {"steps": 5, "distance": 2.2777, "steepest": 1.0, "clients": 24, "block": 4, "curvature": 2e-4}


# --- the readings -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reading", READINGS)
def test_runs_have_the_learning_rate_of_their_theorem_or_an_mth_of_it(reading):
    bound = bound_of(reading, CHAIN, MODELS, 1.0)
    rounds, schedule = np.arange(1, 20), learning_rate(reading, bound)
    expected = bound.learning_rate(rounds) / (MODELS if reading == SLOWER else 1)
    np.testing.assert_allclose([schedule(t) for t in rounds], expected)


def test_an_update_that_counts_1_over_n_moves_the_weights_an_mth_as_far_as_in_a_mean():
    federation = CHAIN.federation(MODELS, 0.1, steps=2)
    counted, mean = (mmfl.train(federation, method_of(reading, MODELS), 1, 1.0) for reading in (COUNTED, ROTATE))
    for ours, theirs in zip(counted.weights, mean.weights, strict=True):
        np.testing.assert_allclose(MODELS * ours, theirs, rtol=1e-6)
    assert any(float(weights.abs().max()) > 0 for weights in mean.weights)


# --- verdicts ---------------------------------------------------------------------------------------------------------


def rounds_needed(random):
    return pd.DataFrame(
        [
            {"method": method, "seed": 0, "models": models, "together": t, "one": t, "steps": 5, "alone": 100}
            for method, needed in ((RAND, random), (ROTATE, {2: 100, 12: 100}))
            for models, t in needed.items()
        ]
    )


def measured(reading, shape, closest=3.0, seeds=3):
    """Distances that are `shape` (of the bound and the round), a little apart by seed."""
    rounds = np.unique(np.geomspace(1, 3000, 60).astype(int))
    distance = shape(bound_of(reading, CHAIN, MODELS, 1.0).error(rounds), rounds)
    lines = [
        {"seed": seed, "round": t, "distance": each * (1 + 0.01 * seed), "reading": reading, "curvature": 1.0}
        for seed in range(seeds)
        for t, each in zip(rounds, distance, strict=True)
    ]
    case = {
        "reading": reading, "clients": 6, "block": 1, "curvature": 1.0, "models": MODELS,
        "steepest": 1.0, "closest": closest, "closest_round": 1,
    }  # fmt: skip
    gains = {"gains": rounds_needed({2: 110, 12: 150}), "targets": pd.DataFrame([TARGET])}
    return {"cases": pd.DataFrame([case]), "distances": pd.DataFrame(lines), **gains}


def test_distances_that_follow_their_bounds_confirm_theorems():
    found = find(together(*[measured(reading, lambda bound, t: bound / 3) for reading in (RAND, ROTATE)]))
    assert verdicts(found, "the bound holds") == verdicts(found, "the distance falls") == [HOLDS] * 2


def test_a_distance_above_its_bound_or_slower_than_it_fails():
    found = find(measured(ROTATE, lambda bound, t: bound * t**0.4, closest=0.9))
    assert verdicts(found, "the bound holds") == verdicts(found, "the distance falls") == [FAILS]


def test_whoever_ends_nearer_to_the_optimum_is_named():
    near, far = (lambda bound, t: 1e-3 / t), (lambda bound, t: 1e-2 / t**0.5)
    counted = measured(COUNTED, lambda bound, t: 1 / t**0.5)
    found = find(together(measured(RAND, far), measured(ROTATE, near), counted))
    assert verdicts(found, f"{ROTATE} ends nearer") == [HOLDS]
    assert verdicts(found, f"{COUNTED} ends nearer") == [FAILS]
    single = find(together(measured(RAND, far, seeds=1), measured(ROTATE, near, seeds=1)))
    assert verdicts(single, "ends nearer") == verdicts(single, f"{ROTATE}: the distance falls") == [OPEN]


def test_slopes_and_bounds_stand_in_the_table():
    line = find(measured(ROTATE, lambda bound, t: bound / 3)).table.iloc[0]
    assert -1 < float(line["slope of bound"]) < -0.95
    assert line["of distance"] == f"{line['slope of bound']} ± 0.00"
    assert line["least bound / distance"] == "3 (round 1)"


def test_slopes_are_judged_only_where_the_bound_falls_during_the_run():
    frames = measured(ROTATE, lambda bound, t: bound / 3)
    early = {**frames, "distances": frames["distances"][frames["distances"]["round"] <= 10]}
    assert verdicts(find(early), "falls") == []


# --- gains ------------------------------------------------------------------------------------------------------------


def test_theorem_1_promises_a_gain_that_grows_and_theorem_2_none_over_itself():
    promised = pd.DataFrame([predicted_gains(TARGET, models) for models in (1, 2, 4, 12)])
    assert promised["by Theorem 1"].iloc[0] == promised["by Theorem 2"].iloc[0] == 1
    assert (promised["by Theorem 1"].diff().iloc[1:] > 0).all()
    assert (promised["by Theorem 2"].iloc[1:] < 1).all()


@pytest.mark.parametrize(
    ("random", "verdict"), [({2: 110, 12: 150}, HOLDS), ({2: 110, 12: 900}, FAILS), ({2: 210, 12: 900}, FAILS)]
)
def test_theorem_3_is_confirmed_where_the_measured_gain_grows_too(random, verdict):
    found = find({**measured(RAND, lambda bound, t: bound / 3), "gains": rounds_needed(random)})
    assert verdicts(found, "grows") == [verdict]


# --- the quick form ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_quick_distances_lie_below_their_bounds_and_fall_as_1_over_t_where_theorem_2_is_read_as_it_is_proved(
    tmp_path_factory,
):
    _, found = quick(tmp_path_factory, "mfa-bounds")
    assert len(found["mfa-bounds"].table) == 8
    assert verdicts(found["mfa-bounds"], "the bound holds") == [HOLDS] * 8
    assert verdicts(found["mfa-bounds"], f"{COUNTED}: the distance falls") == [HOLDS]
