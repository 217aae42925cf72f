"""The variant of `forecast` whose forecasts follow the mean step."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from conftest import every_draw, view_of
from mmfl.papers.forecast.common_step import CommonStep
from mmfl.updates import Updates

SIZES, CAPACITY = np.array([[10], [30], [5], [7]]), np.array([2, 1, 1, 2])
D, P = SIZES[:, 0] / SIZES.sum(), np.array([[0.6], [0.25], [0.7], [0.4]])
VIEW = view_of(SIZES, CAPACITY.tolist(), 2.0)
FIRST = np.array([[1.0, -2.0, 0.5], [0.3, 1.0, 1.0], [2.0, 0.0, -1.0], [0.7, 0.7, 3.0]])
NOW = np.add(FIRST, [[0.3, 0.3, 0.1], [0.2, 0.5, 0.0], [0.3, 0.1, 0.0], [0.4, 0.2, 0.1]])
BEFORE = np.array([1, 0, 0, 1])  # who was drawn in the first round


def updates_of(count, sent) -> Updates:
    """Those of the clients that were drawn, `count` [clients] times."""
    client = np.flatnonzero(count)
    numbers = np.zeros(len(client)), np.ones(len(client), dtype=np.int64)
    rows = torch.tensor(sent[client], dtype=torch.float32)
    return Updates(0, client, count[client], P[client, 0], rows, *numbers)


def after_a_round(rule):
    """The memory after the first round."""
    memory = rule.start(4, torch.zeros(3))
    step = rule.step(updates_of(BEFORE, FIRST), VIEW, memory)
    return memory, np.asarray(step, dtype=np.float64)


def step_of(rule, count) -> np.ndarray:
    """The step of the second round."""
    return np.asarray(rule.step(updates_of(count, NOW), replace(VIEW, round=2), after_a_round(rule)[0]), dtype=float)


def test_the_first_step_is_the_unbiased_one_and_becomes_the_mean():
    memory, step = after_a_round(CommonStep())
    np.testing.assert_allclose(step, (BEFORE * D / (CAPACITY * P[:, 0])) @ FIRST, rtol=1e-5)
    np.testing.assert_allclose(memory.mean, step, rtol=1e-5)


@pytest.mark.parametrize("bias", [0.0, 0.5])
def test_forecasts_are_the_mean_step_plus_the_deviation_of_the_last_update(bias):
    rule, (_, mean) = CommonStep(bias), after_a_round(CommonStep(bias))
    # The mean step was 0 in the first round: a deviation is then the whole update, and 0 for clients never seen.
    z, shares = mean + BEFORE[:, None] * FIRST, bias * BEFORE
    for count in (np.array([1, 1, 0, 0]), np.array([0, 0, 1, 2]), np.array([0, 0, 0, 0])):
        scale = count * D / (CAPACITY * P[:, 0])
        weight = (1 - shares) * scale + shares * D * (count > 0)
        np.testing.assert_allclose(step_of(rule, count), D @ z + weight @ (NOW - z), rtol=1e-4)


def test_the_mean_step_follows_the_steps_and_deviations_are_those_from_it():
    rule = CommonStep(0.5, rate=0.25)
    memory, mean = after_a_round(rule)
    step = np.asarray(rule.step(updates_of(np.array([1, 0, 1, 0]), NOW), replace(VIEW, round=2), memory))
    np.testing.assert_allclose(memory.mean, 0.75 * mean + 0.25 * step, rtol=1e-4)
    stored = memory.memory.stored.rows(np.arange(4))
    np.testing.assert_allclose(stored, [NOW[0] - mean, np.zeros(3), NOW[2] - mean, FIRST[3]], rtol=1e-4, atol=1e-6)


def test_without_a_sag_share_the_step_is_the_full_one_on_average_over_all_draws():
    mean = sum(chance * step_of(CommonStep(0.0), count[:, 0]) for chance, count in every_draw(P, CAPACITY))
    np.testing.assert_allclose(mean, D @ NOW, rtol=1e-4)


def test_expected_residuals_are_those_of_deviations_and_in_units_of_the_step_if_wanted():
    rule, units = CommonStep(), CommonStep(units="step")
    (memory, mean), view = after_a_round(rule), replace(VIEW, round=2)
    plain = rule.expected_residuals(memory.aging, view, 0, memory)
    np.testing.assert_allclose(plain[[0, 3]], np.linalg.norm(FIRST[[0, 3]], axis=1), rtol=1e-5)
    length = np.linalg.norm(mean + (BEFORE * D) @ FIRST)
    np.testing.assert_allclose(units.expected_residuals(memory.aging, view, 0, memory), plain / length, rtol=1e-5)
    between = CommonStep(units="between").expected_residuals(memory.aging, view, 0, memory)
    np.testing.assert_allclose(between, plain / np.sqrt(length * (plain @ D)), rtol=1e-5)
