"""Aggregations of updates that began at different times: their formulas, and what is unbiased."""

import numpy as np
import pytest
import torch

from conftest import view_of
from mmfl.aggregation import FedAsync, FedBuff, FedStale, FedVARP, Forecast, StalenessWeighted, Unbiased
from mmfl.aggregation.asynchronous import Hinge, Polynomial
from mmfl.updates import SentFrom, Updates

SIZES = np.array([[10], [30], [20], [40]])
CAPACITY = np.array([1, 2, 1, 2])
RHO = np.array([0.4, 0.3, 0.2, 0.1])
G = torch.from_numpy(np.random.default_rng(0).normal(size=(4, 3)))
WEIGHTS = torch.tensor([1.0, -1.0, 0.5], dtype=torch.float64)


def arrived(*client, staleness=0, buffer=None, memory=None, weights=None) -> Updates:
    """The updates of some clients, drawn with replacement by RHO, in a buffer."""
    who = np.array(client)
    stale = np.broadcast_to(np.asarray(staleness), len(who)).astype(np.int64)
    probability = (buffer or len(who)) * RHO[who] / CAPACITY[who]
    columns = np.ones(len(who), dtype=np.int64), probability, G[who], np.zeros(len(who)), np.ones(len(who))
    return Updates(0, who, *columns, sent=SentFrom(7 - stale, stale, weights, memory))


def step(rule, updates, state=None) -> torch.Tensor:
    """What the rule subtracts."""
    return WEIGHTS - rule.aggregate(WEIGHTS, updates, view_of(SIZES, CAPACITY), state)[0]


def test_updates_drawn_with_replacement_have_the_mean_of_full_participation():
    share = torch.from_numpy(SIZES[:, 0] / SIZES.sum())
    mean = sum(RHO[i] * RHO[j] * step(Unbiased(), arrived(i, j)) for i in range(4) for j in range(4))
    torch.testing.assert_close(mean, share @ G)


@pytest.mark.parametrize("rule", [FedVARP(), FedStale(0.5), Forecast(bias=0.0)], ids=lambda rule: type(rule).__name__)
def test_with_the_memory_of_when_it_was_sent_a_request_has_the_mean_of_the_full_step(rule):
    view, beta = view_of(SIZES, CAPACITY), getattr(rule, "beta", 1.0)
    share = torch.from_numpy(SIZES[:, 0] / SIZES.sum())
    then, now = (torch.from_numpy(np.random.default_rng(n).normal(size=(4, 3))) for n in (1, 2))
    means = {}
    for kept in ("sent", "current"):
        memory = beta * (share @ then) if kept == "sent" else None
        mean = torch.zeros(3, dtype=torch.float64)
        for i in range(4):  # while the client's request was under way, the others' last updates changed, not its own
            state = rule.start(4, WEIGHTS)
            last = torch.where(torch.arange(4)[:, None] == i, then, now)
            before = state.stored.of(np.arange(4)).matrix()
            everyone = Updates(0, np.arange(4), *np.ones((2, 4)), last, *np.ones((2, 4)))
            state.replace(everyone, before, everyone.rows, view.sizes_of(0))
            mean += RHO[i] * step(rule, arrived(i, memory=memory), state)
        means[kept] = mean
    torch.testing.assert_close(means["sent"], share @ G, rtol=1e-5, atol=1e-5)
    assert (means["current"] - share @ G).norm() > 0.01


def test_fedbuff_is_the_mean_of_weighted_updates():
    updates = arrived(0, 2, 3, staleness=[0, 3, 8])
    expected = 0.5 / 3 * (G[0] + G[2] / 2 + G[3] / 3)
    torch.testing.assert_close(step(FedBuff(lr=0.5), updates), expected)
    torch.testing.assert_close(step(FedBuff(staleness=0), updates), (G[0] + G[2] + G[3]) / 3)
    hinge = (G[0] + G[2] + G[3] / (10 * 4 + 1)) / 3
    torch.testing.assert_close(step(FedBuff(staleness=[10, 4]), updates), hinge)


def test_fedasync_goes_from_the_current_weights_towards_those_of_the_client():
    began = torch.tensor([[2.0, 2.0, 2.0]], dtype=torch.float64)
    new = WEIGHTS - step(FedAsync(alpha=0.5), arrived(1, staleness=3, weights=began))
    torch.testing.assert_close(new, 0.75 * WEIGHTS + 0.25 * (began[0] - G[1]))


def test_staleness_weights_scale_the_updates_of_another_rule():
    updates = arrived(0, 2, staleness=[0, 3])
    expected = step(Unbiased(), arrived(0, buffer=2)) + 0.5 * step(Unbiased(), arrived(2, buffer=2))
    rule = StalenessWeighted(Unbiased())
    torch.testing.assert_close(step(rule, updates, rule.start(4, WEIGHTS)), expected)


def test_staleness_weights_are_one_at_first_and_fall():
    ages = np.arange(20)
    for weight in (Polynomial(0.5), Hinge(10, 4), Polynomial(2.0)):
        values = weight(ages)
        assert values[0] == 1
        assert (np.diff(values) <= 0).all()
    assert (Polynomial(0.0)(ages) == 1).all()
