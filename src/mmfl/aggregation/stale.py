"""Aggregations that remember: a client's last update h stands in for it while it is not drawn.

All are w - [ sum_i d beta_i h_i + sum_drawn d / (B p) (G - beta_i h_i) ], which is unbiased for every beta fixed before
the draw, and differ in beta. Only StaleVR, for which everyone trains, passes over all stored updates in a round;
the others keep running sums.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmfl.aggregation.base import AggregationRule
from mmfl.aggregation.unbiased import inverse_probability
from mmfl.checks import check
from mmfl.federation import RoundView
from mmfl.updates import ClientVectorStore, StorageOptions, Updates
from mmfl.updates.memory import ClientMemory, weighted_sum
from mmfl.updates.partial_sum import PartialSum
from mmfl.updates.rows import ClientRows, batches
from mmfl.updates.world import PARTIAL

StorageSetting = StorageOptions | Mapping[str, Any] | None


class LastUpdates(AggregationRule):
    """A rule that remembers every client's last update, in `stored` of its state; subclasses say which step to take."""

    def __init__(self, keep: StorageSetting = None):
        self.keep = StorageOptions.of(keep)

    def start(self, clients: int, weights: Tensor) -> Any:
        """Nothing remembered."""
        return ClientMemory.start(self.keep, clients, weights)

    def aggregate(self, weights: Tensor, updates: Updates, view: RoundView, state: Any) -> tuple[Tensor, Any]:
        """The step, and what is remembered after it; nothing changes while nobody has the task."""
        if not view.trainable[updates.task]:
            return weights, state
        return weights - self.step(updates, view, state).to(weights), state

    def remembered(self, state: Any) -> ClientVectorStore:
        """All last updates."""
        stored: ClientVectorStore = state.stored
        return stored

    def step(self, updates: Updates, view: RoundView, state: Any) -> Tensor:
        """The step to subtract from the weights; stores the updates."""
        raise TypeError(f"{type(self).__name__} does not say how to step.")


class FedStale(LastUpdates):
    """One beta for all clients (Rodio & Neglia 2024): 0 forgets, so it is `unbiased`; 1 trusts, so it is FedVARP."""

    def __init__(self, beta: float = 0.5, keep: StorageSetting = None):
        check(0 <= beta <= 1, "aggregation 'fedstale'", "beta", beta, "a number in [0, 1]")
        super().__init__(keep)
        self.beta = beta

    def step(self, updates: Updates, view: RoundView, state: ClientMemory) -> Tensor:
        """beta sum d h + sum H (G - beta h), with h as it was before the round."""
        sizes, scale = view.sizes_of(updates.task), inverse_probability(updates, view)
        state.reweight(sizes)
        before = state.stored.of(updates.client).matrix()
        stale = (self.beta / int(view.examples[updates.task])) * state.total
        step = stale.float() + updates.combine(scale) - self.beta * before.combine(scale)
        state.replace(updates, before, updates.rows, sizes)
        return step

    def residuals(self, updates: Updates, view: RoundView, state: ClientMemory) -> NDArray[np.float64]:
        """||G - beta h||."""
        return state.stored.of(updates.client).distances(updates, np.full(len(updates), self.beta))


class FedVARP(FedStale):
    """Every client's last update stands in for it in full (Jhunjhunwala et al. 2022)."""

    def __init__(self, keep: StorageSetting = None):
        super().__init__(1.0, keep)


class MIFA(LastUpdates):
    """The mean of all clients' latest updates, this round's included (Gu et al. 2021); no probabilities needed."""

    def step(self, updates: Updates, view: RoundView, state: ClientMemory) -> Tensor:
        """Remember first, then sum d h."""
        sizes = view.sizes_of(updates.task)
        state.reweight(sizes)
        state.replace(updates, state.stored.of(updates.client).matrix(), updates.rows, sizes)
        return state.total / int(view.examples[updates.task])


@dataclass
class Betas:
    """StaleVR's memory: the last updates, and the beta each client had in the round just past (nan: no h yet)."""

    stored: ClientVectorStore
    beta: NDArray[np.float64]


class StaleVR(LastUpdates):
    """Each client's beta is the one that leaves the least variance, `<G, h>` / ||h||^2 (Zhang et al. 2025, Theorem 3).

    This needs the update G of every client, so everyone trains, drawn or not.
    """

    needs_everyone = True
    reads_undrawn = False

    def start(self, clients: int, weights: Tensor) -> Betas:
        """Nothing remembered."""
        return Betas(self.keep.start(clients, weights), np.full(clients, np.nan))

    def aggregate(self, weights: Tensor, updates: Updates, view: RoundView, state: Betas) -> tuple[Tensor, Betas]:
        """sum d beta h + sum H (G - beta h)."""
        share, scale = view.share[updates.client, updates.task], inverse_probability(updates, view)
        stale = state.stored.of(updates.client)
        beta = stale.best_beta(updates)
        step = updates.combine(scale) + stale.combine((share - scale) * beta)
        known = np.full(len(state.beta), np.nan)
        known[updates.client] = np.where(state.stored.has(updates.client), beta, np.nan)
        drawn = updates.drawn()
        state.stored.put(drawn.client, drawn.rows)
        return weights - step, Betas(state.stored, known)

    def residuals(self, updates: Updates, view: RoundView, state: Betas) -> NDArray[np.float64]:
        """||G - beta h||."""
        stale = state.stored.of(updates.client)
        return stale.distances(updates, stale.best_beta(updates))

    def report(self, view: RoundView, task: int, state: Betas) -> Mapping[str, float]:
        """Statistics of the betas: how much the clients' last updates are worth."""
        return statistics(state.beta)


@dataclass
class Estimates:
    """StaleVRE's memory of one task.

    A client's estimate of beta is 1 in the round after it was last active and falls by `slope` each idle round until
    it is 0 in round `ends`. So sum n beta h is a straight line in the round, `constant` + `linear` * t, as long as
    nobody is active, reaches 0, leaves or comes back; `weight` is the n with which each client is in it.
    """

    stored: ClientVectorStore
    weight: NDArray[np.float64]
    last: NDArray[np.int64]
    slope: NDArray[np.float64]
    constant: Tensor = field(metadata=PARTIAL)
    linear: Tensor = field(metadata=PARTIAL)

    @property
    def ends(self) -> NDArray[np.float64]:
        """The round in which each estimate reaches 0."""
        with np.errstate(divide="ignore"):
            return self.last + 1 + 1 / self.slope

    def beta(self, round: int) -> NDArray[np.float64]:
        """The estimates of a round, [clients]; 0 before the first activity."""
        fallen = 1 - self.slope * (round - self.last - 1)
        return np.where(self.last > 0, np.clip(fallen, 0, 1), 0.0)

    def reweight(self, round: int, sizes: NDArray[np.int64]) -> None:
        """Removes clients whose estimate has reached 0 or that have left, and adds those that came back."""
        wanted = np.where((self.last > 0) & (round < self.ends), sizes, 0)
        moved = np.flatnonzero(wanted != self.weight)
        held = moved[self.stored.holds(moved)]
        for rows in batches(len(held), self.linear):
            client = held[rows]
            self._add(client, (wanted - self.weight)[client], self.stored.held_rows(client))
        self.weight[moved] = wanted[moved]

    def stale(self, round: int) -> Tensor:
        """sum n beta h of a round, over the clients that are present, [parameters]."""
        return PartialSum.of(self.constant + round * self.linear, self.stored.world)

    def replace(
        self, updates: Updates, before: ClientRows, best: NDArray[np.float64], round: int, sizes: NDArray[np.int64]
    ) -> None:
        """Active clients start anew at 1, with the slope (1 - best) / (t - t1) of the round t1 before: how far the best
        beta of this round had fallen below 1, spread over the rounds since. (Eq. 21 divides by t - t1 - 1, which is 0
        after consecutive activity; with ours the line passes above the best beta of round t, and stays unbiased.)"""
        client, held = updates.client, before.take_held(updates.client)
        self._add(held, -self.weight[held], before.matrix)
        idle = np.maximum(round - self.last[client], 1)
        self.slope[client] = np.where(self.last[client] > 0, (1 - np.clip(best, 0, 1)) / idle, 0.0)
        self.last[client] = round
        self.weight[client] = sizes[client]
        self._add(held, self.weight[held], self.stored.put(client, updates.rows))

    def _add(self, client: NDArray[np.int64], weight: NDArray[np.float64], rows: Tensor) -> None:
        """Adds weight * h * beta(t), as a function of t, to the line."""
        slope = self.slope[client]
        self.constant += weighted_sum(weight * (1 + slope * (self.last[client] + 1)), rows)
        self.linear += weighted_sum(-weight * slope, rows)


class StaleVRE(LastUpdates):
    """StaleVR with betas estimated from how well past updates aged, so that only drawn clients train.

    (Zhang et al. 2025.) The estimate is the same whether a client is drawn or not: with the best beta for drawn clients
    only, the step would be biased by sum d (1 - p) (beta - best) h.
    """

    def start(self, clients: int, weights: Tensor) -> Estimates:
        """Nothing remembered."""
        line = torch.zeros_like(weights, dtype=torch.float64)
        stored = self.keep.start(clients, weights)
        return Estimates(
            stored, np.zeros(clients), np.zeros(clients, dtype=np.int64), np.zeros(clients), line, line.clone()
        )

    def step(self, updates: Updates, view: RoundView, state: Estimates) -> Tensor:
        """sum d beta h + sum H (G - beta h), the first sum read off the line."""
        sizes = view.sizes_of(updates.task)
        state.reweight(view.round, sizes)
        scale, beta = inverse_probability(updates, view), state.beta(view.round)[updates.client]
        last = state.stored.of(updates.client)
        before = last.matrix()
        stale = (state.stale(view.round) / sizes.sum()).float()
        step: Tensor = stale + updates.combine(scale) - before.combine(scale * beta)
        state.replace(updates, before, last.best_beta(updates), view.round, sizes)
        return step

    def residuals(self, updates: Updates, view: RoundView, state: Estimates) -> NDArray[np.float64]:
        """||G - beta h|| with the estimated beta."""
        beta = state.beta(view.round)[updates.client]
        return state.stored.of(updates.client).distances(updates, beta)

    def report(self, view: RoundView, task: int, state: Estimates) -> Mapping[str, float]:
        """The estimates for the next round, over all clients seen."""
        return statistics(np.where(state.last > 0, state.beta(view.round + 1), np.nan))


def statistics(beta: NDArray[np.float64]) -> dict[str, float]:
    """Mean, least and largest of the betas that are known."""
    known = beta[np.isfinite(beta)]
    if not len(known):
        return {}
    return {"beta_mean": float(known.mean()), "beta_min": float(known.min()), "beta_max": float(known.max())}
