"""Optimisers whose state lives with the client: torch's own, with one for each client through all rounds."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from small import VECTORS, ask, assert_agree, federation, recording_engine, task, train
from torch import Tensor, nn

import mmfl
from conftest import refused
from mmfl import models
from mmfl.engine import Simulation
from mmfl.engine.batches import Batches
from mmfl.engine.jobs import Jobs
from mmfl.federation.optimisers import SGD, Adam, AdamW
from mmfl.federation.schedules import Cosine
from mmfl.federation.task import Task
from mmfl.methods import make_method
from mmfl.privacy import Privacy
from mmfl.training import Replica, rounds
from mmfl.updates import Trained

OPTIMISERS = {
    "momentum": (SGD(momentum=0.9), lambda p, lr: torch.optim.SGD(p, lr, momentum=0.9)),
    "Nesterov": (
        SGD(momentum=0.8, nesterov=True, weight_decay=0.05),
        lambda p, lr: torch.optim.SGD(p, lr, momentum=0.8, nesterov=True, weight_decay=0.05),
    ),
    "Adam": (Adam(), torch.optim.Adam),
    "AdamW": (AdamW(weight_decay=0.1), lambda p, lr: torch.optim.AdamW(p, lr, weight_decay=0.1)),
}
WAYS = ("vectorised", "sequential", "recorded")
ROUNDS = 3


def keeping(**options) -> Task:
    """Batches of 4 of 1 to 13 examples: some clients are done long before others."""
    given = {"optimiser": AdamW(), "lr": 0.05, "epochs": 2, "optimiser_state": "client", **options}
    return task(**{"model": lambda: models.Perceptron(6, 5, 3), **given})


def engine_of(way: str) -> Simulation:
    return recording_engine() if way == "recorded" else Simulation("cpu", way)


def trained(pool: mmfl.Federation, method="full", last: int = ROUNDS, engine: Simulation | None = None) -> Replica:
    """A replica after some rounds."""
    engine = engine or Simulation("cpu", "vectorised")
    replica = Replica.start(pool, make_method(method), 0, 0.4, engine)
    list(rounds([replica], engine, last))
    return replica


def by_torch(pool: mmfl.Federation, native) -> Tensor:
    """The mean of all clients' weights after some rounds, each of which begins with the mean; every client has one of
    torch's optimisers through all of them."""
    engine, work = Simulation("cpu"), pool.tasks[0]
    layout, weights = engine.architecture(work).layout, engine.initial(pool, 0, seed=0)
    modules = [work.build() for _ in range(pool.clients)]
    optimisers = [native(module.parameters(), lr=work.lr) for module in modules]
    for t in range(1, ROUNDS + 1):
        jobs = Jobs.of([ask(engine, pool, weights=weights, round=t)])
        batches, start = Batches(jobs, engine.trainer.device_data), layout.named(weights)
        for job, (module, optimiser) in enumerate(zip(modules, optimisers, strict=True)):
            module.load_state_dict(start)
            factors = work.step_factors(int(jobs.steps[job]))
            for factor, (x, y) in zip(factors, batches.of_job(job), strict=True):
                optimiser.param_groups[0]["lr"] = work.lr * factor
                optimiser.zero_grad()
                work.loss(module(x), y).mean().backward()
                optimiser.step()
        share = torch.from_numpy(pool.sizes[:, 0] / pool.sizes[:, 0].sum()).float()
        weights = share @ torch.stack([layout.weights(module) for module in modules])
    return weights


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", OPTIMISERS)
def test_clients_go_on_with_torchs_optimiser_from_round_to_round(name, way):
    optimiser, native = OPTIMISERS[name]
    pool = federation(keeping(optimiser=optimiser, lr=0.05))
    state = trained(pool, engine=engine_of(way)).state
    torch.testing.assert_close(state.weights[0], by_torch(pool, native), rtol=1e-4, atol=2e-6)
    anew = trained(federation(replace(pool.tasks[0], optimiser_state="training")))
    assert (state.weights[0] - anew.state.weights[0]).abs().max() > 1e-2


def test_schedules_over_local_steps_begin_again_with_every_training():
    pool = federation(keeping(optimiser=Adam(), lr_steps=Cosine(warm_up=2)), sizes=(13,))
    found = trained(pool).state.weights[0]
    torch.testing.assert_close(found, by_torch(pool, torch.optim.Adam), rtol=1e-4, atol=2e-6)


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3))


KEPT = {
    "perceptron": lambda: keeping(),
    "clipped momentum": lambda: keeping(optimiser=SGD(momentum=0.5, clip_norm=0.3)),
    "local batch norm": lambda: keeping(model=normed, x=3 * VECTORS + 1, batch_norm="local"),
}


@pytest.mark.parametrize("kind", KEPT)
@pytest.mark.parametrize("way", ["sequential", "recorded"])
def test_updates_and_states_are_alike_in_every_way(kind, way):
    pool, answers = federation(KEPT[kind](), sizes=(9, 5, 8, 13, 7)), []
    for each in ("vectorised", way):
        engine = engine_of(each)
        values = len(engine.initial_optimiser_state(pool, 0))
        given = torch.rand(5, values, generator=torch.Generator().manual_seed(1))
        answers += train(engine, ask(engine, pool, optimiser_state=given))
    assert_agree(*answers)
    np.testing.assert_allclose(answers[0].optimiser_state[:, -1] - given[:, -1], answers[0].steps, atol=1e-5)


def test_tasks_that_keep_states_and_tasks_that_do_not_share_cohorts():
    work = keeping()
    pool = federation(work, replace(work, name="anew", optimiser_state="training"))
    together = trained(pool).state
    assert [store is None for store in together.optimiser] == [False, True]
    anew = federation(replace(work, optimiser_state="training"), pool.tasks[1])
    for s, others in enumerate((federation(work), anew)):
        torch.testing.assert_close(together.weights[s], trained(others).state.weights[s], rtol=1e-4, atol=1e-6)


def steps_of(replica: Replica) -> np.ndarray:
    """The steps that the optimiser of each client has counted."""
    return replica.state.optimiser[0].rows(np.arange(replica.federation.clients))[:, -1].numpy()


@pytest.mark.parametrize("method", ["mmfl-lvr", "mmfl-stalevr"])
def test_a_state_goes_on_where_a_client_trains_whether_it_is_drawn_or_not(method):
    pool, engine = federation(keeping(batch_size=None, epochs=2)), Simulation("cpu", "vectorised")
    replica = Replica.start(pool, make_method(method), 0, 0.4, engine)
    expected = np.zeros(pool.clients)
    for (record,) in rounds([replica], engine, ROUNDS):
        drawn = record.drawn["t"].clients if "t" in record.drawn else []
        expected[drawn if method == "mmfl-lvr" else slice(None)] += 2
        np.testing.assert_array_equal(steps_of(replica), expected)
        store = replica.state.optimiser[0]
        assert len(store) == (expected > 0).sum()
        assert record.cost.stored_bytes >= store.nbytes > 0
    assert expected.any()


class Unlucky(Simulation):
    """Client 2 returns nonsense in the second round."""

    def train(self, trainings):
        return [
            self.spoil(answer) if t.round == 2 else answer
            for t, answer in zip(trainings, super().train(trainings), strict=True)
        ]

    def spoil(self, answer: Trained) -> Trained:
        flat = answer.flat.clone()
        flat[answer.client == 2] = torch.nan
        return replace(answer, flat=flat)


class Overflowing(Unlucky):
    """The squares of client 2's gradients are too large for Adam, though its update is finite."""

    def spoil(self, answer: Trained) -> Trained:
        state = answer.optimiser_state.clone()
        state[answer.client == 2, -2] = torch.inf
        return replace(answer, optimiser_state=state)


@pytest.mark.parametrize("engine", [Unlucky, Overflowing])
def test_a_client_whose_training_is_rejected_keeps_the_state_it_had(engine):
    pool = federation(keeping(batch_size=None, epochs=2))
    before, after = (trained(pool, last=last, engine=engine("cpu", "vectorised")) for last in (1, 2))
    assert steps_of(after).tolist() == [4, 4, 2, 4, 4, 4]
    client = np.array([2])
    assert torch.equal(*(replica.state.optimiser[0].rows(client) for replica in (before, after)))


def test_a_run_goes_on_with_the_same_bits(tmp_path):
    options = {"rate": 0.5, "checkpoint_every": 2, "engine": "vectorised"}
    whole = mmfl.train(federation(keeping()), "mmfl-lvr", 5, **options)
    mmfl.train(federation(keeping()), "mmfl-lvr", 2, directory=tmp_path / "run", **options)
    goes_on = {"directory": tmp_path / "run", "resume": True, **options}
    with refused("checkpoint", "another run"):
        mmfl.train(federation(keeping(optimiser_state="training")), "mmfl-lvr", 5, **goes_on)
    resumed = mmfl.train(federation(keeping()), "mmfl-lvr", 5, **goes_on)
    assert torch.equal(resumed.weights[0], whole.weights[0])
    assert resumed.costs["stored_bytes"].tolist() == whole.costs["stored_bytes"].tolist()


def test_plain_sgd_has_no_state_to_keep():
    states = [
        trained(federation(keeping(optimiser=SGD(), optimiser_state=each))).state for each in ("client", "training")
    ]
    assert states[0].optimiser == [None]
    assert torch.equal(*(state.weights[0] for state in states))


def test_updates_are_as_private_as_ever():
    run = mmfl.train(federation(keeping()), "full", 2, 1.0, privacy=Privacy(clip=0.01), engine="vectorised")
    moved = run.weights[0] - Simulation("cpu").initial(run.federation, 0, seed=0)
    assert 0 < float(moved.norm()) <= 0.02 + 1e-6
