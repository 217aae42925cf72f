"""Aggregations of the ablation with other forecasts: last updates that are trusted less with age."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmfl.aggregation.forecast import corrections
from mmfl.aggregation.stale import LastUpdates
from mmfl.federation import RoundView
from mmfl.updates import ClientVectorStore, Updates
from mmfl.updates.expected_residuals import NEIGHBOURS, ExpectedResiduals, bin_of_age


@dataclass
class AgedMemory:
    """The last updates, and what is known of how updates age."""

    stored: ClientVectorStore
    aging: ExpectedResiduals


class AgedForecast(LastUpdates):
    """Forecasts z = beta(age) h, with the curve beta pooled over clients: of each age, the one that fits best."""

    def __init__(self, bias: float = 0.0):
        super().__init__()
        self.bias = bias

    def start(self, clients: int, weights: Tensor) -> AgedMemory:
        """Nothing remembered."""
        return AgedMemory(self.keep.start(clients, weights), ExpectedResiduals.start(clients))

    def step(self, updates: Updates, view: RoundView, state: AgedMemory) -> Tensor:
        """sum d z + sum_drawn ((1 - bias) H + bias d) (G - z)."""
        stored, client = state.stored, updates.client
        scale, beta = corrections(updates, view, self.bias), betas(state.aging, view.round)
        known = np.flatnonzero(stored.has(np.arange(len(beta))))
        stale = stored.combine(known, (view.share[:, updates.task] * beta)[known])
        step = stale + updates.combine(scale) - stored.combine(client, scale * beta[client])
        state.aging.observe(updates, stored, view.round)
        stored.put(client, updates.rows)
        return step


def betas(aging: ExpectedResiduals, round: int) -> NDArray[np.float64]:
    """beta(age) of every client, between 0 and 1; 1 before anything is known, and 0 for a client never seen."""
    if not aging.stale_squares.any():
        return np.where(aging.last > 0, 1.0, 0.0)
    _, products, stale_squares = aging.smoothed_sums()
    curve = np.clip(products / stale_squares, 0, 1)[bin_of_age(np.arange(round + 1))]
    return np.where(aging.last > 0, curve[round - aging.last], 0.0)


@dataclass
class DirectedMemory(AgedMemory):
    """The last updates, how they age, and the task's last step g.

    `sums` [5, bins] are those of `<G, h>`, `<G, g>`, ||h||^2, `<h, g>` and ||g||^2 over received updates.
    """

    last_step: Tensor
    sums: NDArray[np.float64]


class DirectedForecast(LastUpdates):
    """Forecasts z = a(age) g + b(age) h, with g the task's last step: ridge regressions of G, pooled over clients."""

    _RIDGE = 0.01
    _DISCOUNT = 0.95

    def __init__(self, bias: float = 0.0):
        super().__init__()
        self.bias = bias

    def start(self, clients: int, weights: Tensor) -> DirectedMemory:
        """Nothing remembered."""
        aging = ExpectedResiduals.start(clients)
        sums = np.zeros((5, len(aging.squares)))
        return DirectedMemory(self.keep.start(clients, weights), aging, torch.zeros_like(weights), sums)

    def step(self, updates: Updates, view: RoundView, state: DirectedMemory) -> Tensor:
        """sum d z + sum_drawn ((1 - bias) H + bias d) (G - z)."""
        stored, client, last = state.stored, updates.client, state.last_step
        scale, share = corrections(updates, view, self.bias), view.share[:, updates.task]
        a, b = self._factors(state, view.round)
        known = np.flatnonzero(stored.has(np.arange(len(share))))
        step = stored.combine(known, (share * b)[known]) + float((share * a).sum()) * last
        step = step + updates.combine(scale) - stored.combine(client, scale * b[client])
        step = step - float((scale * a[client]).sum()) * last
        self._observe(updates, state, view.round)
        stored.put(client, updates.rows)
        state.last_step = step
        return step

    def _factors(self, state: DirectedMemory, round: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """a and b of every client; 0 and 1 before anything is known, 0 and 0 for a client never seen."""
        seen = state.aging.last > 0
        if not state.sums[2].any():
            return np.zeros(len(seen)), np.where(seen, 1.0, 0.0)
        gh, gg, hh, hs, ss = state.sums @ NEIGHBOURS
        ridge = self._RIDGE * (hh + ss) / 2
        hh, ss = hh + ridge, ss + ridge
        determinant = hh * ss - hs**2
        at = bin_of_age(round - state.aging.last)
        a, b = (gg * hh - gh * hs) / determinant, (gh * ss - gg * hs) / determinant
        return np.where(seen, a[at], 0.0), np.where(seen, b[at], 0.0)

    def _observe(self, updates: Updates, state: DirectedMemory, round: int) -> None:
        rows, stale = updates.flat, state.stored.rows(updates.client)
        norm = rows.square().sum(1).double().cpu().numpy()
        square = stale.square().sum(1).double().cpu().numpy()
        products = [
            (rows * stale).sum(1), rows @ state.last_step, stale.square().sum(1), stale @ state.last_step,
            state.last_step.square().sum().expand(len(rows)),
        ]  # fmt: skip
        counts = (norm > 0) & (square > 0)
        weight = np.where(counts, 1 / np.where(counts, norm, 1.0), 0.0)
        at = bin_of_age(round - state.aging.last[updates.client])
        state.sums *= self._DISCOUNT
        for sums, values in zip(state.sums, products, strict=True):
            np.add.at(sums, at, weight * values.double().cpu().numpy())
        state.aging.observe(updates, state.stored, round)
