"""The listing of runs, from whatever lies in a folder."""

import json
from pathlib import Path

import pytest

import mmfl
from conftest import refused, toy_task
from mmfl.shell.listings import listed


def record(round, method="random", seed=0, mean=0.5):
    return {"round": round, "method": method, "seed": seed, "mean": mean}


def made(path: Path, config: str, records=(), cut: str = "") -> Path:
    path.mkdir(parents=True)
    (path / "config.toml").write_text(config)
    (path / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in records) + cut)
    return path


def test_a_run_that_was_cut_short_is_listed_with_its_last_whole_round(tmp_path):
    records = [record(1), record(1, seed=1), record(2, mean=0.6), record(2, seed=1, mean=0.8)]
    made(tmp_path / "a", 'methods = ["random"]\nseeds = [3, 5]\nrounds = 9\n', records, cut='{"round": 3, "me')
    (run,) = listed(tmp_path)
    assert (run["run"], run["state"], run["round"], run["rounds"]) == (str(tmp_path / "a"), "stopped", 2, 9)
    assert (run["seeds"], run["mean"]) == (2, {"random": pytest.approx(0.7)})


def test_the_metric_is_that_of_the_last_round_that_was_evaluated(tmp_path):
    records = [record(1, mean=0.1), record(2, mean=0.4), record(3, mean=None), record(4, mean=None)]
    made(tmp_path / "a", 'methods = ["random"]\nrounds = 4\n', records)
    (run,) = listed(tmp_path)
    assert (run["state"], run["round"], run["mean"]) == ("finished", 4, {"random": 0.4})


def test_runs_of_every_origin_and_depth_are_listed(tmp_path):
    made(tmp_path / "deep" / "c", '[settings]\nmethod = "fedavg"\nrounds = 3\n')
    made(tmp_path / "b", 'rounds = 5\n[[methods]]\nname = "mine"\n')
    mmfl.train(mmfl.Federation([toy_task()], clients=4), "full", rounds=2, directory=tmp_path / "a")
    (tmp_path / "empty").mkdir()
    runs = {Path(run["run"]).name: run for run in listed(tmp_path)}
    assert {name: run["methods"] for name, run in runs.items()} == {"a": ["full"], "b": ["mine"], "c": ["fedavg"]}
    assert {name: run["state"] for name, run in runs.items()} == {"a": "finished", "b": "stopped", "c": "stopped"}
    assert [run["run"] for run in listed(tmp_path / "a")] == [str(tmp_path / "a")]


@pytest.mark.parametrize("config", ["rounds = = 3", "title = 'not of a run'", "method = 'full'\nrounds = 'many'"])
@pytest.mark.parametrize("metrics", [b"", b'{"a": 1}\n', b"[1, 2]\n", b"\xff\xfe\n"])
def test_files_that_cannot_be_read_stop_no_listing(tmp_path, config, metrics):
    path = made(tmp_path / "a", config)
    (path / "metrics.jsonl").write_bytes(metrics)
    assert [(run["state"], run["round"]) for run in listed(tmp_path)] == [("stopped", 0)]


def test_a_folder_that_is_not_there_is_refused(tmp_path):
    with refused("there is no folder", "expected one that holds run directories"):
        listed(tmp_path / "nowhere")
