"""Versions: what earlier versions wrote is read, what a later one wrote is refused in a line."""

import json
import tomllib

import pytest

import mmfl
from conftest import refused
from mmfl.runs import config
from mmfl.runs.directory import RunDirectory
from mmfl.runs.layout import FORMAT
from mmfl.runs.listing import list_runs

NEWEST = f"expected at most {FORMAT}, the newest that this version of mmfl reads"


@pytest.fixture
def run(tmp_path):
    train(tmp_path / "run")
    return tmp_path / "run"


def train(directory, **options):
    task = mmfl.Task("toy", mmfl.models.LogisticRegression, mmfl.data.digits())
    settings = {"rounds": 2, "rate": 0.5, "directory": directory, "checkpoint_every": 1, **options}
    return mmfl.train(mmfl.Federation([task], clients=4), "random", **settings)


def with_format(run, line: str) -> None:
    """Writes another version, or none, into the run's configuration."""
    path = run / "config.toml"
    path.write_text(path.read_text().replace(f"format = {FORMAT}\n", line))


def test_a_new_run_says_its_version(run):
    assert tomllib.loads((run / "config.toml").read_text())["format"] == FORMAT


def test_a_run_without_a_version_is_read_listed_and_resumed(run):
    with_format(run, "")
    assert "format" not in RunDirectory.open(run).config()
    assert len(mmfl.load(run).runs[0].records) == 2
    assert [each.condition for each in list_runs(run)] == ["finished"]
    assert len(train(run, resume=True, rounds=3).records) == 3


def test_a_run_of_a_later_version_is_refused_and_listed_as_unreadable(run):
    with_format(run, "format = 9\n")
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


@pytest.mark.parametrize("version", [1, 2, 4])
def test_a_checkpoint_of_another_version_is_refused(run, version):
    (newest,) = (run / "checkpoint").glob("round-000002.json")
    head = json.loads(newest.read_text())
    assert head["format"] == "mmfl checkpoint 3"
    newest.write_text(json.dumps(head | {"format": f"mmfl checkpoint {version}"}))
    with refused(f"checkpoint {newest.with_suffix('')} has format version {version}; expected 3"):
        train(run, resume=True, rounds=3)
