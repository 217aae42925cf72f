"""Aggregations that remember: a client's last update h stands in for it while it is not drawn.

All are w - [ sum_i d beta_i h_i + sum_drawn d / (B p) (G - beta_i h_i) ], which is unbiased for every beta fixed before
the draw, and differ in beta. Only StaleVR, for which everyone trains, passes over all stored updates in a round;
the others keep running sums.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from mmfl.aggregation.base import AggregationRule
from mmfl.aggregation.unbiased import inverse_probability
from mmfl.checks import check
from mmfl.federation import RoundView
from mmfl.updates import ClientVectorStore, StorageOptions, Updates
from mmfl.updates.memory import ClientMemory, FadingMemory

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

    def last_updates(self, state: Any) -> ClientVectorStore:
        """All last updates."""
        stored: ClientVectorStore = state.stored
        return stored

    def step(self, updates: Updates, view: RoundView, state: Any) -> Tensor:
        """The step to subtract from the weights; stores the updates."""
        raise TypeError(f"{type(self).__name__} does not say how to step.")


def stale_mean_of(rule: AggregationRule, updates: Updates, view: RoundView, state: Any) -> Tensor:
    """What the memory stands for: as it is now or, where asynchronous training kept that, as it was when the updates'
    clients began."""
    if updates.sent is not None and updates.sent.memory is not None:
        return updates.sent.memory
    return rule.stale_mean(view, updates.task, state)


class FedStale(LastUpdates):
    """One beta for all clients (Rodio & Neglia 2024): 0 forgets, so it is `unbiased`; 1 trusts, so it is FedVARP."""

    has_stale_mean = True

    def __init__(self, beta: float = 0.5, keep: StorageSetting = None):
        check(0 <= beta <= 1, "aggregation 'fedstale'", "beta", beta, "a number in [0, 1]")
        super().__init__(keep)
        self.beta = beta

    def step(self, updates: Updates, view: RoundView, state: ClientMemory) -> Tensor:
        """beta sum d h + sum H (G - beta h), with h as it was before the round."""
        sizes, scale = view.sizes_of(updates.task), inverse_probability(updates, view)
        state.reweight(sizes)
        before = state.stored.of(updates.client).matrix()
        stale = stale_mean_of(self, updates, view, state)
        step = stale.float() + updates.combine(scale) - self.beta * before.combine(scale)
        state.replace(updates, before, updates.rows, sizes)
        return step

    def stale_mean(self, view: RoundView, task: int, state: ClientMemory) -> Tensor:
        """beta sum d h."""
        state.reweight(view.sizes_of(task))
        return (self.beta / int(view.examples[task])) * state.total

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


class StaleVRE(LastUpdates):
    """StaleVR with betas estimated from how well past updates aged, so that only drawn clients train.

    (Zhang et al. 2025.) The estimate is the same whether a client is drawn or not: with the best beta for drawn clients
    only, the step would be biased by sum d (1 - p) (beta - best) h.
    """

    def start(self, clients: int, weights: Tensor) -> FadingMemory:
        """Nothing remembered."""
        return FadingMemory.start(self.keep, clients, weights)

    def step(self, updates: Updates, view: RoundView, state: FadingMemory) -> Tensor:
        """sum d beta h + sum H (G - beta h), the first sum read off the line."""
        sizes = view.sizes_of(updates.task)
        state.reweight(view.round, sizes)
        scale, beta = inverse_probability(updates, view), state.beta(view.round)[updates.client]
        last = state.stored.of(updates.client)
        before = last.matrix()
        stale = (state.stale(view.round) / sizes.sum()).float()
        step: Tensor = stale + updates.combine(scale) - before.combine(scale * beta)
        slope = slopes(last.best_beta(updates), state.last[updates.client], view.round)
        state.replace(updates, before, slope, view.round, sizes)
        return step

    def residuals(self, updates: Updates, view: RoundView, state: FadingMemory) -> NDArray[np.float64]:
        """||G - beta h|| with the estimated beta."""
        beta = state.beta(view.round)[updates.client]
        return state.stored.of(updates.client).distances(updates, beta)

    def report(self, view: RoundView, task: int, state: FadingMemory) -> Mapping[str, float]:
        """The estimates for the next round, over all clients seen."""
        return statistics(np.where(state.last > 0, state.beta(view.round + 1), np.nan))


def slopes(best: NDArray[np.float64], last: NDArray[np.int64], round: int) -> NDArray[np.float64]:
    """(1 - best) / (t - t1) of the round t1 in which clients were last active (0: never): how far the best beta of this
    round had fallen below 1, spread over the rounds since. (Eq. 21 divides by t - t1 - 1, which is 0 after consecutive
    activity; with ours the line passes above the best beta of round t, and stays unbiased.)"""
    return np.where(last > 0, (1 - np.clip(best, 0, 1)) / np.maximum(round - last, 1), 0.0)


def statistics(beta: NDArray[np.float64]) -> dict[str, float]:
    """Mean, least and largest of the betas that are known."""
    known = beta[np.isfinite(beta)]
    if not len(known):
        return {}
    return {"beta_mean": float(known.mean()), "beta_min": float(known.min()), "beta_max": float(known.max())}
