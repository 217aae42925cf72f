"""Precision of a GPU's products: a setting of the engine, and nobody else's."""

import pytest
import torch

import mmfl
from mmfl.engine import Simulation
from mmfl.engine.precision import multiplying
from mmfl.errors import UserError


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
