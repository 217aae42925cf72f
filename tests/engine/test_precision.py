"""Precision of products: a setting of the engine, and nobody else's."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from small import ask, federation, train, train_alone
from test_agreement import KINDS

import mmfl
from mmfl.engine import Simulation
from mmfl.engine.precision import multiplying
from mmfl.errors import UserError

FORMS = ("float32", "bfloat16")


def settings() -> tuple[str, bool]:
    return torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32


@pytest.mark.parametrize(("precision", "inside"), [("float32", ("highest", False)), ("tf32", ("high", True))])
def test_it_holds_inside_and_is_left_as_it_was(precision, inside):
    before = settings()
    with multiplying(precision):
        assert settings() == inside
    assert settings() == before


def test_training_sees_it():
    seen = []

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


def test_an_unknown_precision_is_the_users_mistake():
    with pytest.raises(UserError, match=r"unknown precision 'tf23'.*tf32"):
        Simulation("cpu", precision="tf23")


# --- bfloat16 on a CPU ---


def relative(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one - other).norm() / other.norm())


# One example normalised by itself, layer after layer, is rounding and nothing else.
UNSTEADY = "residual network, batch norm"


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "dropout" not in kind and kind != UNSTEADY])
def test_bfloat16_trains_almost_the_same_for(kind):
    pool = federation(replace(KINDS[kind], batch_size=None, epochs=1))
    exact = train_alone(pool, mode="sequential")
    for mode in ("vectorised", "sequential"):
        engine = Simulation("cpu", mode, "bfloat16")
        (narrow,) = train(engine, ask(engine, pool))
        assert narrow.flat.dtype == torch.float32
        assert relative(narrow.flat, exact.flat) < 0.15
        np.testing.assert_allclose(narrow.loss, exact.loss, rtol=0.03, atol=0.02)


def test_bfloat16_learns_from_its_own_steps():
    """Weights cast for a step must not be those of an earlier one."""
    digits = mmfl.data.digits()
    task = mmfl.Task("digits", mmfl.models.Perceptron, digits, lr=0.3, epochs=5, batch_size=16)
    runs = [mmfl.train(mmfl.Federation([task], clients=4), "full", 3, 1.0, precision=p, device="cpu") for p in FORMS]
    scores = [run.accuracy.iloc[-1, 0] for run in runs]
    assert abs(scores[0] - scores[1]) < 0.02
    assert scores[1] > 0.9
    assert runs[0].weights[0].dtype == runs[1].weights[0].dtype == torch.float32
    assert not torch.equal(runs[0].weights[0], runs[1].weights[0])


def test_bfloat16_is_for_cpus(monkeypatch):
    monkeypatch.setattr("mmfl.engine.simulation.choose_device", lambda device: torch.device("cuda"))
    with pytest.raises(UserError, match="'bfloat16' is for CPUs; on a GPU choose 'tf32'"):
        Simulation(precision="bfloat16")
