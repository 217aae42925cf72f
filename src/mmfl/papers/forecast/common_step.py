"""An aggregation of the ablation whose forecasts follow the mean step of all clients."""

import math
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmfl.aggregation.forecast import corrections
from mmfl.aggregation.stale import LastUpdates
from mmfl.federation import RoundView
from mmfl.papers.forecast.candidates import AgingMemory
from mmfl.updates import Updates
from mmfl.updates.expected_residuals import ExpectedResiduals
from mmfl.updates.memory import ClientMemory


@dataclass
class Deviations(AgingMemory):
    """How far each client's last update was from the mean step of its round, with their sum, how these deviations age,
    and the mean step, an exponential average over rounds."""

    mean: Tensor


class CommonStep(LastUpdates):
    """The forecast of a client's update is the mean step of recent rounds plus the deviation of its last update.

    So forecasts of clients that nobody visits follow the others, and a client never seen is expected to send the mean
    step. The SAG share, of which there is none at first visits, misses only what deviations changed.
    """

    def __init__(self, bias: float = 0.5, rate: float = 0.1, units: Literal["own", "step", "between"] = "own"):
        super().__init__()
        self.bias, self.rate, self.units = bias, rate, units

    def start(self, clients: int, weights: Tensor) -> Deviations:
        """Nothing remembered."""
        memory = ClientMemory.start(self.keep, clients, weights)
        return Deviations(memory, ExpectedResiduals.start(clients), torch.zeros_like(weights))

    def step(self, updates: Updates, view: RoundView, state: Deviations) -> Tensor:
        """m + sum d e + sum_drawn ((1 - bias) H + bias d) (G - m - e), with the deviations e as they were before."""
        sizes, memory = view.sizes[:, updates.task], state.memory
        newcomers = ~memory.stored.has(updates.client)
        scale = corrections(updates, view, np.where(newcomers, 0.0, self.bias))
        deviations = replace(updates, rows=updates.rows - state.mean)
        memory.reweight(sizes)
        before = memory.stored.of(updates.client).matrix()
        deviation = (memory.total / int(sizes.sum())).float() + deviations.combine(scale) - before.combine(scale)
        step: Tensor = state.mean + deviation
        first = state.aging.received == 0
        state.aging.observe(deviations, memory.stored, view.round)
        memory.replace(updates, before, deviations.rows, sizes)
        if len(updates):
            state.mean = torch.lerp(state.mean, step, 1.0 if first else self.rate)
        return step

    def expected_residuals(
        self, expected: ExpectedResiduals, view: RoundView, task: int, state: Deviations
    ) -> NDArray[np.float64]:
        """||e|| rho(age), where rho tells how deviations age; in units of the forecast step, or of its geometric mean
        with the sum over clients that an allocation with equal tasks divides by."""
        residual = state.aging.expected(view.round)
        if self.units == "own":
            return residual
        unit = float((state.mean + state.memory.mean(max(int(view.sizes[:, task].sum()), 1))).norm())
        if self.units == "between":
            unit = math.sqrt(unit * float(residual @ view.share[:, task]))
        return residual / unit if unit > 0 else residual
