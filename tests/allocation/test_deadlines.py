"""The deadline after which the variance of a step falls fastest."""

import numpy as np
import pytest
from scipy.optimize import brentq

from conftest import refused
from mmfl.allocation.deadlines import best_deadline
from mmfl.federation.durations import Certain, LogNormal, ShiftedExponential


@pytest.mark.parametrize("shift", [0.1, 0.5, 2.0])
def test_for_equal_shifted_exponentials_it_solves_e_to_the_x_is_one_plus_d_over_mu(shift):
    mu = 7.0
    x = brentq(lambda x: np.expm1(x) - x - shift, 1e-9, 50)
    durations = ShiftedExponential(np.full((4, 2), mu * (1 + shift)), np.float64(shift / (1 + shift)))
    found = best_deadline(durations, np.ones((4, 2)))
    assert found == pytest.approx(mu * (shift + x), rel=1e-5)
    if shift == 0.5:
        assert found / mu == pytest.approx(1.358, abs=1e-3)
        assert durations.completion(found)[0, 0] == pytest.approx(0.576, abs=1e-3)


def test_no_deadline_of_a_fine_grid_is_better_for_devices_of_many_speeds():
    rng = np.random.default_rng(0)
    durations = LogNormal(rng.lognormal(3, 0.8, (50, 3)), 0.5)
    weight = rng.lognormal(0, 1, (50, 3))
    found = best_deadline(durations, weight)

    def noise(deadline):
        return deadline * (weight / durations.completion(deadline)).sum()

    assert noise(found) <= min(noise(deadline) for deadline in np.geomspace(found / 20, found * 20, 4000)) * (1 + 1e-9)


def test_where_nothing_is_random_the_slowest_that_matters_is_waited_for():
    durations = Certain(np.array([[1.0, 2.0], [3.0, 9.0]]))
    assert best_deadline(durations, np.array([[1.0, 1.0], [1.0, 0.0]])) == 3.0
    assert best_deadline(durations, np.ones((2, 2))) == 9.0


def test_nothing_of_weight_is_refused():
    refused(lambda: best_deadline(Certain(np.ones((2, 1))), np.zeros((2, 1))), "deadline 'auto'", "no client")
