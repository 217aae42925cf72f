"""Precision of products: a setting of the engine, and nobody else's."""

import json
import logging
import os
import subprocess
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from kinds import KINDS
from small import IMAGES, Model, ask, both_modes, federation, task, train, train_alone
from torch import Tensor, nn

import mmfl
from mmfl.engine import Simulation, Workload
from mmfl.errors import UserError

FORMS = ("float32", "bfloat16")


def settings() -> tuple[str, bool]:
    return torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32


def test_training_sees_it_and_it_is_left_as_it_was():
    seen, before = [], settings()

    class Watching(mmfl.models.LogisticRegression):
        def forward(self, x):
            seen.append(settings())
            return super().forward(x)

    task = mmfl.Task("digits", Watching, mmfl.data.digits())
    federation = mmfl.Federation([task], clients=5)
    seen.clear()
    mmfl.train(federation, "full", rounds=1, engine="sequential", precision="tf32")
    assert seen[0] == ("highest", False), "structure is probed in full precision"
    assert seen[-1] == ("high", True)
    assert settings() == before


def test_an_unknown_precision_is_the_users_mistake():
    with pytest.raises(UserError, match=r"unknown precision 'tf23'.*tf32"):
        Simulation("cpu", precision="tf23")


# --- bfloat16 on a CPU ---


def relative(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one - other).norm() / other.norm())


# One example normalised by itself, layer after layer, is rounding and nothing else.
UNSTEADY = "residual network, batch norm"


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != UNSTEADY])
def test_bfloat16_trains_almost_the_same_for(kind):
    pool = federation(replace(KINDS[kind], batch_size=None, epochs=1))
    exact = train_alone(pool, mode="sequential")
    for mode in ("vectorised", "sequential"):
        engine = Simulation("cpu", mode, "bfloat16")
        (narrow,) = train(engine, ask(engine, pool))
        assert narrow.flat.dtype == torch.float32
        assert relative(narrow.flat, exact.flat) < 0.15
        np.testing.assert_allclose(narrow.loss, exact.loss, rtol=0.03, atol=0.02)


def scattering(self: Any, x: Tensor) -> Tensor:
    order = torch.tensor([2, 0, 1]).expand(len(x), 3)
    return torch.zeros(len(x), 3).scatter(1, order, self.output(x))  # which refuses numbers of another type


@pytest.mark.parametrize("mode", ["vectorised", "sequential", "auto"])
def test_a_module_that_cannot_run_in_bfloat16_says_so_once_and_runs_in_float32(mode, caplog):
    pool = federation(task(lambda: Model(scattering, output=nn.Linear(6, 3)), name="mixed"), task(name="plain"))
    answers = []
    with caplog.at_level(logging.WARNING, "mmfl"):
        for precision in FORMS:
            engine = Simulation("cpu", mode, precision)
            trained = train(engine, ask(engine, pool, 0), ask(engine, pool, 1))
            weights = [engine.initial(pool, s, seed=1) for s in range(2)]
            workloads = [Workload(pool, s, weights[s], np.arange(6)) for s in range(2)]
            answers.append((trained, engine.losses(workloads), engine.evaluate(workloads)))
    (message,) = (record.getMessage() for record in caplog.records)
    assert message.startswith("mixed cannot run in bfloat16 here, so it runs in float32 (")
    (trained, losses, scores), (narrow, narrow_losses, narrow_scores) = answers
    for s, same in enumerate((True, False)):  # the other task is in bfloat16 as ever
        assert torch.equal(trained[s].flat, narrow[s].flat) is same
        assert np.array_equal(losses[s], narrow_losses[s]) is same
        assert (scores[s].loss == narrow_scores[s].loss) is same


SCRIPT = """
import json, logging, torch, mmfl
from mmfl.federation.objectives import next_token

said, weights = [], {}
handler = logging.Handler()
handler.emit = lambda record: said.append(record.getMessage())
logging.getLogger("mmfl").addHandler(handler)
tokens = [torch.randint(0, 5, (rows, 5), generator=torch.Generator().manual_seed(rows)) for rows in (40, 10)]
data = mmfl.data.Dataset("tokens", tokens[0], tokens[0].roll(-1, 1), tokens[1], tokens[1].roll(-1, 1))
lstm = lambda: mmfl.models.CharacterLSTM(vocabulary=5, embedding=4, hidden=6)
task = mmfl.Task("text", lstm, data, loss=next_token, lr=0.5, batch_size=4)
pool = mmfl.Federation([task], clients=4)
for mode in ("vectorised", "sequential"):
    for precision in ("float32", "bfloat16"):
        run = mmfl.train(pool, "mmfl-lvr", 2, 1.0, engine=mode, precision=precision, device="cpu")
        weights[f"{mode}, {precision}"] = run.weights[0].tolist()
try:
    with torch.autocast("cpu", torch.bfloat16):
        torch.nn.LSTM(4, 6)(torch.zeros(2, 3, 4))
    able = True
except RuntimeError:
    able = False
print(json.dumps([able, said, weights]))
"""


def test_an_lstm_trains_in_bfloat16_on_a_processor_without_instructions_for_it():
    environment = {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX2"}  # which is read when torch is imported
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    able, said, weights = json.loads(done.stdout)
    start = "text cannot run in bfloat16 here, so it runs in float32 (could not create a primitive"
    assert [message.startswith(start) for message in said] == ([] if able else [True, True]), said  # once an engine
    exact = np.array(weights["sequential, float32"])
    for how, trained in weights.items():
        np.testing.assert_allclose(trained, exact, atol=0.02 if able else 1e-5, err_msg=how)


@both_modes
def test_bfloat16_learns_from_its_own_steps(mode):
    """Weights cast for a step must not be those of an earlier one, which torch would use again if it were let."""

    def network() -> nn.Module:
        return nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3))

    pool = federation(task(network, IMAGES, epochs=20), sizes=(13,))  # one client, which trains in this thread
    updates = []
    for precision in FORMS:
        engine = Simulation("cpu", mode, precision)
        (trained,) = train(engine, ask(engine, pool))
        updates.append(trained.flat)
        assert trained.loss < 0.2
    assert 0 < relative(updates[1], updates[0]) < 0.1


def test_bfloat16_is_for_cpus(monkeypatch):
    monkeypatch.setattr("mmfl.engine.simulation.choose_device", lambda device: torch.device("cuda"))
    with pytest.raises(UserError, match="'bfloat16' is for CPUs; on a GPU choose 'tf32'"):
        Simulation(precision="bfloat16")
