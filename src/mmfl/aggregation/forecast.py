"""Forecast: last updates as forecasts, corrected by drawn clients with weights between SAGA's and SAG's."""

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from mmfl.aggregation.stale import LastUpdates, StorageSetting, stale_mean_of
from mmfl.aggregation.unbiased import inverse_probability
from mmfl.checks import check, is_number
from mmfl.federation import RoundView
from mmfl.updates import Updates
from mmfl.updates.memory import ClientMemory


class Forecast(LastUpdates):
    """Every client's last update h is the forecast of its next one; drawn clients correct it.

    The weight of a correction lies between that of `FedVARP`, which is right on average over all draws (SAGA's form,
    `bias` 0), and that of `MIFA`, which varies less (SAG's form, `bias` 1).
    """

    has_stale_mean = True

    def __init__(self, bias: float = 0.3, keep: StorageSetting = None):
        check(is_number(bias, 0, 1), "aggregation 'forecast'", "bias", bias, "a number in [0, 1]")
        super().__init__(keep)
        self.bias = bias

    def step(self, updates: Updates, view: RoundView, state: ClientMemory) -> Tensor:
        """sum d h + sum_drawn ((1 - bias) H + bias d) (G - h), with h as it was before the round."""
        sizes, scale = view.sizes_of(updates.task), corrections(updates, view, self.bias)
        state.reweight(sizes)
        before = state.stored.of(updates.client).matrix()
        forecast = stale_mean_of(self, updates, view, state).float()
        step: Tensor = forecast + updates.combine(scale) - before.combine(scale)
        state.replace(updates, before, updates.rows, sizes)
        return step

    def stale_mean(self, view: RoundView, task: int, state: ClientMemory) -> Tensor:
        """sum d h."""
        state.reweight(view.sizes_of(task))
        return state.total / int(view.examples[task])

    def residuals(self, updates: Updates, view: RoundView, state: ClientMemory) -> NDArray[np.float64]:
        """||G - h||."""
        return state.stored.of(updates.client).distances(updates, np.ones(len(updates)))


def corrections(updates: Updates, view: RoundView, bias: float | NDArray[np.float64]) -> NDArray[np.float64]:
    """The weight (1 - bias) H + bias d of each update's correction."""
    share = view.share[updates.client, updates.task]
    return np.asarray((1 - bias) * inverse_probability(updates, view) + bias * share)
