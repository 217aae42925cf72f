"""Deployments that end before their last round, keep their best weights, and whose models are exported."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import mmfl

pytest.importorskip("flwr", reason="flwr is not installed")
from inside import CLIENTS, deployed, federation, transport

from conftest import refused, toy_task
from mmfl.data.dataset import ELSEWHERE
from mmfl.deployment.settings import DeploymentSettings
from mmfl.runs.directory import RunDirectory
from mmfl.runs.status import read as read_status

MODULE = """
from inside import federation


def tasks():
    return federation().tasks


def data(task, client):
    return None
"""


@pytest.fixture(scope="module")
def accuracy():
    """Of six rounds without a rule to stop."""
    return deployed("full", 6).accuracy


def by_nodes():
    """The tasks, to be tested by the nodes on their data."""
    return [dataclasses.replace(task, data=ELSEWHERE) for task in federation().tasks]


@pytest.mark.parametrize("tasks", [None, by_nodes()], ids=["tested by the server", "tested by the nodes"])
def test_a_deployment_stops_at_its_target_and_says_so(accuracy, tasks, tmp_path):
    target = {name: float(accuracy[name].iloc[:3].max()) for name in accuracy}
    first = max(int((accuracy[name] >= target[name]).idxmax()) for name in accuracy)
    run = deployed("full", 6, tasks=tasks, stop={"target": target}, directory=tmp_path / "run")
    assert run.records[-1].round == first < 6
    assert read_status(tmp_path / "run").condition == "finished"
    assert "reached their targets" in (tmp_path / "run" / "log.txt").read_text()
    further = deployed("full", 6, tasks=tasks, directory=tmp_path / "run", resume=True)
    np.testing.assert_array_equal(further.accuracy, accuracy)


def test_a_deployment_stops_when_nothing_improves_and_when_its_time_is_up(accuracy):
    idle = deployed("full", 6, stop={"patience": 2, "min_delta": 10})
    assert [record.round for record in idle.records] == [1, 2, 3]
    hurried = deployed("full", 6, stop={"seconds": 1e-9}, evaluate_every=6)
    np.testing.assert_array_equal(hurried.accuracy, accuracy[:1])


def test_a_deployment_keeps_the_simulations_best_weights_through_a_resume(tmp_path):
    same = mmfl.train(federation(), "random", 5, 0.5, device="cpu", keep_best=True)
    assert (same.best["round"] < 5).any()  # otherwise this shows nothing
    deployed("random", 4, keep_best=True, directory=tmp_path / "run")
    real = deployed("random", 5, keep_best=True, directory=tmp_path / "run", resume=True)
    assert real.best_weights.round.tolist() == same.best["round"].tolist()
    for one, other in zip(real.best_weights.weights, same.best_weights.weights, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("stop", "words"),
    [
        ({"patience": 0}, ["deployment: stop: patience is 0", "at least 1"]),
        ({"seconds": -1}, ["deployment: stop: seconds is -1", "positive"]),
        ({"target": {}}, ["deployment: stop: target is {}"]),
        ({"target": "high"}, ["deployment: 'stop.target' is 'high'"]),
        ({"patiense": 3}, ["deployment: unknown setting 'stop.patiense': did you mean 'patience'?"]),
        ({"target": {"c": 1}}, ["stop: target names the task 'c'", "a, b"]),
        (3, ["deployment: 'stop' is 3"]),
    ],
)
def test_a_rule_that_makes_no_sense_is_refused_before_nodes_are_asked(stop, words):
    nodes = transport()
    with refused(*words):
        deployed(to=nodes, stop=stop)
    assert not nodes.sent


def test_what_is_no_answer_to_whether_the_best_weights_are_kept_is_refused():
    with refused("deployment: 'keep_best' is 'sometimes'"):
        deployed(keep_best="sometimes")


# --- its models ---


@pytest.fixture
def folder(tmp_path):
    """The directory of a deployment, as `mmfl deploy` makes it, and the module that it was started with."""
    (tmp_path / "app.py").write_text(MODULE)
    told = {
        "clients": CLIENTS,
        "method": "random",
        "rounds": 5,
        "rate": 0.5,
        "keep_best": True,
        "average": 0.5,
        "clip": 0,
    }
    settings = DeploymentSettings.of(told).model_dump(exclude_none=True)
    where = {"module": str(tmp_path / "app.py"), "local": 4}
    RunDirectory.create(tmp_path / "run", {"source": "deployment", "deployment": where, "settings": settings})
    return tmp_path


def train(folder: Path) -> mmfl.Run:
    return deployed("random", 5, keep_best=True, average=0.5, directory=folder / "run")


@pytest.mark.parametrize("weights", ["current", "best", "average"])
def test_the_model_of_a_deployment_is_exported_from_its_last_checkpoint(folder, answer, weights):
    expected = train(folder).module("b", weights).state_dict()
    path = folder / "model.safetensors"
    code, _, err = answer("export", str(folder / "run"), "--task", "b", "--to", str(path), "--weights", weights)
    assert code == 0, err
    written = load_file(path)
    assert written.keys() == expected.keys()
    assert all(torch.equal(written[name], expected[name]) for name in expected)


def export(folder, answer, ending="pt"):
    path = folder / f"model.{ending}"
    code, _, err = answer("export", str(folder / "run"), "--task", "b", "--to", str(path))
    assert (code, path.exists()) == (2, False)
    assert len(err.splitlines()) <= 2
    return err


def test_operations_cannot_be_traced_where_only_nodes_have_data(folder, answer):
    text = MODULE.replace("federation().tasks", "[dataclasses.replace(t, data=ELSEWHERE) for t in federation().tasks]")
    head = "import dataclasses\n\nfrom mmfl.data.dataset import ELSEWHERE\n"
    (folder / "app.py").write_text(head + text)
    deployed("random", 2, tasks=by_nodes(), keep_best=True, directory=folder / "run", average=None)
    config = folder / "run" / "config.toml"
    config.write_text(config.read_text().replace("average = 0.5\n", ""))
    assert "there is no data here" in export(folder, answer, "torchscript")
    assert answer("export", str(folder / "run"), "--task", "b", "--to", str(folder / "model.pt"))[0] == 0


def test_local_batch_norm_stays_on_the_nodes_so_the_server_has_no_whole_model():
    def network():
        return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 8))

    whole = mmfl.Federation([toy_task("a", model=network, batch_norm="local")], CLIENTS)
    run = deployed("full", 1, to=transport(whole), tasks=[dataclasses.replace(whole.tasks[0], data=ELSEWHERE)])
    with refused("task 'a'", "batch norm is on the nodes"):
        run.module("a")


def test_a_deployment_without_a_checkpoint_or_module_is_not_exported(folder, answer):
    assert "has no checkpoint yet" in export(folder, answer)
    config = folder / "run" / "config.toml"
    (folder / "app.py").unlink()
    assert "app.py', which is not there any more" in export(folder, answer)
    config.write_text('source = "deployment"\n')
    assert "does not say with which module" in export(folder, answer)
