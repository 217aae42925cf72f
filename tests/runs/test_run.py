"""Runs: frames, the directory, checkpoints, and what survives a crash."""

import itertools
import json
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch import nn
from toy_runs import Heard

import mmfl
from conftest import refused
from mmfl.runs import checkpoint
from mmfl.runs.directory import RunDirectory
from mmfl.runs.snapshots import CheckpointPace


def federation(clients: int = 8) -> mmfl.Federation:
    data = mmfl.data.digits()
    return mmfl.Federation([mmfl.Task(n, mmfl.models.LogisticRegression, data, lr=0.2) for n in "ab"], clients)


def compare(path, clients=8, **options) -> mmfl.Comparison:
    settings = {"methods": ["mfa-rr", "mmfl-lvr"], "rounds": 6, "rate": 0.5, "seeds": 2, "checkpoint_every": 2}
    return mmfl.compare(federation(clients), directory=path, **{**settings, **options})


def test_frames_have_a_row_per_round_and_a_column_per_task():
    run = mmfl.train(federation(), "random", rounds=4, rate=0.5)
    assert run.accuracy.shape == run.loss.shape == run.step_size.shape == (4, 2)
    assert run.accuracy.index.tolist() == [1, 2, 3, 4]
    assert (run.summary["worst"] <= run.summary["mean"]).all()
    drawn = sum(len(clients) for r in run.records for clients, _ in r.drawn.values())
    assert run.costs["trainings"].sum() == drawn
    assert run.participation.to_numpy().sum() == run.costs["processors"].sum()
    assert run.final(2)["a"] == pytest.approx(run.accuracy["a"].iloc[-2:].mean())


def test_a_frame_has_gaps_where_a_quantity_was_not_measured_and_knows_no_other_names():
    run = mmfl.train(federation(), "mmfl-stalevr", rounds=3, rate=0.5)
    betas = run.frame("beta_mean")
    assert betas.loc[1].isna().all()
    assert betas.loc[3].notna().any()
    with pytest.raises(mmfl.UserError, match="did you mean 'beta_mean'"):
        run.frame("beta_maen")


def test_a_trained_module_scores_what_the_run_recorded():
    run = mmfl.train(federation(), "full", rounds=3)
    data = mmfl.data.digits()
    right = (run.module("a")(data.x_test).argmax(1) == data.y_test).float().mean()
    assert float(right) == pytest.approx(run.accuracy["a"].iloc[-1])
    with pytest.raises(mmfl.UserError, match="unknown task 'c'"):
        run.module("c")


def test_the_table_relates_every_method_to_full_participation():
    result = mmfl.compare(federation(), ["random", "full"], rounds=3, rate=0.5, seeds=2)
    table, means = result.table(), [run.final()["mean"] for run in result.of("random")]
    assert table.loc["full", "relative"] == 1.0
    assert table.loc["full", "trainings"] == 16
    assert table.loc["random", "mean"] == pytest.approx(np.mean(means))
    assert table.loc["random", "spread"] == pytest.approx(np.std(means, ddof=1))
    assert table.loc["random", "spread"] > 0


def test_a_directory_gives_back_the_run(tmp_path):
    made = compare(tmp_path / "run")
    kept = sorted(path.name for path in (tmp_path / "run" / "checkpoint").iterdir())
    assert kept == [f"round-00000{t}.{end}" for t in (4, 6) for end in ("json", "safetensors")]
    loaded = mmfl.load(tmp_path / "run")
    assert loaded.methods == made.methods
    for a, b in zip(made, loaded, strict=True):
        assert (a.method, a.seed) == (b.method, b.seed)
        assert a.accuracy.equals(b.accuracy)
        assert a.participation.equals(b.participation)
    with pytest.raises(mmfl.UserError, match="without weights"):
        loaded.runs[0].module("a")


@pytest.mark.parametrize("stop", [1, 2, 3, 5])
def test_a_resumed_run_ends_with_the_same_bits_and_one_unbroken_record(tmp_path, stop):
    """Stopped by an exception in the middle of round `stop + 1`; checkpoints are written every second round."""

    whole = compare(tmp_path / "whole")
    with pytest.raises(MemoryError):
        compare(tmp_path / "broken", listeners=[Heard(stop, Mock(side_effect=MemoryError))])
    resumed = compare(tmp_path / "broken", resume=True)
    for a, b in zip(whole, resumed, strict=True):
        assert all(torch.equal(x, y) for x, y in zip(a.weights, b.weights, strict=True))
    lines = [(r.method, r.seed, r.round) for r in RunDirectory(tmp_path / "broken").records()]
    assert lines == [(r.method, r.seed, r.round) for r in RunDirectory(tmp_path / "whole").records()]


def test_resuming_a_finished_run_changes_nothing_and_more_rounds_go_on(tmp_path):
    done = compare(tmp_path / "run")
    again = compare(tmp_path / "run", resume=True)
    assert torch.equal(done.runs[0].weights[0], again.runs[0].weights[0])
    longer = compare(tmp_path / "run", resume=True, rounds=8)
    assert len(longer.runs[0].records) == 8
    direct = compare(tmp_path / "direct", rounds=8)
    assert torch.equal(longer.runs[-1].weights[1], direct.runs[-1].weights[1])


def cut(path):
    path.write_bytes(path.read_bytes()[:-10])


@pytest.mark.parametrize(
    ("end", "damage", "reason"),
    [
        ("safetensors", cut, "the checksum of its arrays does not agree"),
        ("safetensors", Path.unlink, "round-000006.safetensors is missing"),
        ("json", cut, "its JSON is cut short or changed"),
        (
            "json",
            lambda path: path.write_text(path.read_text().replace('"round": 6', '"round": 5')),
            "the checksum of its JSON does not agree",
        ),
        (
            "json",
            lambda path: path.write_text(path.read_text().replace('"sha256"', '"sha257"').replace("checksum", "other")),
            "its JSON lacks 'sha256'",
        ),
    ],
)
def test_a_damaged_checkpoint_gives_way_to_the_one_before_with_a_warning(tmp_path, caplog, end, damage, reason):
    whole = compare(tmp_path / "run")
    newest = tmp_path / "run" / "checkpoint" / f"round-000006.{end}"
    damage(newest)
    resumed = compare(tmp_path / "run", resume=True)
    assert torch.equal(whole.runs[0].weights[0], resumed.runs[0].weights[0])
    assert len(resumed.runs[0].records) == 6
    (warning,) = [record.getMessage() for record in caplog.records]
    assert warning.startswith(f"damaged checkpoint {newest.with_suffix('')}: {reason}")
    assert warning.endswith("; going on from the one before, after round 4")
    assert f"warning: {warning}" in (tmp_path / "run" / "log.txt").read_text()


def test_a_checkpoint_without_a_checksum_of_its_json_as_earlier_versions_wrote_it_is_read(tmp_path, caplog):
    compare(tmp_path / "run")
    for path in (tmp_path / "run" / "checkpoint").glob("*.json"):
        head = json.loads(path.read_text())
        del head["checksum"]
        path.write_text(json.dumps(head))
    compare(tmp_path / "run", resume=True)
    assert not caplog.records


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'{"format": "other"}', "truncate"])
def test_checkpoints_that_are_all_damaged_are_refused(tmp_path, damage):
    compare(tmp_path / "run")
    for head in (tmp_path / "run" / "checkpoint").glob("*.json"):
        head.write_bytes(head.read_bytes()[:200] if damage == "truncate" else damage)
    with pytest.raises(mmfl.UserError, match="no checkpoint can be read"):
        compare(tmp_path / "run", resume=True)


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    compare(tmp_path / "run")
    for change in ({"rate": 0.25}, {"clients": 9}):
        with refused("belongs to another run"):
            compare(tmp_path / "run", resume=True, **change)


def test_a_run_goes_on_only_with_the_same_frozen_parameters(tmp_path):
    def train(base: nn.Module, **options) -> mmfl.Run:
        task = mmfl.Task("t", lambda: nn.Sequential(nn.Flatten(), base, nn.Linear(4, 10)), mmfl.data.digits())
        return mmfl.train(mmfl.Federation([task], 4), "full", directory=tmp_path / "run", **options)

    base = nn.Linear(64, 4).requires_grad_(False)
    train(base, rounds=1)
    with refused("belongs to another run", "frozen parameters"):
        train(nn.Linear(64, 4).requires_grad_(False), rounds=2, resume=True)
    assert len(train(base, rounds=2, resume=True).records) == 2


def test_a_directory_that_holds_something_is_never_written_over(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with refused("exists; choose another"):
        compare(tmp_path)
    with refused("not a run directory"):
        compare(tmp_path / "nothing", resume=True)


@dataclass
class Inner:
    table: np.ndarray
    name: str


@dataclass
class Memory:
    weights: torch.Tensor
    inner: Inner
    many: list
    nothing: None = None


def test_a_state_of_arrays_texts_and_dataclasses_survives_packing(tmp_path):
    state = Memory(torch.randn(3, 2), Inner(np.array([True, False]), "x"), [1, 2.5, np.int64(7), torch.arange(3)])
    like = Memory(torch.zeros(3, 2), Inner(np.zeros(2, bool), ""), [0, 0.0, 0, torch.zeros(3)])
    checkpoint.write(tmp_path, 3, "mark", state)
    round, back = checkpoint.read(tmp_path, "mark", like)
    assert round == 3
    assert torch.equal(back.weights, state.weights)
    assert isinstance(back.inner, Inner)
    np.testing.assert_array_equal(back.inner.table, state.inner.table)
    assert back.many[:3] == [1, 2.5, 7]
    assert torch.equal(back.many[3], torch.arange(3))


def test_what_cannot_be_saved_plainly_is_refused_not_pickled(tmp_path):
    with pytest.raises(TypeError, match="not set"):
        checkpoint.write(tmp_path, 1, "mark", {"a": {1, 2}})


def test_plots_are_drawn_for_one_run_and_for_many(tmp_path):
    compare(None).plot(tmp_path / "many.png")
    mmfl.train(federation(), "random", rounds=2, rate=0.5, evaluate_every=2).plot(tmp_path / "one.png")
    for name in ("many.png", "one.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")


def test_slow_checkpoints_are_written_as_often_as_a_tenth_of_the_time_allows():
    now = [0.0]
    written, pace = [], CheckpointPace(every=2, clock=lambda: now[0])

    def save(seconds: float):
        written.append(round(now[0]))
        now[0] += seconds

    for t in range(1, 41):
        now[0] += 1.0
        if pace.due(t):
            pace.write(lambda: save(0.5 if len(written) < 3 else 2.0))
    assert written[:4] == [2, 4, 7, 10]  # quick ones every second round
    assert all(later - earlier >= 18 for earlier, later in itertools.pairwise(written[3:]))
    assert len(written) > 4
