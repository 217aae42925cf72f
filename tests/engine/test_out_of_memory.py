"""Clients that do not fit at once train in smaller cohorts, to the same effect."""

from collections.abc import Callable

import pytest
import torch
from small import ask, assert_agree, before_cohorts, both_modes, federation, task, train, train_alone

from mmfl.engine import Simulation, device, trainer
from mmfl.engine.cohort import Cohort
from mmfl.engine.device import CohortSizes

SIZES = (8, 5, 7, 8, 6, 8, 8, 3, 8, 8, 8)
ERRORS = [
    torch.OutOfMemoryError("CUDA out of memory."),
    MemoryError("Unable to allocate 1 GiB"),
    RuntimeError("DefaultCPUAllocator: not enough memory"),
]


@pytest.fixture
def room_for(monkeypatch) -> Callable[..., list[int]]:
    """Lets larger cohorts run out of memory when half done; gives the sizes of those that trained."""

    def limit(most: int, error: BaseException) -> list[int]:
        trained: list[int] = []

        def look(cohort: Cohort) -> None:
            if len(cohort.jobs) > most:
                cohort.tensors.weights.fill_(float("nan"))
                raise error
            trained.append(len(cohort.jobs))

        before_cohorts(monkeypatch, look)
        return trained

    return limit


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("most", [1, 2, 3, 5])
def test_running_out_of_memory_halves_the_cohort_and_changes_nothing(most, error, room_for):
    pool = federation(task(), sizes=SIZES)
    expected = train_alone(pool)
    trained = room_for(most, error)
    assert_agree(train_alone(pool), expected)
    assert max(trained) <= most
    assert sum(trained) >= len(SIZES)


def test_what_did_not_fit_is_remembered(room_for, monkeypatch):
    pool, engine, failures = federation(task(), sizes=SIZES), Simulation("cpu", "vectorised"), []
    room_for(3, ERRORS[0])
    halve = CohortSizes.halve
    monkeypatch.setattr(CohortSizes, "halve", lambda *args: (failures.append(args[-1]), halve(*args)))
    for _ in range(2):
        train(engine, ask(engine, pool))
    assert failures == [len(SIZES), len(SIZES) // 2]


def test_measuring_which_way_is_faster_survives_a_lack_of_memory(room_for, monkeypatch, tmp_path):
    monkeypatch.setenv("MMFL_CACHE", str(tmp_path))
    pool = federation(task(), sizes=SIZES)
    expected = train_alone(pool)
    room_for(4, ERRORS[0])
    assert_agree(train_alone(pool, mode="auto"), expected)


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_a_single_client_that_does_not_fit_raises(error, room_for):
    room_for(0, error)
    with pytest.raises(type(error), match=str(error)):
        train_alone(federation(task(), sizes=SIZES))


def test_other_errors_are_not_swallowed(monkeypatch):
    pool, engine = federation(task()), Simulation("cpu", "sequential")
    train(engine, ask(engine, pool))

    def broken(cohort: Cohort, *_: object) -> None:
        raise RuntimeError("something else")

    monkeypatch.setattr(trainer, "train_sequential", broken)
    with pytest.raises(RuntimeError, match="something else"):
        train(engine, ask(engine, pool))


@both_modes
@pytest.mark.parametrize("most", [1, 2, 3, 100])
def test_cohorts_of_any_size_give_the_same_updates(most, mode, monkeypatch):
    pool = federation(task(), sizes=SIZES)
    expected = train_alone(pool, mode="sequential")
    monkeypatch.setattr(CohortSizes, "size", lambda self, architecture, width, jobs: most)
    assert_agree(train_alone(pool, mode=mode), expected)


def test_a_cohort_takes_no_more_than_the_budget_but_at_least_one_client(monkeypatch, room_for):
    pool, trained = federation(task(), sizes=SIZES), room_for(100, ERRORS[0])
    train_alone(pool)
    assert max(trained) > 2
    trained.clear()
    monkeypatch.setattr(device, "_CPU_BYTES", 1)
    train_alone(pool)
    assert trained[1:] == [1] * len(SIZES)  # the first is the trial of two
