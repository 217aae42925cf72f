"""The variants of `forecast` that expect something of clients never seen."""

import dataclasses

import numpy as np
import pytest
import torch

from conftest import every_draw, view_of
from mmfl.papers.forecast.candidates import StepUnits
from mmfl.papers.forecast.newcomers import BetweenUnits, MeanAndStepUnits, MeanForNewcomers, NewcomersFirst
from mmfl.updates import Updates
from mmfl.updates.expected_residuals import ExpectedResiduals

SIZES, CAPACITY = np.array([[10], [30], [5], [7]]), np.array([2, 1, 1, 2])
P = np.array([[0.6], [0.25], [0.7], [0.4]])
VIEW = view_of(SIZES, CAPACITY.tolist(), 2.0)
SENT = torch.tensor([[1.0, -2.0, 0.5], [0.3, 1.0, 1.0], [2.0, 0.0, -1.0], [0.7, 0.7, 3.0]])
SEEN = {0: [0.9, -1.5, 0.1], 3: [1.0, 0.5, 2.0]}


def updates_of(count: np.ndarray) -> Updates:
    """Those of the clients that were drawn, [clients] times."""
    client = np.flatnonzero(count)
    numbers = np.zeros(len(client)), np.ones(len(client), dtype=np.int64)
    return Updates(0, client, count[client], P[client, 0], SENT[torch.from_numpy(client)], *numbers)


def step_of(rule, count: np.ndarray) -> np.ndarray:
    """The step after a round in which some clients were seen, whose updates were others than those they send now."""
    memory = rule.start(4, torch.zeros(3))
    for client, row in SEEN.items():
        memory.stored.put(np.array([client]), torch.tensor([row]))
        memory.weight[client] = SIZES[client, 0]
        memory.sum += SIZES[client, 0] * torch.tensor(row, dtype=torch.float64)
    return np.asarray(rule.step(updates_of(count), VIEW, memory), dtype=np.float64)


def forecasts() -> np.ndarray:
    """z: the last update, or the mean of the others' by their examples, [clients, 3]."""
    examples = SIZES[list(SEEN), 0]
    mean = examples @ np.array(list(SEEN.values())) / examples.sum()
    return np.array([SEEN.get(client, mean) for client in range(4)])


@pytest.mark.parametrize(("bias", "at_first"), [(0.0, 0.0), (0.3, 0.3), (0.3, 0.0)])
def test_newcomers_are_corrected_from_the_mean_of_the_others(bias, at_first):
    d, z, shares = SIZES[:, 0] / SIZES.sum(), forecasts(), np.array([bias, at_first, at_first, bias])
    for count in (np.array([1, 1, 0, 0]), np.array([0, 0, 1, 2]), np.array([0, 0, 0, 0])):
        scale = count * d / (CAPACITY * P[:, 0])
        weight = (1 - shares) * scale + shares * d * (count > 0)
        expected = d @ z + weight @ (SENT.numpy() - z)
        np.testing.assert_allclose(step_of(MeanForNewcomers(bias, at_first), count), expected, rtol=1e-5)


def test_without_a_sag_share_the_step_is_the_full_one_on_average_over_all_draws():
    mean = sum(chance * step_of(MeanForNewcomers(0.0), count[:, 0]) for chance, count in every_draw(P, CAPACITY))
    np.testing.assert_allclose(mean, SIZES[:, 0] / SIZES.sum() @ SENT.numpy(), rtol=1e-5)


def test_once_all_are_seen_the_step_is_that_of_forecast():
    rule, plain = MeanForNewcomers(), StepUnits()  # whose step is that of `Forecast`
    steps = []
    for each in (rule, plain):
        memory = each.start(4, torch.zeros(3))
        everybody = np.array([1, 1, 1, 1])
        each.step(updates_of(everybody), VIEW, memory)
        steps.append(each.step(updates_of(np.array([0, 1, 0, 1])), VIEW, memory))
    torch.testing.assert_close(*steps)


def test_before_anyone_is_seen_the_step_has_no_forecast():
    rule, count = MeanForNewcomers(0.0), np.array([1, 0, 1, 0])
    d = SIZES[:, 0] / SIZES.sum()
    step = rule.step(updates_of(count), VIEW, rule.start(4, torch.zeros(3)))
    np.testing.assert_allclose(step, (count * d / (CAPACITY * P[:, 0])) @ SENT.numpy(), rtol=1e-5)


def test_units_in_between_are_the_geometric_mean_of_both():
    expected = ExpectedResiduals.start(4)
    expected.last[[0, 3]], expected.norm[[0, 3]] = [3, 8], [2.0, 1.0]
    expected = dataclasses.replace(expected, norms=3.0, received=1.0)
    view = dataclasses.replace(VIEW, round=10)
    rule, found = BetweenUnits(), {}
    memory = rule.start(4, torch.zeros(3))
    memory.stored.put(np.array([0, 3]), torch.tensor(list(SEEN.values())))
    memory.weight[[0, 3]] = SIZES[[0, 3], 0]
    memory.sum += torch.tensor(SIZES[[0, 3], 0] @ np.array(list(SEEN.values())))
    for each in (BetweenUnits(), MeanAndStepUnits(), MeanForNewcomers(), NewcomersFirst()):
        found[type(each)] = each.expected_residuals(expected, view, 0, memory)
    plain = found[MeanForNewcomers] / (found[MeanForNewcomers] @ view.share[:, 0])
    np.testing.assert_allclose(found[BetweenUnits], np.sqrt(plain * found[MeanAndStepUnits]))
    np.testing.assert_allclose(found[NewcomersFirst] / found[MeanForNewcomers], [1, 2, 2, 1])
