"""Expected residuals: against the definition taken literally, and through whole runs."""

import numpy as np
import torch

import mmfl
from conftest import refusals, refused
from mmfl.aggregation import MIFA, Average, FedVARP, Forecast, ServerMomentum, StaleVRE, Unbiased
from mmfl.allocation import AllocationRule, ExpectedResidualVariance
from mmfl.updates import Updates
from mmfl.updates.expected_residuals import ExpectedResiduals
from mmfl.updates.store import StorageOptions

CLIENTS, LENGTH = 12, 5


class Literal:
    """All that was ever received, summed over anew in each round."""

    def __init__(self):
        self.seen, self.h, self.last = [], {}, {}

    def observe(self, t, client, sent):
        for i, G in zip(client, sent, strict=True):
            if i in self.h:
                self.seen.append((t, t - self.last[i], G @ G, G @ self.h[i], self.h[i] @ self.h[i]))
            else:
                self.seen.append((t, None, G @ G, 0.0, 0.0))
        for i, G in zip(client, sent, strict=True):
            self.h[i], self.last[i] = G, t

    def expected(self, t, now):
        """Of every client before the draw of round t; `now` is the last round that was observed."""
        norms = [(0.9 ** (now - r), np.sqrt(GG)) for r, _, GG, _, _ in self.seen]
        unseen = sum(w * n for w, n in norms) / sum(w for w, _ in norms) if norms else 1.0
        return np.array([self._of(i, t, now) if i in self.h else unseen for i in range(CLIENTS)])

    def _of(self, i, t, now):
        sums, at = np.zeros(3), int(4 * np.log2(t - self.last[i]))
        for r, age, GG, Gh, hh in self.seen:
            if age is not None and GG > 0 and hh > 0:
                near = np.exp(-abs(int(4 * np.log2(age)) - at) / 2) * 0.95 ** (now - r)
                sums += near * np.array([GG, Gh, hh]) / GG
        GG, Gh, hh = sums
        rho = np.sqrt(max(GG - Gh**2 / hh, 0) / hh) if hh > 0 else 1.0
        return rho * np.linalg.norm(self.h[i])


def received(client, sent):
    ones = np.ones(len(client), dtype=int)
    return Updates(0, client, ones, ones / 2, torch.from_numpy(sent).float(), ones / 1, ones)


def test_they_are_as_defined_over_a_long_history_with_zero_updates_and_rounds_without_anyone():
    rng, literal = np.random.default_rng(0), Literal()
    state, stored = ExpectedResiduals.start(CLIENTS), StorageOptions().start(CLIENTS, torch.zeros(LENGTH))
    usual = rng.normal(size=(CLIENTS, LENGTH)) * 10 ** rng.uniform(-2, 1, (CLIENTS, 1))
    np.testing.assert_array_equal(state.expected(1), np.ones(CLIENTS))
    for t in range(1, 60):
        client = np.flatnonzero(rng.random(CLIENTS - 1) < (0.25 if t % 7 else 0))
        sent = (usual[client] + 0.5 * rng.normal(size=(len(client), LENGTH))) * (rng.random((len(client), 1)) < 0.9)
        sent = sent.astype(np.float32).astype(float)
        updates = received(client, sent)
        state.observe(updates, stored, t)
        stored.put(client, updates.rows)
        literal.observe(t, client.tolist(), sent)
        np.testing.assert_allclose(state.expected(t + 1), literal.expected(t + 1, t), rtol=1e-4, atol=1e-6)
    assert (state.last == 0).sum() == 1  # the last client was never seen
    curve = state.ratios()
    assert curve.shape == (81,)
    assert curve.std() > 0


def test_updates_that_do_not_change_leave_nothing_to_expect_and_opposite_ones_do_not_matter_to_the_best_fit():
    state, stored = ExpectedResiduals.start(2), StorageOptions().start(2, torch.zeros(2))
    for t in (1, 2, 5):
        updates = received(np.arange(2), np.array([[3.0, 4.0], [0.0, 2.0]]))
        state.observe(updates, stored, t)
        stored.put(updates.client, updates.rows)
    np.testing.assert_allclose(state.expected(6), 0, atol=1e-6)


class Asks(AllocationRule):
    """Asks for the signal without saying so beforehand."""

    def asks(self, view, state):
        return {"expected_residuals": view.able}


def train(allocation, aggregation, rounds=2):
    tasks = [mmfl.Task(name, mmfl.models.LogisticRegression, mmfl.data.digits(), lr=0.3) for name in ("a", "b")]
    federation = mmfl.Federation(tasks, clients=20, partition=mmfl.partition.labels(0.3))
    return mmfl.train(federation, mmfl.Method("mine", allocation, aggregation), rounds, 0.3)


@refusals(
    (lambda: train(ExpectedResidualVariance(), Unbiased()), "ExpectedResidualVariance", "Unbiased remembers no"),
    (lambda: train(ExpectedResidualVariance(), ServerMomentum(Average())), "ServerMomentum remembers no"),
    (lambda: train(Asks(), FedVARP()), "asks for expected_residuals", "`needs`"),
    (lambda: ExpectedResidualVariance(floor=1.5), "floor is 1.5", "in [0, 1]"),
    (lambda: ExpectedResidualVariance(draw="systemic"), "did you mean 'systematic'"),
)
def test_what_cannot_be_expected_is_refused(make, words):
    with refused(*words):
        make()


def test_the_signal_goes_with_every_aggregation_that_remembers_also_inside_another():
    for rule in (FedVARP(), MIFA(), StaleVRE(), ServerMomentum(Forecast())):
        run = train(ExpectedResidualVariance(), rule, 4)
        assert run.costs["trainings"].sum() > 0
        assert run.costs["forward_passes"].sum() == 0
