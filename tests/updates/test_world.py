"""Runs that several processes share: the same run as in one process, for every method, checkpoints included."""

import json
import os
import shutil
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from worlds import OWN, everything

import mmfl
import prompt
from conftest import made_once
from mmfl.engine import Simulation
from mmfl.methods import METHODS, make_method
from mmfl.training.loop import Replica, agree
from mmfl.updates import ClientRows, Updates
from mmfl.updates.partial_sum import PartialSum
from mmfl.updates.world import SINGLE_PROCESS, World, join

HERE = Path(__file__).parent
pytestmark = pytest.mark.long


def torchrun(processes: int, *command: str, cwd: Path, restarts: int = 0) -> subprocess.CompletedProcess:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(processes)]
    launcher += ["--max-restarts", str(restarts), "--monitor-interval", "0.1"]
    path = os.pathsep.join([str(Path(mmfl.__file__).parents[1]), str(HERE)])
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    return subprocess.run([*launcher, *command], capture_output=True, text=True, env=variables, cwd=cwd, timeout=600)


def weights_of(comparison: mmfl.Comparison) -> dict[str, list[torch.Tensor]]:
    return {run.method: list(run.weights) for run in comparison}


def together(processes: int, directory: Path, how: str = "start") -> dict[str, list[torch.Tensor]]:
    program = f"import sys; sys.path.insert(0, {str(HERE)!r}); from worlds import main; main()"
    done = prompt.together(processes, str(directory), how, cwd=directory.parent, program=program)
    assert done.returncode == 0, done.stderr[-2000:]
    return weights_in(directory)


def weights_in(directory: Path) -> dict[str, list[torch.Tensor]]:
    stored = load_file(directory / "weights.safetensors")
    return {method: [stored[f"{method}/{s}"] for s in (0, 1)] for method in (*METHODS, *OWN)}


def alike(found: dict[str, list[torch.Tensor]], wanted: dict[str, list[torch.Tensor]]) -> None:
    assert list(found) == list(wanted)
    for method, tasks in wanted.items():
        for mine, theirs in zip(found[method], tasks, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5, msg=lambda text, of=method: f"{of}: {text}")


def records(directory: Path) -> list[dict]:
    return [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]


def from_the_middle(directory: Path, to: Path) -> Path:
    """A copy of a run as it was after its second round."""
    shutil.copytree(directory, to)
    for file in (to / "checkpoint").glob("round-000004*"):
        file.unlink()
    assert list((to / "checkpoint").glob("round-000002.json"))
    return to


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    place = tmp_path_factory.mktemp("alone") / "run"
    return weights_of(everything(place)), place


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    place = made_once(tmp_path_factory, "two", lambda folder: together(2, folder / "run")) / "run"
    return weights_in(place), place


def test_two_processes_train_what_one_does(alone, two):
    alike(two[0], alone[0])
    for mine, theirs in zip(records(two[1]), records(alone[1]), strict=True):
        assert (mine["drawn"], mine["time"]) == (theirs["drawn"], theirs["time"])
        assert mine.get("clusters", {}).get("cluster") == theirs.get("clusters", {}).get("cluster")
        for name, task in theirs["tasks"].items():
            for quantity, value in task.items():
                found = mine["tasks"][name][quantity]
                assert found is value is None or found == pytest.approx(value, rel=1e-3, abs=1e-4), quantity
    ours, theirs = (mmfl.load(place).runs[-1].confusion("linear").to_numpy() for place in (two[1], alone[1]))
    assert np.abs(ours - theirs).sum() < 0.01 * theirs.sum()


def test_three_processes_go_on_where_two_stopped(alone, two, tmp_path):
    alike(together(3, from_the_middle(two[1], tmp_path / "run"), "resume"), alone[0])


def test_one_process_goes_on_where_two_stopped(alone, two, tmp_path):
    alike(weights_of(everything(from_the_middle(two[1], tmp_path / "run"), resume=True)), alone[0])


def stored_clients(file: Path) -> dict[str, set[int]]:
    """Whose vectors a checkpoint's file holds, by the name of each store in it."""
    slots = {name: array for name, array in load_file(file).items() if name.endswith(".slot")}
    return {name: set(np.flatnonzero(slot >= 0).tolist()) for name, slot in slots.items()}


def test_each_process_keeps_the_updates_of_its_own_clients_alone(alone, two):
    (whole,) = (alone[1] / "checkpoint").glob("round-000004*.safetensors")
    parts = [two[1] / "checkpoint" / f"round-000004{part}.safetensors" for part in ("", ".part-1")]
    everyone, even, odd = map(stored_clients, (whole, *parts))
    remembered = [name for name in everyone if "batch_norm" not in name and "optimiser" not in name]
    assert len(remembered) == 32  # fifteen rules that remember updates and SCAFFOLD, for two tasks
    for kept in ("batch_norm", "optimiser"):  # each for one task
        assert sum(kept in name for name in everyone) == len(METHODS) + len(OWN)
    for name, clients in everyone.items():
        assert len(clients) > (4 if name in remembered else 0), name
        assert (even[name], odd[name]) == ({c for c in clients if c % 2 == 0}, {c for c in clients if c % 2}), name


def test_what_all_processes_have_alike_is_written_once(two):
    first, second = sorted((two[1] / "checkpoint").glob("round-000004*.json"))
    assert [json.loads(path.read_text())["processes"] for path in (first, second)] == [2, 2]
    names = [set(load_file(path.with_suffix(".safetensors"))) for path in (first, second)]
    assert names[1] < names[0]
    assert not [name for name in names[1] if ".weights." in name or name.endswith((".weight", ".last"))]


@pytest.fixture
def fatal(tmp_path, monkeypatch) -> Path:
    """The file of an experiment in which processes that have a mark are killed."""
    marks, config = tmp_path / "marks", tmp_path / "experiment.toml"
    marks.mkdir()
    monkeypatch.setenv("FATAL_MARKS", str(marks))
    config.write_text(
        f"""
rounds = 6
rate = 0.5
checkpoint_every = 2
engine = "vectorised"
python_path = "{HERE}"
methods = [
    {{ name = "fatal", allocation = "random-split", aggregation = "worlds.Fatal" }},
    "mmfl-stalevre", "mmfl-stalevr", "fedvarp", "scaffold", "forecast",
]
[federation]
clients = 10
[[tasks]]
name = "digits"
data = "digits"
model = "logistic"
"""
    )
    return config


def test_a_lost_process_ends_the_run_with_a_word_and_it_goes_on(fatal, tmp_path):
    (tmp_path / "marks" / "1").touch()
    run = tmp_path / "run"
    done = torchrun(2, "-m", "mmfl", "run", str(fatal), "--out", str(run), cwd=tmp_path)
    assert done.returncode != 0
    assert "lost" in done.stderr
    assert f"mmfl resume {run}" in done.stderr
    assert [record["round"] for record in records(run)[::6]] == [1, 2, 3]
    again = prompt.mmfl("resume", str(run), cwd=tmp_path)
    assert again.returncode == 0, again.stderr[-2000:]
    assert [record["round"] for record in records(run)[::6]] == [1, 2, 3, 4, 5, 6]


def test_torchrun_replaces_lost_processes_and_the_run_ends_with_the_same_bits(fatal, tmp_path):
    undisturbed = prompt.together(2, "run", str(fatal), "--out", "undisturbed", cwd=tmp_path)
    assert undisturbed.returncode == 0, undisturbed.stderr[-2000:]
    marks = [tmp_path / "marks" / str(rank) for rank in (0, 1)]
    for mark in marks:
        mark.touch()
    done = torchrun(2, "-m", "mmfl", "run", str(fatal), cwd=tmp_path, restarts=2)
    assert done.returncode == 0, done.stderr[-2000:]
    assert not any(mark.exists() for mark in marks)
    assert "torchrun starts it again." in done.stderr
    (run,) = (tmp_path / "runs").iterdir()
    log = (run / "log.txt").read_text()
    assert "resumed after round 2" in log
    assert "resumed after round 4" in log
    for part in ("", ".part-1"):
        name = f"checkpoint/round-000006{part}.safetensors"
        assert (run / name).read_bytes() == (tmp_path / "undisturbed" / name).read_bytes(), name
    assert [record["round"] for record in records(run)[::6]] == [1, 2, 3, 4, 5, 6]


def test_two_processes_go_on_to_the_same_bits(two, tmp_path):
    found = together(2, from_the_middle(two[1], tmp_path / "run"), "resume")
    for method, tasks in two[0].items():
        assert all(map(torch.equal, found[method], tasks)), method


def test_without_torchrun_a_process_is_alone(monkeypatch):
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert join(torch.device("cpu")) is SINGLE_PROCESS
    assert SINGLE_PROCESS.first
    assert SINGLE_PROCESS.broadcast("a word") == "a word"


class Pair(World):
    """One of two processes; what the other one adds to the first sum, to the second, ... and to all others."""

    rank, size = 1, 2

    def __init__(self, *others: float | np.ndarray):
        self.others, self.exchanges = others, 0

    def sum(self, part):
        self.exchanges += 1
        return part + self.others[min(self.exchanges, len(self.others)) - 1]

    sums = sum


@pytest.mark.parametrize("apart", [0.0, 1e-3])
def test_processes_that_end_up_with_weights_of_their_own_are_stopped(apart):
    engine = Simulation("cpu", "vectorised")
    task = mmfl.Task("digits", mmfl.models.LogisticRegression, mmfl.data.digits())
    replica = Replica.start(mmfl.Federation([task], 4), make_method("full"), 0, 1.0, engine)
    replica.state.weights[0][:] = 1.0
    theirs = np.array([float(len(replica.state.weights[0])) + apart])
    expected = pytest.raises(mmfl.UserError, match=r"method 'full'.*weights of its own") if apart else nullcontext()
    with expected:
        agree(Pair(theirs, 0.0), [replica])


def test_rows_of_several_processes_stay_in_their_places():
    client, flat, ones = np.array([2, 3, 5, 7]), torch.tensor([[3.0], [np.nan], [4.0]]), np.ones(4, dtype=np.int64)
    world = Pair(np.array([1.0, 0, 0, 0]))
    rows = ClientRows(flat, np.array([1, 2, 3]), 4, world)
    updates = Updates(0, client, np.array([1, 1, 1, 0]), np.ones(4), rows, np.array([0.2, 0.3, 0.5, 0.7]), ones)
    valid = updates.valid()
    assert valid.client.tolist() == [2, 3, 7]
    assert valid.rows.places.tolist() == [1, 2]
    assert valid.rows.take_held(valid.client).tolist() == [3, 7]
    drawn = valid.drawn()
    assert drawn.client.tolist() == [2, 3]
    assert drawn.rows.matrix.tolist() == [[3.0]]
    assert drawn.rows.take_held(drawn.client).tolist() == [3]


def test_a_formula_of_sums_over_clients_is_added_up_over_processes_once():
    world = Pair(10.0)
    first, second = (PartialSum.of(torch.full((3,), value), world) for value in (1.0, 2.0))
    step = 2 * first + second / 2 - (-second)
    assert world.exchanges == 0
    assert (torch.zeros(3) - step).tolist() == [-15.0] * 3
    assert world.exchanges == 1


@pytest.mark.parametrize(
    "made",
    [
        lambda x: torch.norm(x),
        lambda x: x.norm(),
        lambda x: x * torch.ones(3),
        lambda x: x[0],
        lambda x: torch.stack([x]),
    ],
)
def test_whatever_torch_does_with_a_sum_over_clients_it_does_with_all_of_it(made):
    found = made(PartialSum.of(torch.ones(3), Pair(10.0)))
    torch.testing.assert_close(found, made(torch.full((3,), 11.0)))
