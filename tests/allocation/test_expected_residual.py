"""Sampling by expected residual: the definition, and the variance that its probabilities minimise."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import view_of
from mmfl.allocation import ExpectedResidualVariance, least_variance

SIZES = np.array([[10, 5], [30, 0], [0, 15], [7, 12], [3, 40]])
RESIDUAL = np.array([[1.0, 40.0], [0.5, 0.0], [0.0, 90.0], [2.0, 10.0], [0.1, 70.0]])
VIEW = view_of(SIZES, [2, 1, 1, 2, 1], 2.0).with_signals(expected_residuals=RESIDUAL)


def test_importance_is_as_defined():
    d, B = VIEW.share, VIEW.capacity[:, None]
    expected = d * RESIDUAL / (d * RESIDUAL).sum(0) / B
    able = SIZES > 0
    expected = np.where(able, np.maximum(expected, 0.1 * expected.sum() / able.sum()), 0)
    np.testing.assert_allclose(ExpectedResidualVariance().importance(VIEW), expected)
    p = ExpectedResidualVariance().probabilities(VIEW)
    np.testing.assert_allclose(p, least_variance(expected, VIEW.capacity, 2.0))
    assert (p[able] > 0).all()
    assert not p[~able].any()
    plain = ExpectedResidualVariance(floor=0.0, equal_tasks=False).importance(VIEW)
    np.testing.assert_allclose(plain, d * RESIDUAL / B)


@given(st.lists(st.floats(1e-6, 1e6), min_size=2, max_size=2))
def test_equal_tasks_do_not_depend_on_the_units_of_their_weights(units):
    scaled = VIEW.with_signals(expected_residuals=RESIDUAL * units)
    rule = ExpectedResidualVariance()
    np.testing.assert_allclose(rule.probabilities(scaled), rule.probabilities(VIEW), rtol=1e-9)


@given(st.lists(st.floats(0.01, 1), min_size=10, max_size=10))
def test_no_other_probabilities_leave_a_smaller_sum_of_relative_variances(numbers):
    """Sum over tasks of variance / (sum d r)^2, with residuals as expected and processors drawn independently."""
    able, d, B = SIZES > 0, VIEW.share, VIEW.capacity[:, None]

    def relative_variance(p):
        terms = B * (d / B * RESIDUAL / (d * RESIDUAL).sum(0)) ** 2 * (1 / np.where(able, p, 1) - 1)
        return terms[able].sum()

    other = np.where(able, np.reshape(numbers, SIZES.shape), 0)
    other *= min(2.0 / (other * B).sum(), 1 / other.sum(1).max())  # within budget and capacities
    best = ExpectedResidualVariance(floor=0.0).probabilities(VIEW)
    assert (best * B).sum() == pytest.approx(2.0)
    assert relative_variance(best) <= relative_variance(other) * (1 + 1e-9)


def test_a_task_with_nothing_left_to_explain_is_sampled_by_its_data():
    still = VIEW.with_signals(expected_residuals=RESIDUAL * [1, 0])
    importance = ExpectedResidualVariance(floor=0.0).importance(still)
    np.testing.assert_allclose(importance[:, 1], VIEW.share[:, 1] / VIEW.capacity)


def test_models_that_diverged_have_finite_probabilities():
    diverged = VIEW.with_signals(expected_residuals=np.where(RESIDUAL == 40, np.inf, RESIDUAL))
    assert np.isfinite(ExpectedResidualVariance().probabilities(diverged)).all()
