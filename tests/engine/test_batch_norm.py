"""Batch norm with running statistics: as torch trains it, averaged over clients, kept by them, or frozen."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from small import VECTORS, ask, both_modes, federation, task, train
from torch import nn

import mmfl
from conftest import refused
from mmfl.data import Dataset
from mmfl.engine import Simulation, Workload
from mmfl.federation.task import Task
from mmfl.methods import METHODS
from mmfl.privacy import Privacy

MODES = ("shared", "local", "frozen")


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3))


def normed(mode: str, **options) -> Task:
    return task(network, 3 * VECTORS + 1, batch_norm=mode, **{"batch_size": None, **options})


def by_hand(given: Task, rows: np.ndarray) -> nn.Module:
    """Full batches and torch's own layers, as anyone would write it."""
    module = given.build(1, 0).train()
    if given.batch_norm == "frozen":
        module[1].eval()
    optimiser = torch.optim.SGD(module.parameters(), given.lr)
    for _ in range(given.epochs):
        optimiser.zero_grad()
        given.loss(module(given.data.x[rows]), given.data.y[rows]).mean().backward()
        optimiser.step()
    return module


@both_modes
@pytest.mark.parametrize("mode_of_norm", MODES)
def test_a_client_trains_as_torch_does_for(mode_of_norm, mode):
    pool = federation(normed(mode_of_norm), sizes=(9, 5, 4, 13))
    engine = Simulation("cpu", mode)
    request = ask(engine, pool)
    (trained,) = train(engine, request)
    layout = engine.architecture(pool.tasks[0]).layout
    for client, update, own in zip(
        trained.client, trained.flat, trained.batch_norm if mode_of_norm != "frozen" else [None] * 4, strict=True
    ):
        expected = by_hand(pool.tasks[0], pool.shards[0].of(client)).state_dict()
        for name, values in layout.values(request.weights - update, own).items():
            torch.testing.assert_close(values, expected[name], rtol=1e-4, atol=1e-5, msg=f"{name} of {client}")


def test_what_travels_and_what_is_kept():
    engine = Simulation("cpu")
    for mode, weights, batch_norm in (("shared", 63, 10), ("local", 53, 20), ("frozen", 63, 0)):
        pool = federation(normed(mode))
        assert len(engine.initial(pool, 0, seed=1)) == weights
        assert len(engine.initial_batch_norm(pool, 0, seed=1)) == batch_norm
        run = mmfl.train(pool, "full", 1, 1.0, engine="vectorised")
        sent = weights + (batch_norm if mode == "shared" else 0)
        assert run.records[0].cost.bytes_up == run.records[0].cost.bytes_down == 4 * sent * pool.clients


def test_shared_statistics_are_the_mean_of_the_drawn_clients_weighted_by_their_examples():
    pool = federation(normed("shared"))
    run = mmfl.train(pool, "mmfl-lvr", 1, 0.5, engine="vectorised")
    (drawn,) = (record.drawn["t"].clients for record in run.records)
    assert 0 < len(drawn) < pool.clients
    engine = Simulation("cpu", "vectorised")
    (trained,) = train(engine, ask(engine, pool, client=drawn, weights=engine.initial(pool, 0, seed=0)))
    share = pool.sizes[drawn, 0] / pool.sizes[drawn, 0].sum()
    expected = torch.from_numpy(share).float() @ trained.batch_norm
    torch.testing.assert_close(run.batch_norm[0], expected, rtol=1e-5, atol=1e-6)


def test_every_method_trains_with_batch_norm():
    """One task of each mode; a variance is never negative."""
    pool = federation(*(replace(normed(mode, epochs=1), name=mode) for mode in MODES))
    for run in mmfl.compare(pool, list(METHODS), 3, 0.5, seeds=1, engine="vectorised"):
        norms = {mode: run.module(mode)[1] for mode in MODES}
        assert np.isfinite(run.loss.to_numpy()).all(), run.method
        assert all((norm.running_var >= 0).all() for norm in norms.values()), run.method
        assert any(norm.running_mean.any() for norm in norms.values()), run.method
        assert not norms["frozen"].running_mean.any(), run.method


def with_own_tests(mode: str) -> mmfl.Federation:
    """Two clients whose inputs differ in scale, each with test examples of its own."""
    x, y = torch.cat([VECTORS[:40], 9 * VECTORS[:40] - 5]), (VECTORS[:40, 0] > 0).long().repeat(2)
    owner = np.repeat([0, 1], 40)
    data = Dataset("two", x, y, x, y, owner, owner)
    return mmfl.Federation([Task("t", network, data, lr=0.3, epochs=5, batch_norm=mode)])


@both_modes
def test_losses_and_tests_of_a_client_use_its_own_batch_norm(mode):
    pool = with_own_tests("local")
    run = mmfl.train(pool, "full", 5, 1.0, engine=mode)
    engine = Simulation("cpu", mode)
    layout = engine.architecture(pool.tasks[0]).layout
    own = torch.stack([run.batch_norm[0] + shift for shift in (-0.1, 0.2)]).abs()
    losses = engine.losses([Workload(pool, 0, run.weights[0], np.arange(2), batch_norm=own)])[0]
    (tested,) = engine.evaluate([Workload(pool, 0, run.weights[0], np.arange(2), batch_norm=own)])
    module = pool.tasks[0].build().eval()
    data, expected = pool.tasks[0].data, []
    for client in range(2):
        module.load_state_dict(layout.values(run.weights[0], own[client]), strict=False)
        rows = pool.shards[0].of(client)
        expected.append(pool.tasks[0].loss(module(data.x[rows]), data.y[rows]).mean().item())
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    np.testing.assert_allclose(tested.loss, np.mean(expected), rtol=1e-5)
    assert abs(expected[0] - expected[1]) > 1e-3


def test_clients_whose_inputs_differ_in_scale_gain_from_batch_norm_of_their_own():
    """The case that FedBN is made for (Li et al. 2021)."""
    local, shared = (mmfl.train(with_own_tests(mode), "full", 12, 1.0).loss.iloc[-1, 0] for mode in ("local", "shared"))
    assert local < 0.5 * shared


@pytest.mark.parametrize("mode", ["shared", "local"])
def test_a_run_goes_on_with_the_same_statistics(mode, tmp_path):
    options = {"rate": 0.5, "checkpoint_every": 2, "engine": "vectorised"}
    whole = mmfl.train(federation(normed(mode)), "mmfl-lvr", 4, **options)
    mmfl.train(federation(normed(mode)), "mmfl-lvr", 2, directory=tmp_path / "run", **options)
    resumed = mmfl.train(federation(normed(mode)), "mmfl-lvr", 4, directory=tmp_path / "run", resume=True, **options)
    assert torch.equal(resumed.weights[0], whole.weights[0])
    assert torch.equal(resumed.batch_norm[0], whole.batch_norm[0])


def test_shared_statistics_and_private_updates_are_refused_together():
    with refused("'t'", "clipping and noise", "batch norm", "'local' or 'frozen'"):
        mmfl.train(federation(normed("shared")), "random", 1, 0.5, privacy=Privacy(clip=1.0))
    mmfl.train(federation(normed("local")), "random", 1, 0.5, privacy=Privacy(clip=1.0))
