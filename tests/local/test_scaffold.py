"""SCAFFOLD: against the paper's algorithm written out, with the engine's own mini-batches."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch.func import functional_call

import mmfl
from conftest import refusals, refused, toy_task, view_of
from mmfl.aggregation import Unbiased
from mmfl.allocation import Allocation, AllocationRule
from mmfl.engine import Simulation, Training
from mmfl.engine.batches import Batches
from mmfl.engine.device_data import DeviceData
from mmfl.engine.jobs import Jobs
from mmfl.local import PlainSGD, Prox, Scaffold
from mmfl.methods import Method
from mmfl.runs import checkpoint
from mmfl.training import Replica, rounds
from mmfl.updates import StorageOptions, Updates

SIZES = (9, 5, 4, 1, 13, 7)  # in batches of 4: 1 to 4 steps an epoch
P = np.array([[0.5, 0.3], [0.4, 0.5], [0.8, 0.0], [0.7, 0.2], [0.5, 0.4], [0.0, 0.9]])
# (client, task) by round. Client 3 trains in round 4 for the first time; in round 3 nobody trains task 0.
PLAN = [
    [(0, 0), (1, 0), (1, 1), (5, 1)],
    [(1, 0), (2, 0), (4, 0), (0, 1), (5, 1)],
    [(4, 1), (5, 1)],
    [(0, 0), (3, 0), (3, 1)],
    [(0, 0), (1, 0), (2, 0), (3, 0), (4, 0), (0, 1), (1, 1), (3, 1), (4, 1), (5, 1)],
]

both_modes = pytest.mark.parametrize("mode", ["vectorised", "sequential"])


class Planned(AllocationRule):
    """Draws those of the plan who are there."""

    def allocate(self, view, state):
        count = np.zeros(P.shape, dtype=np.int64)
        client, task = np.transpose(PLAN[view.round - 1])
        count[client, task] = 1
        return Allocation.of(count * view.able, P), state


def federation(**options) -> mmfl.Federation:
    """Two tasks that differ in everything, one with a falling step size; client 2 and client 5 lack one each."""
    tasks = [
        toy_task("one", lr=lambda t: 0.3 / t, epochs=2, batch_size=4),
        toy_task("two", classes=3, lr=0.1, epochs=3, batch_size=3),
    ]
    lacks = np.zeros(P.shape, dtype=bool)
    lacks[2, 1] = lacks[5, 0] = True
    partition = mmfl.partition.iid(SIZES)
    return mmfl.Federation(tasks, len(SIZES), partition=partition, lacks=lacks, capacity="all", **options)


def run(mode, local, last=5, pool=None):
    """The replica after each round."""
    engine = Simulation("cpu", mode)
    replica = Replica.start(pool or federation(), Method("mine", Planned(), Unbiased(), local), 0, 1.0, engine)
    for _ in rounds([replica], engine, last):
        yield replica


class Literal:
    """Algorithm 1 of Karimireddy et al. 2020 (option II) for one task, client by client and step by step."""

    def __init__(self, pool, task):
        self.pool, self.index, self.task = pool, task, pool.tasks[task]
        self.module = self.task.build(0, task)
        self.shapes = {name: p.shape for name, p in self.module.named_parameters()}
        self.x = torch.cat([p.detach().reshape(-1) for p in self.module.parameters()]).double()
        self.c, self.c_i = torch.zeros_like(self.x), torch.zeros(len(SIZES), len(self.x), dtype=torch.float64)
        self.module.double()

    def gradient(self, y, inputs, targets):
        y = y.clone().requires_grad_()
        parts = y.split([shape.numel() for shape in self.shapes.values()])
        named = {name: part.view(shape) for (name, shape), part in zip(self.shapes.items(), parts, strict=True)}
        outputs = functional_call(self.module, named, (inputs.double(),))
        return torch.autograd.grad(torch.nn.functional.cross_entropy(outputs, targets), y)[0]

    def batches(self, client, round):
        """The mini-batches of a client, as the engine draws them."""
        asked = Training(self.pool, self.index, self.x.float(), np.array([client]), round, 0, PlainSGD())
        jobs = Jobs.of([asked])
        drawn = Batches(jobs, DeviceData(torch.device("cpu")))
        return list(drawn.of_job(0))

    def round(self, t, view):
        """A round in which those of the plan train who are there; c weighs the clients by their shares, as the
        objective does."""
        lr, s = self.task.learning_rate(t), self.index
        drawn = [i for i, task in PLAN[t - 1] if task == s and view.able[i, s]]
        self.c, step = torch.from_numpy(view.share[:, s]) @ self.c_i, torch.zeros_like(self.x)
        for i in drawn:
            y, K = self.x.clone(), 0
            for inputs, targets in self.batches(i, t):
                y -= lr * (self.gradient(y, inputs, targets) - self.c_i[i] + self.c)
                K += 1
            after = self.c_i[i] - self.c + (self.x - y) / (K * lr)
            step += view.share[i, s] / (view.capacity[i] * P[i, s]) * (self.x - y)
            self.c_i[i] = after
        self.x = self.x - step


def close(mine, expected):
    torch.testing.assert_close(mine.double(), expected, rtol=1e-4, atol=1e-5)


@both_modes
def test_rounds_follow_the_algorithm_of_the_paper(mode):
    pool = federation()
    literal = [Literal(pool, s) for s in range(2)]
    steps = set()
    for t, replica in enumerate(run(mode, Scaffold(), pool=pool), 1):
        view = replica.view(t)
        for s, task in enumerate(literal):
            task.round(t, view)
            controls = replica.state.local[s]
            close(replica.state.weights[s], task.x)
            close(controls.clients.stored.rows(np.arange(len(SIZES))), task.c_i)
            close(controls.server, task.c)
            steps |= {len(task.batches(i, t)) for i, j in PLAN[t - 1] if j == s}
    assert len(steps) > 3
    assert all(task.c.abs().max() > 0.05 for task in literal)


def test_the_servers_control_follows_the_shares_of_those_who_are_there():
    there = [[1, 1, 1, 0, 0, 1], [0, 1, 1, 1, 1, 1], [1, 1, 0, 0, 1, 1], [1, 0, 0, 1, 0, 0], [1, 0, 1, 1, 1, 0]]
    pool = federation(availability=mmfl.Trace(there), arrivals=[1, 1, 1, 4, 1, 1])
    literal, moved = [Literal(pool, s) for s in range(2)], [0, 0]
    for t, replica in enumerate(run("sequential", Scaffold(), pool=pool), 1):
        for s, task in enumerate(literal):
            task.round(t, replica.view(t))
            close(replica.state.weights[s], task.x)
            close(replica.state.local[s].server, task.c)
            moved[s] += int(task.c.any())
    assert min(moved) > 1, "those who are there must have trained before"


class Ridge(torch.nn.Module):
    """A logistic regression that tells its penalty beside its logit, so that the loss can add it."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(2, 1)

    def forward(self, x):
        penalty = 0.05 * sum(p.square().sum() for p in self.parameters())
        logit = self.linear(x)
        return torch.cat([logit, penalty.expand_as(logit)], dim=1)


def ridge_loss(outputs, y):
    return torch.nn.functional.binary_cross_entropy_with_logits(outputs[:, 0], y, reduction="none") + outputs[:, 1]


def test_clients_with_unequal_data_reach_the_optimum_of_the_weighted_objective():
    """Two clients with 90 and 10 examples that disagree: with an unweighted mean of the control variates the rounds
    would end at the optimum of an objective in which both count alike."""
    rng = np.random.default_rng(0)
    x, owner = rng.normal(size=(100, 2)).astype(np.float32), np.repeat([0, 1], [90, 10])
    x[90:, 0] += 2
    y = ((x[:, 0] > 0) ^ (owner == 1)).astype(np.float32)
    data = mmfl.data.from_arrays(x, y, owner, test=(x, y))
    task = mmfl.Task("ridge", Ridge, data, lr=0.3, epochs=5, loss=ridge_loss, metric=ridge_loss)
    pool = mmfl.Federation([task])
    assert pool.sizes[:, 0].tolist() == [90, 10]
    method = mmfl.Method("scaffold", mmfl.allocation.Full(), Unbiased(), Scaffold())
    found = mmfl.train(pool, method, rounds=400, rate=1.0, evaluate_every=400).weights[0].cpu()

    def objective(w, weight):
        logit = x @ w[:2] + w[2]
        return float(weight @ np.logaddexp(0, np.where(y > 0, -logit, logit)) + 0.05 * w @ w)

    shares, alike = np.full(100, 1 / 100), np.repeat([1 / 180, 1 / 20], [90, 10])
    best, other = (minimize(objective, np.zeros(3), weight, tol=1e-12).x for weight in (shares, alike))
    assert np.linalg.norm(best - other) > 0.3, "the two objectives must be told apart"
    np.testing.assert_allclose(found.numpy(), best, atol=1e-6)


def test_clients_that_agree_keep_the_step_of_one_however_few_are_there():
    """A constant gradient g: after a first visit every c_i is g, so c must be g and the local direction stay g."""
    rule, g = Scaffold(), torch.tensor([1.0, -2.0, 0.5])
    state, rng = rule.start(10, torch.zeros(3)), np.random.default_rng(0)
    for t in range(1, 60):
        here = rng.random(10) < 0.4
        view, client = view_of(here[:, None], round=t), np.flatnonzero(here)[:2]
        state = rule.begin(view, 0, state)
        correction = rule.correction(client, state)
        steps = np.full(len(client), 5)
        flat = 5 * 0.1 * (g + correction)
        updates = Updates(0, client, steps, steps / 5, flat, steps / 5, steps)
        state = rule.observe(updates, 0.1 * updates.steps, view, state)
    assert len(state.clients.stored) == 10
    state = rule.begin(view_of(np.ones((10, 1)), round=60), 0, state)
    torch.testing.assert_close(state.server, g)
    torch.testing.assert_close(g + rule.correction(np.arange(10), state), g.expand(10, 3))


@pytest.mark.parametrize(
    "keep",
    [StorageOptions(), StorageOptions("host"), StorageOptions("file", "float16")],
    ids=["device", "host", "file"],
)
def test_the_servers_control_is_the_sum_of_the_clients_by_share_wherever_and_however_they_are_kept(keep):
    rule = Scaffold(keep)
    for t, replica in enumerate(run("sequential", rule), 1):
        view = replica.view(t + 1)
        for s, controls in enumerate(replica.state.local):
            rows = controls.clients.stored.rows(np.arange(len(SIZES)))
            expected = torch.from_numpy(view.share[:, s]).float() @ rows
            torch.testing.assert_close(rule.begin(view, s, controls).server, expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("keep", [StorageOptions(), StorageOptions("file", "float16")], ids=["device", "file"])
def test_a_checkpoint_continues_with_the_same_bits(keep, tmp_path):
    pool, method = federation(), Method("mine", Planned(), Unbiased(), Scaffold(keep))
    engine = Simulation("cpu", "sequential")
    whole, part, resumed = (Replica.start(pool, method, 0, 1.0, engine) for _ in range(3))
    for replica, last in ((whole, 5), (part, 2)):
        for _ in rounds([replica], engine, last):
            pass
    checkpoint.write(tmp_path, 2, "mark", part.state)
    _, resumed.state = checkpoint.read(tmp_path, "mark", resumed.state)
    for _ in rounds([resumed], engine, 5):
        pass
    for s in range(2):
        assert torch.equal(resumed.state.weights[s], whole.state.weights[s])
        mine, theirs = resumed.state.local[s], whole.state.local[s]
        assert torch.equal(mine.server, theirs.server)
        everyone = np.arange(len(SIZES))
        assert torch.equal(mine.clients.stored.rows(everyone), theirs.clients.stored.rows(everyone))


def test_a_round_touches_its_clients_only_however_many_are_remembered(touched):
    clients, active = 100_000, 50
    rule, view = Scaffold(), view_of(np.ones((clients, 1)))
    state, ones, per_round = rule.start(clients, torch.zeros(2)), np.ones(active, dtype=int), []
    for t in range(40):
        client = np.arange(t * active, (t + 1) * active) * (1 if t % 4 else 7)
        touched.clear()
        state = rule.begin(view, 0, state)
        correction = rule.correction(client, state)
        updates = Updates(0, client, ones, ones / 2, 1 + correction, ones / 1, ones)
        state = rule.observe(updates, 0.1 * updates.steps, view, state)
        per_round.append(sum(touched))
    assert set(per_round) == {3 * active}
    stored = state.clients.stored
    assert len(stored) > 30 * active
    assert stored.nbytes <= 2 * len(stored) * 2 * 4


@refusals(
    (lambda: Prox(-0.1), "mu is -0.1", ">= 0"),
    (lambda: Prox(float("nan")), "mu is nan", ">= 0"),
    (lambda: Scaffold(keep={"precisoin": "float16"}), "unknown option 'precisoin'", "did you mean 'precision'?"),
    (lambda: Scaffold(keep={"precision": "float8"}), "unknown precision 'float8'"),
    (lambda: Scaffold(keep="file"), "keep is 'file'", "expected a table"),
)
def test_a_bad_option_is_refused(make, words):
    with refused(*words):
        make()
