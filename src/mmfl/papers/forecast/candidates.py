"""Aggregations of the ablation with other residuals to expect, or another weight of corrections."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from mmfl.aggregation import Forecast
from mmfl.aggregation.forecast import corrections
from mmfl.aggregation.stale import LastUpdates
from mmfl.federation import RoundView
from mmfl.updates import ClientVectorStore, Updates
from mmfl.updates.expected_residuals import ExpectedResiduals, bin_of_age
from mmfl.updates.memory import ClientMemory


class PlainResiduals(Forecast):
    """Expects ||G - h|| in place of ||G - b h|| with the best b: the distance to the forecast that is used."""

    def expected_residuals(
        self, expected: ExpectedResiduals, view: RoundView, task: int, state: Any
    ) -> NDArray[np.float64]:
        """||h|| rho(age) with rho^2 the pooled ratio of ||G - h||^2 and ||h||^2."""
        squares, products, stale = expected.smoothed_sums()
        if not expected.stale_squares.any():
            return expected.expected(view.round)
        ratio = np.sqrt(np.maximum(squares - 2 * products + stale, 0) / stale)
        at = bin_of_age(view.round - expected.last)
        return np.where(expected.last > 0, expected.norm * ratio[at], expected.expected(view.round))


class StepUnits(Forecast):
    """Expected residuals in units of the task's forecast step, ||sum d h|| / sum d over the clients seen.

    For an allocation without `equal_tasks`: budget goes where it is uncertain relative to the step itself.
    """

    def expected_residuals(
        self, expected: ExpectedResiduals, view: RoundView, task: int, state: ClientMemory
    ) -> NDArray[np.float64]:
        """r / ||sum d h||; r / sum d r before the first update."""
        return in_step_units(expected, view, task, state)


def in_step_units(expected: ExpectedResiduals, view: RoundView, task: int, memory: ClientMemory) -> NDArray[np.float64]:
    """Expected residuals in units of the forecast step over the clients seen."""
    residual, sizes = expected.expected(view.round), view.sizes[:, task]
    seen = float(np.nansum(np.where(expected.last > 0, memory.weight, 0.0)))
    length = float(memory.mean(1).norm()) / seen if seen > 0 else 0.0
    unit = length if length > 0 else float((residual * sizes).sum()) / max(int(sizes.sum()), 1)
    return residual / unit if unit > 0 else residual


class Impatient(Forecast):
    """Expected residuals times (1 + age / 10)^`power`: nobody waits for long."""

    def __init__(self, power: float):
        super().__init__()
        self.power = power

    def expected_residuals(
        self, expected: ExpectedResiduals, view: RoundView, task: int, state: Any
    ) -> NDArray[np.float64]:
        """r times that, with the age since the start for a client never seen."""
        age = view.round - expected.last
        return np.asarray(expected.expected(view.round) * (1 + age / 10) ** self.power)


@dataclass
class RatioMemory:
    """What the rule remembers, how updates age, and how each client's residuals compare with those expected.

    `excess` is the sum of (observed / expected)^2 over a client's visits and `visits` their number, both discounted.
    """

    memory: Any
    aging: ExpectedResiduals
    excess: NDArray[np.float64]
    visits: NDArray[np.float64]


class OwnRatio(LastUpdates):
    """A rule with a factor of each client's own on the expected residuals, shrunk to 1 as if seen `prior` times."""

    _DISCOUNT = 0.7

    def __init__(self, rule: LastUpdates, prior: float = 2.0):
        super().__init__()
        self.rule, self.prior = rule, prior

    def start(self, clients: int, weights: Tensor) -> RatioMemory:
        """Nothing remembered."""
        none = np.zeros(clients)
        memory = self.rule.start(clients, weights)
        return RatioMemory(memory, ExpectedResiduals.start(clients), none, none.copy())

    def last_updates(self, state: RatioMemory) -> Any:
        """All last updates."""
        return self.rule.last_updates(state.memory)

    def step(self, updates: Updates, view: RoundView, state: RatioMemory) -> Tensor:
        """The step of the rule; the drawn clients show how well they were judged."""
        stored, client = self.rule.last_updates(state.memory), updates.client
        stale = stored.of(client)
        expected, (_, stale_square) = state.aging.expected(view.round)[client], stale.products(updates)
        left = stale.distances(updates, stale.best_beta(updates))
        judged = (stale_square > 0) & (expected > 0)
        ratio = np.where(judged, left / np.where(judged, expected, 1.0), 1.0)
        state.excess[client] = self._DISCOUNT * state.excess[client] + np.where(judged, ratio**2, 0.0)
        state.visits[client] = self._DISCOUNT * state.visits[client] + judged
        state.aging.observe(updates, stored, view.round)
        return self.rule.step(updates, view, state.memory)

    def expected_residuals(
        self, expected: ExpectedResiduals, view: RoundView, task: int, state: RatioMemory
    ) -> NDArray[np.float64]:
        """r times the factor."""
        factor = np.sqrt((self.prior + state.excess) / (self.prior + state.visits))
        return np.asarray(self.rule.expected_residuals(expected, view, task, state.memory) * factor)


@dataclass
class AgingMemory:
    """The last updates with their sum, and how updates age."""

    memory: ClientMemory
    aging: ExpectedResiduals

    @property
    def stored(self) -> ClientVectorStore:
        """The last updates alone."""
        return self.memory.stored


BiasOf = Callable[[NDArray[np.float64], NDArray[np.bool_], int], NDArray[np.float64] | float]
"""The SAG share of each correction, given rho(age)^2 (at most 1), which clients were seen before, and the round."""


class ChangingBias(LastUpdates):
    """`Forecast` with a SAG share that depends on the client or on the round; `step_units` as in `StepUnits`."""

    def __init__(self, bias_of: BiasOf, step_units: bool = False):
        super().__init__()
        self.bias_of, self.step_units = bias_of, step_units

    def start(self, clients: int, weights: Tensor) -> AgingMemory:
        """Nothing remembered."""
        return AgingMemory(ClientMemory.start(self.keep, clients, weights), ExpectedResiduals.start(clients))

    def step(self, updates: Updates, view: RoundView, state: AgingMemory) -> Tensor:
        """sum d h + sum_drawn ((1 - bias) H + bias d) (G - h)."""
        sizes, client, memory, aging = view.sizes[:, updates.task], updates.client, state.memory, state.aging
        seen = aging.last[client] > 0
        ratio = aging.ratios()[bin_of_age(view.round - aging.last[client])] ** 2
        bias = np.clip(self.bias_of(np.where(seen, np.minimum(ratio, 1.0), 1.0), seen, view.round), 0, 1)
        scale = corrections(updates, view, bias)
        memory.reweight(sizes)
        before = memory.stored.of(client).matrix()
        forecast = (memory.total / int(sizes.sum())).float()
        step: Tensor = forecast + updates.combine(scale) - before.combine(scale)
        aging.observe(updates, memory.stored, view.round)
        memory.replace(updates, before, updates.rows, sizes)
        return step

    def expected_residuals(
        self, expected: ExpectedResiduals, view: RoundView, task: int, state: AgingMemory
    ) -> NDArray[np.float64]:
        """r, or r in units of the step."""
        return in_step_units(expected, view, task, state.memory) if self.step_units else expected.expected(view.round)
