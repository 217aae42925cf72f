"""Which way and where an engine trains: measured once, remembered, and refused where it cannot be."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from small import ask, assert_agree, both_modes, federation, task, train, train_alone

from conftest import refused
from mmfl.engine import Simulation, choices, trainer

POOL = federation(task(), sizes=(8, 8, 8))  # one bucket: one decision
WAYS = ["vectorised", "sequential"]


@pytest.fixture
def cache(monkeypatch, tmp_path) -> Path:
    monkeypatch.setenv("MMFL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def decide(monkeypatch, faster: str) -> tuple[str, int]:
    """What a new engine decides for the pool while `faster` is, and how many timings that took."""
    timed, one_by_one, train_sequential = [], [], trainer.train_sequential

    def seconds(way, cohort) -> float:
        timed.append(way)
        return 1.0 if (way is trainer.train_vectorised) == (faster == "vectorised") else 2.0

    def sequential(*args) -> None:
        one_by_one.append(args)
        train_sequential(*args)

    with monkeypatch.context() as patch:
        patch.setattr(trainer, "_time", seconds)
        patch.setattr(trainer, "train_sequential", sequential)
        engine = Simulation("cpu", "auto")
        for round in (1, 2):
            train(engine, ask(engine, POOL, round=round))
    assert len(one_by_one) in (0, 2)
    return ("sequential" if one_by_one else "vectorised"), len(timed)


@pytest.mark.parametrize("faster", WAYS)
def test_the_faster_way_is_measured_once_and_remembered_by_later_engines(faster, cache, monkeypatch):
    slower = next(way for way in WAYS if way != faster)
    assert decide(monkeypatch, faster) == (faster, 2)
    assert decide(monkeypatch, slower) == (faster, 0)


CPUINFO = "processor\t: 0\nmodel name\t: {}\ncpu MHz\t\t: {}\nflags\t\t: fpu {}\n\nprocessor\t: 1\ncpu MHz\t: {}\n"
EPYC = ("EPYC 1", 2500, "avx512f", 2400)
CHANGED = {
    "clock": ("EPYC 1", 3100, "avx512f", 3200),
    "model": ("Xeon 2", *EPYC[1:]),
    "flags": (*EPYC[:2], "avx2", 2400),
}


@pytest.mark.parametrize(
    ("change", "measures"),
    [("clock", 0), ("model", 2), ("flags", 2), ("oneDNN", 2), ("torch", 2), ("not Linux", 2)],
)
def test_a_choice_is_used_on_the_same_kind_of_processor_alone(change, measures, cache, monkeypatch, tmp_path):
    """Machines may share a home directory."""
    cpuinfo = tmp_path / "cpuinfo"
    monkeypatch.setattr(choices, "_CPUINFO", cpuinfo)
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    cpuinfo.write_text(CPUINFO.format(*EPYC))
    assert decide(monkeypatch, "sequential") == ("sequential", 2)
    if change in CHANGED:
        cpuinfo.write_text(CPUINFO.format(*CHANGED[change]))
    elif change == "oneDNN":
        monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    elif change == "torch":
        monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "another")
    else:
        cpuinfo.unlink()
    assert decide(monkeypatch, "vectorised") == ("vectorised" if measures else "sequential", measures)


@pytest.mark.parametrize("rubbish", [b"{", b"[1, 2]", b"\xff\xfe", b"null", b"", None])
def test_a_damaged_memory_is_ignored_and_written_anew(rubbish, cache, monkeypatch):
    decide(monkeypatch, "vectorised")
    (file,) = cache.glob("*.json")
    known = json.loads(file.read_text())
    assert list(known.values()) == ["vectorised"]
    file.write_bytes(json.dumps(dict.fromkeys(known, "sideways")).encode() if rubbish is None else rubbish)
    assert decide(monkeypatch, "sequential") == ("sequential", 2)
    assert list(json.loads(file.read_text()).values()) == ["sequential"]
    assert list(cache.iterdir()) == [file]


def test_without_a_place_to_remember_every_engine_measures_anew(cache, monkeypatch):
    cache.write_text("a file where a folder should be")
    assert decide(monkeypatch, "sequential") == ("sequential", 2)
    assert decide(monkeypatch, "vectorised") == ("vectorised", 2)


def test_auto_trains_like_the_others_after_really_measuring(cache):
    assert_agree(train_alone(POOL, mode="auto"), train_alone(POOL, mode="sequential"))
    (file,) = cache.glob("*.json")
    (way,) = json.loads(file.read_text()).values()
    assert way in WAYS


@both_modes
def test_a_way_asked_for_is_not_measured(mode, cache, monkeypatch):
    monkeypatch.setattr(trainer, "_time", lambda way, cohort: pytest.fail("measured"))
    assert len(train_alone(POOL, mode=mode).client) == 3
    assert not cache.exists()


def test_asking_for_nothing_gives_nothing():
    engine = Simulation("cpu")
    assert engine.train([]) == []
    (answer,) = train(engine, ask(engine, POOL, client=np.zeros(0, dtype=np.int64)))
    assert len(answer.client) == len(answer.flat) == len(answer.loss) == 0


@pytest.mark.parametrize(
    ("mode", "hint"), [("vectorized", "did you mean 'vectorised'?"), ("fast", "auto, sequential, vectorised")]
)
def test_an_unknown_engine_is_refused(mode, hint):
    with refused(f"unknown engine '{mode}'", hint):
        Simulation("cpu", mode)


@pytest.mark.parametrize("device", ["gpu", "cuda:x", "meta"])
def test_an_unknown_device_is_refused(device, monkeypatch):
    with refused(f"unknown device '{device}'", "expected cpu, cuda"):
        Simulation(device)
    monkeypatch.setenv("MMFL_DEVICE", device)
    with refused(f"unknown device '{device}'"):
        Simulation()


@pytest.mark.parametrize("device", ["cuda", "cuda:1"])
def test_a_gpu_is_refused_where_there_is_none(device, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with refused(f"'{device}'", "no CUDA device", "cpu"):
        Simulation(device)


def test_the_environment_names_the_device_where_the_caller_does_not(monkeypatch):
    monkeypatch.delenv("MMFL_DEVICE", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert Simulation().device == torch.device("cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert Simulation().device == torch.device("cuda")
    monkeypatch.setenv("MMFL_DEVICE", "cpu")
    assert Simulation().device == torch.device("cpu")
    assert Simulation("cuda:1").device == torch.device("cuda:1")
