"""Modules that torch cannot batch over clients train one by one, with the same care."""

import logging
import subprocess
import sys
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from small import (
    TOKENS,
    Model,
    ask,
    assert_agree,
    assert_trained_by_hand,
    before_cohorts,
    both_modes,
    federation,
    only,
    task,
    train,
    train_alone,
)
from torch import Tensor, nn

from mmfl.engine import Simulation
from mmfl.engine.cohort import Cohort
from mmfl.federation.task import Task


def branching(self: Any, x: Tensor) -> Tensor:
    return self.output(x) if x.sum() > 0 else self.output(-x)


def reading(self: Any, x: Tensor) -> Tensor:
    return self.output(x) * (1 + x.abs().mean().item())


def noisy(self: Any, x: Tensor) -> Tensor:
    return self.output(x + torch.rand(x.shape) if self.training else x)


def one_dropped(self: Any, x: Tensor) -> Tensor:
    return self.output(F.dropout1d(x, 0.5, self.training))  # a matrix is a single example with channels


def recurring(self: Any, x: Tensor) -> Tensor:
    return self.output(self.projected(self.embedding(x))[0][:, -1])


def projected(**options: Any) -> nn.Module:
    layer = nn.LSTM(4, 8, 2, batch_first=True, proj_size=6, **options)
    return Model(recurring, embedding=nn.Embedding(5, 4), projected=layer, output=nn.Linear(6, 3))


EXACT: dict[str, Task] = {
    "branches on data": task(lambda: Model(branching, output=nn.Linear(6, 3)), batch_size=None),
    "reads a number": task(lambda: Model(reading, output=nn.Linear(6, 3)), batch_size=None),
    "no batching rule": task(projected, TOKENS, batch_size=None),
}
RANDOM: dict[str, Task] = {
    "draws noise": task(lambda: Model(noisy, output=nn.Linear(6, 3))),
    "no batching rule, inner dropout": task(lambda: projected(dropout=0.5), TOKENS),
    "channels of a single example": task(lambda: Model(one_dropped, output=nn.Linear(6, 3))),
}
DROPOUT = {"vectorised dropout": task(lambda: nn.Sequential(nn.Linear(6, 3), nn.Dropout()))}


@pytest.mark.parametrize("kind", EXACT | RANDOM)
def test_a_module_that_cannot_be_vectorised_says_so_once_and_trains(kind, caplog):
    pool, engine = federation((EXACT | RANDOM)[kind]), Simulation("cpu", "vectorised")
    with caplog.at_level(logging.WARNING, "mmfl"):
        (first,) = train(engine, ask(engine, pool))
        train(engine, ask(engine, pool, round=2))
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "t cannot be vectorised" in caplog.text
    assert (first.flat.abs().amax(1) > 1e-3).all()
    if kind in EXACT:
        assert_trained_by_hand(engine, ask(engine, pool))


@both_modes
@pytest.mark.parametrize("kind", EXACT | RANDOM | DROPOUT)
def test_training_neither_depends_on_torchs_generator_nor_changes_it(kind, mode):
    pool, answers = federation((EXACT | RANDOM | DROPOUT)[kind]), []
    for seed in (1, 2):
        with torch.random.fork_rng():
            state = torch.manual_seed(seed).get_state()
            answers.append(train_alone(pool, mode=mode))
            assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(answers[0].flat, answers[1].flat)
    assert (answers[0].loss == answers[1].loss).all()


@pytest.mark.parametrize("kind", RANDOM)
def test_noise_that_a_module_draws_itself_is_the_clients_own(kind):
    # Clients of one full batch: between seeds and rounds nothing but the noise can differ.
    pool = federation(RANDOM[kind], sizes=(4, 4, 4))
    together = train_alone(pool)
    assert_agree(train_alone(pool, client=[2, 0]), only(together, [2, 0]))
    for change in ({"seed": 1}, {"round": 2}):
        assert not torch.allclose(together.flat, train_alone(pool, **change).flat)


def test_a_module_that_fails_in_a_later_cohort_still_trains_there(caplog, monkeypatch):
    """The first cohort runs; a second one, of larger batches, meets an operation that torch cannot batch."""

    def delicate(cohort: Cohort) -> None:
        if cohort.jobs.batch.max() > 4:
            raise RuntimeError("no batching rule for this shape")

    pool = federation(task(lambda: Model(lambda self, x: self.output(x), output=nn.Linear(6, 3)), batch_size=None))
    expected = train_alone(pool, mode="sequential")
    before_cohorts(monkeypatch, delicate)
    with caplog.at_level(logging.WARNING, "mmfl"):
        assert_agree(train_alone(pool, mode="vectorised"), expected)
    assert "no batching rule for this shape" in caplog.text


def test_an_operator_that_torch_batches_in_a_loop_gives_no_warning():
    script = """
import mmfl
from torch import nn

class Cell(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.output = nn.GRUCell(64, 4), nn.Linear(4, 10)

    def forward(self, x):
        return self.output(self.cell(x.flatten(1), x.new_zeros(len(x), 4)))

federation = mmfl.Federation([mmfl.Task("digits", Cell, mmfl.data.digits())], clients=4)
mmfl.train(federation, "full", rounds=1, engine="vectorised", device="cpu")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stderr == ""
