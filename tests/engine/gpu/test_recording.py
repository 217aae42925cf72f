"""Recordings of steps: who shares them, when they are made and when released. `test_agreement` trains by them."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from kinds import KINDS
from small import (
    IMAGES,
    ask,
    assert_agree,
    federation,
    has_recorded,
    normal,
    recording_engine,
    task,
    train,
    train_alone,
)

from mmfl import models
from mmfl.engine import Simulation
from mmfl.engine.gpu.recorder import Recorder
from mmfl.engine.gpu.recording import can_record
from mmfl.engine.jobs import Jobs
from mmfl.local import PlainSGD, Scaffold


@pytest.mark.parametrize("rule", [PlainSGD(), Scaffold()], ids=["sgd", "scaffold"])
def test_a_recording_serves_other_rounds_clients_weights_and_corrections(rule):
    made = []

    def record(step):
        made.append(step)
        return step

    cnn = task(lambda: models.SmallCNN(8, 2, (3, 4), 5, 3, padding=1), IMAGES, batch_size=None)
    pool, engine = federation(cnn, sizes=(9, 11, 13, 10, 12, 16)), recording_engine(record)
    for clients, round, seed in (([0, 1, 2, 3, 4], 1, 0), ([1, 2, 3, 4, 5], 2, 3), ([0, 1, 2, 3, 4, 5], 3, 1)):
        weights = engine.initial(pool, 0, seed)
        added = 0.1 * normal(len(clients), len(weights), seed=seed) if isinstance(rule, Scaffold) else None
        asked = {"client": clients, "round": round, "weights": weights, "local": rule, "correction": added}
        (recorded,) = train(engine, ask(engine, pool, **asked))
        assert_agree(recorded, train_alone(pool, **asked))
    assert len(made) == 1


def test_tasks_and_replicas_share_a_recording():
    tasks = [replace(KINDS["perceptron"], name=name, lr=lr) for name, lr in (("a", 0.1), ("b", 0.4))]
    pool, engine = federation(*tasks), recording_engine()
    answers = train(engine, ask(engine, pool, 0, round=4), ask(engine, pool, 1, seed=2))
    assert_agree(answers[0], train_alone(pool, 0, round=4))
    assert_agree(answers[1], train_alone(pool, 1, seed=2))


def jobs_of(pool, engine, **changes) -> Jobs:
    return Jobs.of([ask(engine, pool, **changes)])


def test_only_small_cohorts_without_coupled_modules_are_recorded():
    recorder, engine = Recorder(lambda step: step), Simulation("cpu")
    plain = federation(task())
    architecture = engine.architecture(plain.tasks[0])
    assert can_record(recorder, architecture, PlainSGD(), jobs_of(plain, engine))
    dropping = federation(KINDS["dropout"])
    assert can_record(recorder, engine.architecture(dropping.tasks[0]), PlainSGD(), jobs_of(dropping, engine))
    centred = federation(KINDS["batch centred by hand"])
    assert not can_record(recorder, engine.architecture(centred.tasks[0]), PlainSGD(), jobs_of(centred, engine))
    many = replace(jobs_of(plain, engine), batch=np.full(6, 4096))
    heavy = replace(jobs_of(plain, engine), batch=np.full(6, 2048))
    assert not can_record(recorder, architecture, PlainSGD(), many)
    assert can_record(recorder, architecture, PlainSGD(), heavy)
    architecture.activation_bytes = 1 << 20
    assert not can_record(recorder, architecture, PlainSGD(), heavy)


def test_recordings_are_released_where_memory_runs_out(monkeypatch):
    pool, engine = federation(task()), recording_engine()
    (whole,) = train(engine, ask(engine, pool))
    assert has_recorded(engine)
    trainer = engine.trainer
    replayed = trainer.train_recorded
    sizes = []

    def short(cohort):
        sizes.append(len(cohort.jobs))
        if len(cohort.jobs) > 3:
            raise torch.OutOfMemoryError("too much")
        return replayed(cohort)

    monkeypatch.setattr(trainer, "train_recorded", short)
    released = []
    monkeypatch.setattr(trainer.recorder, "clear", lambda: released.append(len(trainer.recorder._recordings)))
    (halved,) = train(engine, ask(engine, pool))
    assert_agree(halved, whole)
    assert released
    assert max(sizes) > 3


def test_what_cannot_be_recorded_trains_as_before_and_is_said_once(caplog):
    def fails(step):
        raise RuntimeError("operation not permitted when stream is capturing\nand more")

    pool, engine = federation(task()), recording_engine(fails)
    for round in (1, 2):
        (answer,) = train(engine, ask(engine, pool, round=round))
        assert_agree(answer, train_alone(pool, round=round))
    said = [record.getMessage() for record in caplog.records]
    assert said == [
        "t cannot be recorded, so its kernels are started one by one (operation not permitted when stream is capturing)"
    ]


def test_old_recordings_are_released(monkeypatch):
    monkeypatch.setattr("mmfl.engine.gpu.recorder._MAX_RECORDINGS", 2)
    pool, engine = federation(task(batch_size=None), sizes=(9, 20, 40, 9)), recording_engine()
    for clients in ([0], [1], [2], [0, 3]):
        train(engine, ask(engine, pool, client=clients))
    assert len(engine.trainer.recorder._recordings) == 2


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("batch_size", [4, None], ids=["batches", "full"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_gpu_records_and_replays(kind, batch_size):
    pool = federation(replace(KINDS[kind], batch_size=batch_size))
    engine = Simulation("cuda", "vectorised", record=True)
    for round in (1, 2):
        (answer,) = train(engine, ask(engine, pool, round=round))
        assert_agree(answer, train_alone(pool, round=round), tolerance=1e-3)
    architecture = engine.architecture(pool.tasks[0])
    waits = "causal" in kind and "transformer" in kind  # torch asks the device whether the mask is a causal one
    assert has_recorded(engine) == (not architecture.coupled and not waits)
    assert bool(engine.trainer.recorder._disabled) == waits


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_random_numbers_can_be_drawn_after_a_recording_that_failed():
    engine = Simulation("cuda", "vectorised")

    def step():
        torch.rand(1, device="cuda").item()  # a capture cannot wait for the device

    stream = engine.trainer.recorder.stream(4)
    with pytest.raises(RuntimeError), stream.use():
        stream.record(step)
    assert torch.nn.functional.dropout(torch.ones(100, device="cuda"), 0.5).unique().numel() == 2
