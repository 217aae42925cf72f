"""The listing of runs, from whatever lies in a folder."""

import json
from pathlib import Path

import pytest

import mmfl
from conftest import refused, toy_task
from mmfl.runs.listing import list_runs


def record(round, method="random", seed=0, mean=0.5):
    told = {"round": round, "method": method, "seed": seed, "mean": mean}
    return told | {"tasks": {}, "clients": 4, "cost": {}}


def made(path: Path, config: str, records=(), cut: str = "") -> Path:
    path.mkdir(parents=True)
    (path / "config.toml").write_text(config)
    if records:
        (path / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in records) + cut)
    return path


def test_a_run_that_was_cut_short_is_stopped_with_its_last_whole_round(tmp_path):
    records = [record(1), record(1, seed=1), record(2, mean=0.6), record(2, seed=1, mean=0.8)]
    made(tmp_path / "a", 'methods = ["random"]\nseeds = [3, 5]\nrounds = 9\n', records, cut='{"round": 3, "me')
    (run,) = list_runs(tmp_path)
    assert (run.id, run.condition, run.round, run.rounds, run.seeds) == (str(tmp_path / "a"), "stopped", 2, 9, 2)
    assert run.means == {"random": pytest.approx(0.7)}


def test_the_metric_is_that_of_the_last_round_that_was_evaluated(tmp_path):
    records = [record(1, mean=0.1), record(2, mean=0.4), record(3, mean=None), record(4, mean=None)]
    made(tmp_path / "a", 'methods = ["random"]\nrounds = 4\n', records)
    (run,) = list_runs(tmp_path)
    assert (run.condition, run.round, run.means) == ("finished", 4, {"random": 0.4})


def test_methods_are_named_as_in_the_records_once_there_are_some(tmp_path):
    records = [record(1, "fedstale(beta=0.1)"), record(1, "full", mean=None)]
    made(
        tmp_path / "a",
        'rounds = 5\n[[methods]]\nmethod = "fedstale"\nbeta = 0.1\n[[methods]]\nmethod = "full"\n',
        records,
    )
    (run,) = list_runs(tmp_path)
    assert (run.methods, run.means) == (["fedstale(beta=0.1)", "full"], {"fedstale(beta=0.1)": 0.5})


def test_a_run_without_a_round_and_runs_of_every_origin_are_listed_by_name(tmp_path):
    made(tmp_path / "c", '[settings]\nmethod = "fedavg"\nrounds = 3\n')
    made(tmp_path / "b", 'rounds = 5\n[[methods]]\nname = "mine"\n[[methods]]\nmethod = "fedstale"\nbeta = 0.1\n')
    federation = mmfl.Federation([toy_task()], clients=4)
    mmfl.train(federation, "full", rounds=2, directory=tmp_path / "a")
    (tmp_path / "empty").mkdir()
    runs = list_runs(tmp_path)
    assert [Path(run.id).name for run in runs] == ["a", "b", "c"]
    assert [run.methods for run in runs] == [["full"], ["mine", "fedstale"], ["fedavg"]]
    assert [run.condition for run in runs] == ["finished", "stopped", "stopped"]
    assert [run.round for run in runs] == [2, 0, 0]


@pytest.mark.parametrize(
    ("config", "metrics"),
    [
        ("rounds = = 3", b""),
        ("title = 'not of a run'", b""),
        ("method = 'full'\nrounds = 'many'", b""),
        ("method = 'full'\nrounds = 3", b'{"a": 1}\n'),
        ("method = 'full'\nrounds = 3", b"\xff\xfe\n"),
    ],
)
def test_what_cannot_be_read_is_said_to_be_so(tmp_path, config, metrics):
    (made(tmp_path / "a", config) / "metrics.jsonl").write_bytes(metrics)
    assert [run.condition for run in list_runs(tmp_path)] == ["unreadable"]


def test_a_folder_that_is_not_there_is_refused(tmp_path):
    with refused("there is no folder", "expected one that holds run directories"):
        list_runs(tmp_path / "nowhere")
