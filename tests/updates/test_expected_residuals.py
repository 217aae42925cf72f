"""Expected residuals: against the definition taken literally, and through whole runs."""

import numpy as np
import pytest
import torch

import mmfl
from conftest import refusals, refused, toy_task, view_of
from mmfl.aggregation import AGGREGATIONS, MIFA, Average, FedVARP, Forecast, ServerAdam, ServerMomentum, Unbiased
from mmfl.aggregation.stale import LastUpdates
from mmfl.allocation import (
    AllocationRule,
    ExpectedResidualVariance,
    RandomProcessors,
    RoundRobinTasks,
    SequentialTasks,
    WarmUp,
)
from mmfl.allocation.variance import LeastVariance
from mmfl.engine import Simulation
from mmfl.methods import make_method
from mmfl.training import Replica, rounds
from mmfl.updates import Updates
from mmfl.updates.expected_residuals import ExpectedResiduals, by_pair
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


def test_an_update_whose_norm_overflows_spoils_nothing_of_what_is_known_of_others():
    """Its entries are finite, but their squares are not: of a model that diverged at one client."""
    found = []
    for clients in ([0, 1, 2], [0, 1]):  # with and without the client
        state, stored = ExpectedResiduals.start(3), StorageOptions().start(3, torch.zeros(2))
        for t in (1, 2, 5):
            sent = np.array([[3.0, t], [0.0, 2.0 * t], [3e38, -3e38 / t]])
            updates = received(np.array(clients), sent[clients])
            state.observe(updates, stored, t)
            stored.put(updates.client, updates.rows)
        found.append(state)
    for name in ("squares", "products", "stale_squares", "norms", "received"):
        np.testing.assert_array_equal(getattr(found[0], name), getattr(found[1], name))
    np.testing.assert_array_equal(found[0].expected(6)[:2], found[1].expected(6)[:2])
    view = view_of(np.ones((3, 1)), round=6).with_signals(expected_residuals=found[0].expected(6)[:, None])
    assert np.isfinite(ExpectedResidualVariance().probabilities(view)).all()


def test_to_learn_from_a_round_the_vectors_of_its_active_clients_are_read_once_however_many_are_stored(touched):
    clients, active, ones = 10_000, 20, np.ones(20, dtype=int)
    state, stored = ExpectedResiduals.start(clients), StorageOptions().start(clients, torch.zeros(2))
    stored.put(np.arange(5_000), torch.ones(5_000, 2))
    for t in range(1, 6):
        client = np.arange(4_990, 4_990 + active)  # half of them new at first
        updates = Updates(0, client, ones, ones / 2, torch.full((active, 2), float(t)), ones / 1, ones)
        touched.clear()
        state.observe(updates, stored, t)
        assert sum(touched) == active
        stored.put(client, updates.rows)


class Broken(Simulation):
    """An engine whose client 3 trains to no numbers in the second half of the run."""

    def train(self, trainings):
        answers = super().train(trainings)
        for training, answer in zip(trainings, answers, strict=True):
            if training.round > 10:
                answer.flat[torch.from_numpy(answer.client == 3)] = float("nan")
        return answers


def moving_federation():
    """Ten clients: 0 arrives, 1 leaves, 2 is away for a while; a task that arrives."""
    reached = np.ones((20, 10), dtype=bool)
    reached[5:14, 2] = False
    return mmfl.Federation(
        [toy_task("a"), toy_task("b")],
        10,
        arrivals=[6] + [1] * 9,
        departures=[0, 9] + [0] * 8,
        task_arrivals={"b": 4},
        availability=mmfl.Trace(reached),
    )


@pytest.mark.parametrize("rule", ["forecast", "stalevr"])  # the latter has everybody train, drawn or not
def test_clients_that_come_go_and_return_or_send_no_numbers_are_expected_by_their_last_valid_update(rule):
    engine, federation = Broken("cpu", "vectorised"), moving_federation()
    method = make_method({"name": "mine", "allocation": "expected-residual-variance", "aggregation": rule})
    replica = Replica.start(federation, method, 0, 0.6, engine)
    last, rejected = np.zeros((10, 2), dtype=int), 0
    for record in rounds([replica], engine, 20):
        (record,) = record
        t, view = record.round, federation.view(record.round, rate=0.6, seed=0)
        rejected += sum(task.rejected for task in record.tasks.values())
        for task, (clients, _) in record.drawn.items():
            valid = [i for i in clients if not (i == 3 and t > 10)]
            last[valid, "ab".index(task)] = t
        for s, expected in enumerate(replica.state.expected):
            np.testing.assert_array_equal(expected.last, last[:, s])
            norms = replica.state.aggregation[s].stored.rows(np.arange(10)).norm(dim=1)
            np.testing.assert_allclose(expected.norm, norms, rtol=1e-6)
        table = by_pair([each.expected(view.round) for each in replica.state.expected], view)
        assert np.isfinite(table).all()
        assert not table[~view.able].any()
        assert (table[view.able] > 0).all()
    assert rejected > 0
    assert last[[0, 2], 0].min() > 14  # drawn after they arrived or returned
    assert 0 < last[1].max() < 9
    assert 0 < last[3].max() <= 10


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
    (lambda: ExpectedResidualVariance(floor="low"), "floor is 'low'", "in [0, 1]"),
    (lambda: ExpectedResidualVariance(mix=float("nan")), "mix is nan", "in [0, 1]"),
    (lambda: ExpectedResidualVariance(equal_tasks="no"), "equal_tasks is 'no'", "True or False"),
    (lambda: ExpectedResidualVariance(draw="systemic"), "did you mean 'systematic'"),
)
def test_what_cannot_be_expected_is_refused(make, words):
    with refused(*words):
        make()


class RandomWhereUnexplained(RandomProcessors):
    """Random processors of the half of the clients with the larger expected residuals: a rule of one's own."""

    needs = frozenset({"expected_residuals"})

    def allocate(self, view, state):
        signal = view.signals["expected_residuals"].max(1)
        return super().allocate(view.without(signal < np.median(signal)), state)


SAMPLED = {
    "forecast": lambda: ExpectedResidualVariance(),
    "by length": lambda: ExpectedResidualVariance(equal_tasks=False, mix=0.2, draw="independent"),
    "named signal": lambda: LeastVariance("expected_residuals"),
    "own": lambda: RandomWhereUnexplained(),
    "task by task": lambda: RoundRobinTasks(ExpectedResidualVariance()),
    "one after another": lambda: SequentialTasks(ExpectedResidualVariance(), rounds=2),
    "after a warm-up": lambda: WarmUp(ExpectedResidualVariance()),
}
REMEMBERING = {
    **{name: make for name, make in AGGREGATIONS.items() if isinstance(make, type) and issubclass(make, LastUpdates)},
    "momentum": lambda: ServerMomentum(Forecast()),
    "adam": lambda: ServerAdam(MIFA(), lr=0.01),
}


def test_every_allocation_that_asks_for_it_goes_with_every_aggregation_that_remembers_also_inside_another():
    assert {"fedvarp", "fedstale", "mifa", "forecast", "stalevr", "stalevre"} <= set(REMEMBERING)
    methods = [
        mmfl.Method(f"{by}, {rule}", allocation(), aggregation())
        for by, allocation in SAMPLED.items()
        for rule, aggregation in REMEMBERING.items()
    ]
    for run in mmfl.compare(moving_federation(), methods, 8, 0.5, evaluate_every=8, device="cpu"):
        trainings, passes = run.costs["trainings"], run.costs["forward_passes"]
        assert trainings.sum() > 0, run.method
        assert passes.sum() == 0, run.method
        assert (trainings.iloc[-1] > 10) == run.method.endswith("stalevr"), run.method  # for which everyone trains
        assert all(torch.isfinite(weights).all() for weights in run.weights), run.method
