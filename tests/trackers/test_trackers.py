"""Trackers: what they are told is in TensorBoard, MLflow and Weights & Biases, each round once, resumed or not."""

import json
import os
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

import mmfl
import prompt
from conftest import refused
from mmfl import trackers
from mmfl.runs.config import parse
from mmfl.runs.listener import Listener

event_accumulator = pytest.importorskip(
    "tensorboard.backend.event_processing.event_accumulator", reason="tensorboard is not installed"
)
mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed")

METHODS, ROUNDS = ["random", "mmfl-stalevre"], 6
SMALL = ["quadratic", "--set", "evaluate_every=1", "--rounds", "4", "--seeds", "1", "--out", "run"]


def federation() -> mmfl.Federation:
    data = mmfl.data.digits()
    tasks = [mmfl.Task(name, mmfl.models.LogisticRegression, data, lr=0.25) for name in ("plain", "north/south (°)")]
    return mmfl.Federation(tasks, 8, capacity=2)


def compare(*listeners: Listener, **options) -> mmfl.Comparison:
    settings = {"rounds": ROUNDS, "rate": 0.5, "seeds": 2, "checkpoint_every": 2, **options}
    return mmfl.compare(federation(), METHODS, listeners=listeners, **settings)


class Crash(Listener):
    """Ends the experiment in a round."""

    def __init__(self, round: int):
        self.at = round

    def round(self, records):
        if records[0].round == self.at:
            raise MemoryError


def crash(at: int, directory: Path, *listeners: Listener, **options) -> None:
    with pytest.raises(MemoryError):
        compare(*listeners, Crash(at), directory=directory, **options)


def mmfl_command(*arguments: str, cwd: Path, before: str = "") -> subprocess.CompletedProcess:
    variables = {**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true"}
    return prompt.mmfl(*arguments, cwd=cwd, program=f"{before}\n{prompt.PROGRAM}", env=variables)


def events(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """What TensorBoard shows of a run: by name, the value at each step."""
    found = event_accumulator.EventAccumulator(str(folder)).Reload()
    return {tag: [(event.step, event.value) for event in found.Scalars(tag)] for tag in found.Tags()["scalars"]}


def hyperparameters(folder: Path) -> dict[str, str | float]:
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    found = event_accumulator.EventAccumulator(str(folder)).Reload().PluginTagToContent("hparams")
    start = HParamsPluginData.FromString(found["_hparams_/session_start_info"]).session_start_info
    return {key: value.string_value or value.number_value for key, value in start.hparams.items()}


@pytest.fixture(scope="module")
def database(tmp_path_factory) -> str:
    return f"sqlite:///{tmp_path_factory.mktemp('mlflow')}/mlflow.db"


def runs_of(database: str, experiment: str) -> dict[str, list]:
    """MLflow's runs in an experiment, by name."""
    client = mlflow.MlflowClient(database)
    found = client.search_runs([client.get_experiment_by_name(experiment).experiment_id])
    return {name: [run for run in found if run.info.run_name == name] for name in {run.info.run_name for run in found}}


def history(database: str, run, name: str) -> list[tuple[int, float]]:
    found = mlflow.MlflowClient(database).get_metric_history(run.info.run_id, name)
    return [(metric.step, metric.value) for metric in found]


def test_importing_mmfl_imports_no_tracker():
    names = ["tensorboard", "torch.utils.tensorboard", "mlflow", "wandb", "IPython"]
    program = f"import sys, mmfl; mmfl.trackers.TensorBoard; print([name for name in {names} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=600, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(("name", "make"), trackers.TRACKERS.items())
def test_a_tracker_that_is_not_installed_says_how_to_install_it(monkeypatch, name, make):
    for module in [known for known in sys.modules if name in known.split(".") and not known.startswith("mmfl")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, name, None)
    with refused(f"tracker '{name}' needs '{name}'", "pip install 'mmfl[trackers]'"):
        make()


def test_tensorboard_has_a_run_for_each_replica_with_every_number_and_the_configuration(tmp_path):
    made = compare(trackers.TensorBoard(tmp_path))
    assert {path.name for path in tmp_path.iterdir()} == {f"{m}-seed-{s}" for m in METHODS for s in (0, 1)}
    for run in made:
        shown = events(tmp_path / f"{run.method}-seed-{run.seed}")
        expected = {
            "overall/mean": run.summary["mean"],
            "overall/worst": run.summary["worst"],
            "metric/plain": run.accuracy["plain"],
            "loss/north_2fsouth _28_b0_29": run.loss["north/south (°)"],
            "step_size/plain": run.step_size["plain"],
            "cost/trainings": run.costs["trainings"],
            "cost/forward_passes": run.costs["forward_passes"],
            "cost/bytes_up": run.costs["bytes_up"],
        }
        for name, column in expected.items():
            assert shown[name] == [(t, pytest.approx(value, rel=1e-6)) for t, value in column.items()], name
        assert len(shown["seconds"]) == ROUNDS
        assert ("beta_mean/plain" in shown) == (run.method == "mmfl-stalevre")
        given = hyperparameters(tmp_path / f"{run.method}-seed-{run.seed}")
        assert (given["method"], given["seed"], given["rounds"]) == (run.method, run.seed, ROUNDS)
        assert (given["federation.clients"], given["tasks.plain.lr"]) == (8, 0.25)


@pytest.mark.parametrize("again", [True, False], ids=["by the same tracker", "by another"])
def test_another_run_in_the_same_folder_of_tensorboard_leaves_the_first_alone(tmp_path, again):
    board = trackers.TensorBoard(tmp_path)
    for rounds in (2, 3):
        compare(board if again else trackers.TensorBoard(tmp_path), rounds=rounds, seeds=1)
    assert len(events(tmp_path / "random-seed-0")["seconds"]) == 2
    assert len(events(tmp_path / "random-seed-0-2")["seconds"]) == 3


@pytest.mark.parametrize("at", [1, 5])
def test_tensorboard_shows_every_round_of_a_resumed_run_once(tmp_path, at):
    """Crashed before the first checkpoint, or after a round that the checkpoint has not."""
    crash(at, tmp_path / "run", trackers.TensorBoard())
    for run in compare(trackers.TensorBoard(), directory=tmp_path / "run", resume=True):
        shown = events(tmp_path / "run" / "tensorboard" / f"{run.method}-seed-{run.seed}")["overall/mean"]
        assert shown == [(t, pytest.approx(value)) for t, value in run.summary["mean"].items()]


def test_mlflow_has_a_run_for_each_replica_with_every_number_and_the_configuration(database):
    made = compare(trackers.MLflow("by hand", database))
    found = runs_of(database, "by hand")
    assert set(found) == {f"{m}-seed-{s}" for m in METHODS for s in (0, 1)}
    for run in made:
        (kept,) = found[f"{run.method}-seed-{run.seed}"]
        assert kept.info.status == "FINISHED"
        assert (kept.data.params["method"], kept.data.params["seed"]) == (run.method, str(run.seed))
        assert (kept.data.params["tasks.plain.lr"], kept.data.params["rate"]) == ("0.25", "0.5")
        assert history(database, kept, "metric/plain") == list(run.accuracy["plain"].items())
        assert history(database, kept, "cost/trainings") == list(run.costs["trainings"].items())
        assert ("beta_mean/plain" in kept.data.metrics) == (run.method == "mmfl-stalevre")


@pytest.mark.parametrize("at", [1, 5])
def test_mlflow_goes_on_with_the_runs_of_a_resumed_experiment(tmp_path, database, at):
    directory = tmp_path / f"stopped-at-{at}"
    crash(at, directory, trackers.MLflow(uri=database))
    before = runs_of(database, directory.name)
    assert {run.info.status for runs in before.values() for run in runs} == {"KILLED"}
    made = compare(trackers.MLflow(uri=database), directory=directory, resume=True)
    after = runs_of(database, directory.name)
    for run in made:
        (kept,) = after[f"{run.method}-seed-{run.seed}"]
        assert kept.info.run_id == before[kept.info.run_name][0].info.run_id
        assert kept.info.status == "FINISHED"
        assert history(database, kept, "overall/mean") == list(run.summary["mean"].items())


def test_mlflow_is_told_what_came_before_it_was_asked_for(tmp_path, database):
    crash(5, tmp_path / "late")
    compare(trackers.MLflow(uri=database), directory=tmp_path / "late", resume=True)
    (kept,) = runs_of(database, "late")["random-seed-0"]
    assert [step for step, _ in history(database, kept, "seconds")] == list(range(1, ROUNDS + 1))


def test_another_experiment_of_the_same_name_has_runs_of_its_own(tmp_path, database):
    tracker = trackers.MLflow(uri=database)
    for folder in ("here", "there"):
        compare(tracker, directory=tmp_path / folder / "same", rounds=2, seeds=1)
    compare(trackers.MLflow("same", database), rounds=2, seeds=1)
    assert [len(runs) for runs in runs_of(database, "same").values()] == [3, 3]


def test_the_command_line_tracks_what_it_is_told_and_goes_on_after_a_kill(tmp_path):
    """Killed in the third of four rounds; `mmfl resume` finds the trackers in the run's configuration."""
    kill = f"""
import os, mmfl.training.loop as training
evaluate, calls = training.Dispatch.evaluate, []
def deadly(*args):
    calls.append(1)
    return os.kill(os.getpid(), {signal.SIGKILL}) if len(calls) == 3 else evaluate(*args)
training.Dispatch.evaluate = deadly
"""
    track = ["--track", "tensorboard", "--track", "mlflow"]
    killed = mmfl_command("run", *SMALL, *track, "--set", "checkpoint_every=1", cwd=tmp_path, before=kill)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    resumed = mmfl_command("resume", "run", cwd=tmp_path)
    assert resumed.returncode == 0, resumed.stderr
    shown = events(tmp_path / "run" / "tensorboard" / "mfa-rr-seed-0")
    assert [step for step, _ in shown["metric/copy-b"]] == [1, 2, 3, 4]
    database = f"sqlite:///{tmp_path / 'mlflow.db'}"
    (kept,) = runs_of(database, "run")["mfa-rr-seed-0"]
    assert [step for step, _ in history(database, kept, "metric/copy-b")] == [1, 2, 3, 4]
    assert kept.data.params["federation.availability"] == "always"
    assert kept.data.params["tasks.copy-a.data.block"] == "4"


def test_of_several_processes_only_the_first_writes_and_speaks(tmp_path):
    done = prompt.together(2, "run", *SMALL, "--track", "tensorboard", cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count("cost of a round") == 1, "only the first process speaks"
    folder = tmp_path / "run" / "tensorboard" / "mfa-rr-seed-0"
    assert len(list(folder.iterdir())) == 1
    assert len(events(folder)["seconds"]) == 4


def test_a_tracker_that_fails_on_the_way_is_a_warning_and_training_goes_on(tmp_path, caplog):
    class Full(trackers.TensorBoard):
        def log(self, run, round, values):
            if round == 3:
                raise OSError("no space left on device")
            super().log(run, round, values)

    made = compare(Full(tmp_path))
    assert len(made.runs[0].records) == ROUNDS
    assert [record.message for record in caplog.records if record.levelname == "WARNING"] == [
        "tracker 'tensorboard' stopped in round 3: no space left on device"
    ]
    assert len(events(tmp_path / "random-seed-0")["seconds"]) == 2


def test_a_configuration_names_trackers_with_their_options(tmp_path):
    (tmp_path / "mine.py").write_text("import mmfl\nclass Mine(mmfl.Listener):\n    pass\n")
    specs = [{"name": "tensorboard", "folder": str(tmp_path)}, "mine.Mine"]
    config = parse({"trackers": specs, "python_path": str(tmp_path)}, "here")
    config.add_python_path()
    board, mine = trackers.make_trackers(config.trackers)
    assert isinstance(board, trackers.TensorBoard)
    assert board.folder == str(tmp_path)
    assert type(mine).__name__ == "Mine"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["tensorbord"], ["unknown tracker 'tensorbord'", "did you mean 'tensorboard'?"]),
        ([{"name": "mlflow", "url": "x"}], ["tracker 'mlflow': unknown option 'url'", "did you mean 'uri'?"]),
        ([{"folder": "x"}], ["tracker: a table needs a 'name'"]),
        (["pathlib.Path"], ["tracker 'pathlib.Path' gives a", "expected an mmfl listener"]),
        ("tensorboard", ["here: 'trackers' is 'tensorboard'", "list"]),
        ([3], ["here: 'trackers.0' is 3"]),
    ],
)
def test_wrong_trackers_are_refused(given, words):
    with refused(*words):
        trackers.make_trackers(parse({"trackers": given}, "here").trackers)


def test_a_tracker_that_cannot_start_says_why_before_training(tmp_path):
    with refused("tracker 'tensorboard' has no folder"):
        compare(trackers.TensorBoard())
    with refused("tracker 'mlflow' cannot start", "bogus"):
        compare(trackers.MLflow(uri="bogus://nowhere"))
    (tmp_path / "file").touch()
    with refused("tracker 'tensorboard' cannot start"):
        compare(trackers.TensorBoard(tmp_path / "file"), directory=tmp_path / "none")
    assert not (tmp_path / "none").exists()
    compare(directory=tmp_path / "run", rounds=2)
    (tmp_path / "run" / "mlflow.json").write_text("{")
    with refused("tracker 'mlflow' cannot start"):
        compare(trackers.MLflow(), directory=tmp_path / "run", rounds=2, resume=True)


def stored(path: Path):
    """The records in a file of Weights & Biases: blocks of 32 KiB, pieces with a header of seven bytes."""
    from wandb.proto.wandb_internal_pb2 import Record

    content, place, whole = path.read_bytes(), 7, b""
    while place + 7 <= len(content):
        if (left := 32768 - place % 32768) < 7:
            place += left
            continue
        length, kind = struct.unpack("<HB", content[place + 4 : place + 7])
        whole += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # the only or the last piece
            yield Record.FromString(whole)
            whole = b""


def test_wandb_waits_long_enough_for_its_service_to_start_on_a_busy_machine(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb", reason="wandb is not installed")
    asked = {}
    monkeypatch.setattr(wandb, "init", lambda **options: asked.update(options))
    trackers.WandB(folder=tmp_path).start("random-seed-0", {})
    assert min(asked["settings"].x_service_wait, asked["settings"].init_timeout) >= 300


def test_wandb_writes_offline_runs_and_a_resumed_one_whole(tmp_path, monkeypatch):
    pytest.importorskip("wandb", reason="wandb is not installed")
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    crash(5, tmp_path / "run", trackers.WandB(), seeds=1)
    time.sleep(1.1)  # offline runs are told apart by the second in which they began
    made = compare(trackers.WandB(), directory=tmp_path / "run", seeds=1, resume=True)
    ids = json.loads((tmp_path / "run" / "wandb.json").read_text())
    for run in made:
        name = f"{run.method}-seed-0"
        *_, last = sorted((tmp_path / "run" / "wandb").glob(f"offline-run-*-{ids[name]}/*.wandb"))
        records = list(stored(last))
        about = next(record.run for record in records if record.HasField("run"))
        assert (about.display_name, about.run_group, about.project) == (name, "run", "mmfl")
        assert ("method", json.dumps(run.method)) in [(item.key, item.value_json) for item in about.config.update]
        rows = [record.history for record in records if record.HasField("history")]
        values = [{item.key or item.nested_key[0]: item.value_json for item in row.item} for row in rows]
        assert [row.step.num for row in rows] == list(range(1, ROUNDS + 1))
        assert [json.loads(value["overall/mean"]) for value in values] == pytest.approx(run.summary["mean"].tolist())
