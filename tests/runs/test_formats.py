"""Versions: what earlier ones wrote is read, what a later one wrote is refused; a run says what it was made with."""

import json
import platform

import pytest
import torch
from toy_runs import train

import mmfl
from conftest import refused
from mmfl.report.sources import combine_sources, load_sources
from mmfl.runs import config
from mmfl.runs.directory import RunDirectory
from mmfl.runs.layout import FORMAT
from mmfl.runs.listing import list_runs

NEWEST = f"expected at most {FORMAT}, the newest that this version of mmfl reads"


@pytest.fixture
def run(tmp_path):
    train(tmp_path / "run", rounds=2, checkpoint_every=1)
    return tmp_path / "run"


def change(run, old: str, new: str) -> None:
    """Changes the run's configuration."""
    path = run / "config.toml"
    path.write_text(path.read_text().replace(old, new))


def test_a_new_run_says_its_version_and_one_without_is_read_listed_and_resumed(run):
    assert RunDirectory.open(run).config()["format"] == FORMAT
    change(run, f"format = {FORMAT}\n", "")
    assert "format" not in RunDirectory.open(run).config()
    assert len(mmfl.load(run).runs[0].records) == 2
    assert [each.condition for each in list_runs(run)] == ["finished"]
    assert len(train(run, resume=True, rounds=3).records) == 3


def test_a_run_of_a_later_version_is_refused_and_listed_as_unreadable(run):
    change(run, f"format = {FORMAT}", "format = 9")
    for use in (mmfl.load, lambda path: train(path, resume=True)):
        with refused(f"run '{run}' cannot be read: its format is version 9", NEWEST):
            use(run)
    (listed,) = list_runs(run)
    assert (listed.condition, NEWEST in listed.reason) == ("unreadable", True)


def test_configurations_have_a_version_or_count_as_the_first(tmp_path):
    path = tmp_path / "experiment.toml"
    path.write_text("rounds = 3\n")
    assert config.read(path).format == 1
    path.write_text("format = 1\nrounds = 3\n")
    assert config.read(path).rounds == 3
    path.write_text("format = 2\nrounds = 3\nnovelty = true\n")
    with refused(f"{path} cannot be read: its format is version 2", NEWEST):
        config.read(path)
    with refused("'format' is 'two'"):
        config.parse({"format": "two"}, "here")


@pytest.mark.parametrize("version", [1, 5, 8])
def test_a_checkpoint_of_another_version_is_refused(run, version):
    (newest,) = (run / "checkpoint").glob("round-000002.json")
    head = json.loads(newest.read_text())
    assert head["format"] == "mmfl checkpoint 7"
    newest.write_text(json.dumps(head | {"format": f"mmfl checkpoint {version}"}))
    with refused(f"checkpoint {newest.with_suffix('')} has format version {version}; expected 7"):
        train(run, resume=True, rounds=3)


def test_versions_and_device_are_beside_the_configuration_and_in_the_log(run):
    versions = {"mmfl": mmfl.__version__, "torch": torch.__version__, "python": platform.python_version()}
    assert RunDirectory.open(run).config()["made_with"] == {**versions, "device": "cpu"}
    assert f"; mmfl {mmfl.__version__}, torch {torch.__version__}, " in (run / "log.txt").read_text()


def test_a_run_resumes_and_repeats_whatever_it_was_made_with(tmp_path, monkeypatch, answer):
    monkeypatch.chdir(tmp_path)
    assert answer("run", "quadratic", "--rounds", "2", "--seeds", "1", "--quiet", "--out", "run")[0] == 0
    change(tmp_path / "run", mmfl.__version__, "0.0.1")
    assert answer("resume", "run")[0] == 0
    assert answer("run", "run/config.toml", "--quiet", "--out", "again")[0] == 0
    assert RunDirectory.open("again").config()["made_with"]["mmfl"] == mmfl.__version__


def test_seeds_made_with_different_versions_are_still_of_one_experiment(run, tmp_path):
    train(tmp_path / "other", rounds=2, seed=1)
    change(tmp_path / "other", torch.__version__, "1.0")
    assert combine_sources(load_sources([run, tmp_path / "other"])).methods == ["random"]
