"""What a run was made with is in its directory, and in nobody's way."""

import platform
import sys
import tomllib

import pytest
import torch

import mmfl
from conftest import refused, toy_task
from mmfl import cli, registry
from mmfl.report.sources import combine_sources, load_sources


def train(path, **options):
    return mmfl.train(
        mmfl.Federation([toy_task()], clients=4), "random", 2, 0.5, directory=path, device="cpu", **options
    )


def changed(path, old, new):
    path.write_text(path.read_text().replace(old, new))


def test_versions_and_device_are_beside_the_configuration_and_in_the_log(tmp_path):
    train(tmp_path / "run")
    config = tomllib.loads((tmp_path / "run" / "config.toml").read_text())
    versions = {"mmfl": mmfl.__version__, "torch": torch.__version__, "python": platform.python_version()}
    assert config["made_with"] == {**versions, "device": "cpu"}
    assert f"; mmfl {mmfl.__version__}, torch {torch.__version__}, " in (tmp_path / "run" / "log.txt").read_text()


def test_a_run_resumes_and_repeats_whatever_it_was_made_with(tmp_path, monkeypatch):
    def typed(*words):
        monkeypatch.setattr(sys, "argv", ["mmfl", *words])
        with pytest.raises(SystemExit) as left:
            cli.main()
        assert not left.value.code

    monkeypatch.chdir(tmp_path)
    typed("run", "quadratic", "--rounds", "2", "--seeds", "1", "--quiet", "--out", "run")
    changed(tmp_path / "run" / "config.toml", mmfl.__version__, "0.0.1")
    typed("resume", "run")
    typed("run", "run/config.toml", "--quiet", "--out", "again")
    assert tomllib.loads((tmp_path / "again" / "config.toml").read_text())["made_with"]["mmfl"] == mmfl.__version__


def test_seeds_made_with_different_versions_are_still_of_one_experiment(tmp_path):
    train(tmp_path / "a")
    train(tmp_path / "b", seed=1)
    changed(tmp_path / "b" / "config.toml", torch.__version__, "1.0")
    assert combine_sources(load_sources([tmp_path / "a", tmp_path / "b"])).methods == ["random"]


@pytest.mark.parametrize("name", ["builtins.dict", "builtins.min"])
def test_something_built_in_that_does_not_tell_its_arguments_is_refused_in_a_line(name):
    with refused(f"data '{name}' has no signature; expected a function or class written in Python."):
        registry.build("data", {"name": name, "x": 1}, {})
