"""Runs whose records were deleted or written over: said when they are listed, resumed or reported."""

import shutil

import pytest

import mmfl
from conftest import refused, toy_task
from mmfl.runs import listed

DAMAGES = [None, b"", b"\xff\xfe garbage\n", b"[1, 2]\n", b'{"a": 1}\n', "half"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "whole"
    train(path)
    return path


def train(path, **options):
    return mmfl.train(mmfl.Federation([toy_task()], clients=4), "random", 6, 0.5, directory=path, **options)


def damaged(whole, path, damage):
    shutil.copytree(whole, path)
    metrics = path / "metrics.jsonl"
    if damage is None:
        metrics.unlink()
    elif damage == "half":
        lines = metrics.read_bytes().splitlines(keepends=True)
        metrics.write_bytes(b"".join([*lines[:3], b"garbage\n"]))
    else:
        metrics.write_bytes(damage)
    return path


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_run_is_not_resumed_beyond_its_records_and_these_stay_as_they_are(whole, tmp_path, damage):
    metrics = damaged(whole, tmp_path / "run", damage) / "metrics.jsonl"
    before = metrics.read_bytes() if metrics.exists() else None
    rounds = 3 if damage == "half" else 0
    with refused(f"{metrics} has records of {rounds} rounds", "the checkpoint is of round 6; expected all 6"):
        train(tmp_path / "run", resume=True)
    assert (metrics.read_bytes() if metrics.exists() else None) == before


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_run_without_its_records_is_listed_as_unreadable_and_says_why(whole, tmp_path, damage):
    damaged(whole, tmp_path / "run", damage)
    (run,) = listed(tmp_path)
    assert run.condition == "unreadable"
    assert "metrics.jsonl" in run.reason


def test_a_report_of_garbage_names_the_file(whole, tmp_path):
    path = damaged(whole, tmp_path / "run", b"garbage\n")
    with refused(f"{path / 'metrics.jsonl'} begins with a line that is no record"):
        mmfl.load(path)
