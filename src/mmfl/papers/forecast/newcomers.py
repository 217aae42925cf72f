"""Aggregations of the ablation that expect something of clients never seen, whose forecast is otherwise 0."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from mmfl.aggregation import Forecast
from mmfl.aggregation.forecast import corrections
from mmfl.federation import RoundView
from mmfl.papers.forecast.candidates import StepUnits, in_step_units
from mmfl.updates import Updates
from mmfl.updates.expected_residuals import ExpectedResiduals
from mmfl.updates.memory import ClientMemory


class MeanForNewcomers(Forecast):
    """The forecast of a client never seen is the mean of the others' last updates, weighted by their examples. At a
    client's first visit the SAG share is `at_first`."""

    def __init__(self, bias: float = 0.3, at_first: float = 0.0):
        super().__init__(bias)
        self.at_first = at_first

    def step(self, updates: Updates, view: RoundView, state: ClientMemory) -> Tensor:
        """sum d z + sum_drawn ((1 - bias) H + bias d) (G - z), with z = h or that mean, so that sum d z is the mean."""
        sizes, newcomers = view.sizes[:, updates.task], ~state.stored.has(updates.client)
        scale = corrections(updates, view, np.where(newcomers, self.at_first, self.bias))
        state.reweight(sizes)
        before = state.stored.of(updates.client).matrix()
        mean = (state.total / max(float(np.nansum(state.weight)), 1.0)).float()
        step: Tensor = mean * (1 - float(scale[newcomers].sum())) + updates.combine(scale) - before.combine(scale)
        state.replace(updates, before, updates.rows, sizes)
        return step


class MeanAndStepUnits(MeanForNewcomers, StepUnits):
    """Both: that mean for newcomers, and expected residuals in units of the task's step."""


class BetweenUnits(MeanForNewcomers):
    """That mean for newcomers, and expected residuals in units between those of `forecast` and the task's step: their
    geometric mean. For an allocation without `equal_tasks`."""

    def expected_residuals(
        self, expected: ExpectedResiduals, view: RoundView, task: int, state: ClientMemory
    ) -> NDArray[np.float64]:
        """r / sqrt(||sum d h|| sum d r)."""
        residual, by_step = expected.expected(view.round), in_step_units(expected, view, task, state)
        total = float(residual @ view.share[:, task])
        return np.sqrt(residual * by_step) / math.sqrt(total) if total > 0 else residual


class NewcomersFirst(MeanForNewcomers):
    """That mean for newcomers, of whom a residual of twice the usual length is expected: they are visited early."""

    def expected_residuals(
        self, expected: ExpectedResiduals, view: RoundView, task: int, state: Any
    ) -> NDArray[np.float64]:
        """r, twice that for clients never seen."""
        return np.asarray(expected.expected(view.round) * np.where(expected.last > 0, 1.0, 2.0))
