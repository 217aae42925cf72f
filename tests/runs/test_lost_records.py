"""Records that were deleted, written over or doubled: said, and never counted, by whatever reads them."""

import json
import shutil

import pytest

import mmfl
from conftest import refused, toy_task
from mmfl.runs.listing import list_runs

FOREIGN = (b"\xff\xfe garbage\n", b"[1, 2]\n", b'{"a": 1}\n')


@pytest.fixture(scope="module")
def several(tmp_path_factory):
    """Two methods with two seeds, six rounds."""
    path = tmp_path_factory.mktemp("runs") / "several"
    compare(path)
    return path


def compare(path, **options):
    federation = mmfl.Federation([toy_task()], clients=4)
    return mmfl.compare(federation, ["random", "full"], 6, 0.5, 2, directory=path, checkpoint_every=4, **options)


def edited(run, path, edit):
    """A copy of a run whose lines of records were edited; they come four a round. None: there is no file."""
    shutil.copytree(run, path)
    lines = edit((path / "metrics.jsonl").read_bytes().splitlines(keepends=True))
    (path / "metrics.jsonl").unlink()
    if lines is not None:
        (path / "metrics.jsonl").write_bytes(b"".join(lines))
    return path


def without(*numbers):
    return lambda lines: [line for n, line in enumerate(lines) if n not in numbers]


def broken(number, text=b"nonsense\n"):
    return lambda lines: [*lines[:number], text, *lines[number + 1 :]]


def other_seconds(line):
    return json.dumps(json.loads(line) | {"seconds": 99.0}).encode() + b"\n"


@pytest.mark.parametrize(
    ("edit", "problem"),
    [
        (lambda lines: None, "rounds 1-6 are missing"),  # and no file at all
        (lambda lines: [], "rounds 1-6 are missing"),
        *((lambda lines, text=text: [text], "rounds 1-6 are missing (line 1 is not a record)") for text in FOREIGN),
        (lambda lines: [*lines[:12], b"garbage\n"], "rounds 4-6 are missing (line 13 is not a record)"),
        (without(*range(8, 12)), "round 3 is missing"),
        (without(*range(4, 12), *range(16, 20)), "rounds 2-3, 5 are missing"),
        (without(*range(20, 24)), "round 6 is missing"),
        (without(23), "round 6 of full with seed 1 is missing"),
        (without(9), "round 3 of random with seed 1 is missing"),
        (without(9, 14), "round 3 of random with seed 1 is missing; round 4 of full with seed 0 is missing"),
        (without(*range(1, 24, 4)), "rounds 1-6 of random with seed 1 are missing"),
        (lambda lines: lines[0::4] + lines[2::4], "there are records of 2 methods and seeds in place of 4"),
        (broken(9), "round 3 of random with seed 1 is missing (line 10 is not a record)"),
        (
            broken(9, b'{"round": 3, "method": "random", "se'),  # and the next line after it
            "round 3 of random with seed 1 is missing; round 3 of full with seed 0 is missing (line 10 is not a",
        ),
        (lambda lines: broken(9, lines[9][:99] + b"\n")(lines), "with seed 1 is missing (line 10 is not a record)"),
        (
            lambda lines: [*lines, other_seconds(lines[9])],
            "round 3 of random with seed 1 is recorded twice, with different numbers",
        ),
    ],
)
def test_what_is_missing_doubled_or_broken_is_said_and_nothing_is_shown(several, tmp_path, edit, problem):
    path = edited(several, tmp_path / "run", edit)
    before = [(file, file.read_bytes()) for file in sorted(path.glob("*.jsonl"))]
    with refused(f"{path / 'metrics.jsonl'} is damaged: ", problem, "\nPut the file back as it was, or start a new"):
        mmfl.load(path)
    assert [(run.condition, problem in run.reason) for run in list_runs(tmp_path)] == [("unreadable", True)]
    with refused(problem, "but the checkpoint is of round 6"):
        compare(path, resume=True)
    assert [(file, file.read_bytes()) for file in sorted(path.glob("*.jsonl"))] == before


@pytest.mark.parametrize(("right", "wrong"), [(b'"cost": {', b'"cost": 1{'), (b'"tasks": {', b'"tasks": 3, "t": {')])
def test_a_letter_changed_within_a_record_is_noticed(several, tmp_path, right, wrong):
    path = edited(several, tmp_path / "run", lambda lines: broken(9, lines[9].replace(right, wrong))(lines))
    with refused("round 3 of random with seed 1 is missing (line 10 is not a record)"):
        mmfl.load(path)


@pytest.mark.parametrize(
    ("edit", "note"),
    [
        (lambda lines: [*lines, lines[9]], "round 3 of random with seed 1 is recorded twice with the same numbers"),
        (lambda lines: lines[:12] + lines[8:], "round 3 is recorded twice with the same numbers, and counted once"),
        (lambda lines: [*lines[:5], b"nonsense\n", *lines[5:]], "line 6 is not a record, and left out"),
    ],
)
def test_what_can_be_repaired_is_with_a_warning(several, tmp_path, caplog, edit, note):
    path = edited(several, tmp_path / "run", edit)
    loaded = mmfl.load(path)
    assert [len(run.records) for run in loaded] == [6] * 4
    assert loaded.table().equals(mmfl.load(several).table())
    (warning,) = [record.getMessage() for record in caplog.records]
    assert note in warning
    (run,) = list_runs(tmp_path)
    assert run.condition == "finished"
    assert note in run.notes[0]
    compare(path, resume=True)
    assert len((path / "metrics.jsonl").read_bytes().splitlines()) == 24


def test_lines_in_another_order_are_the_same_run(several, tmp_path, caplog):
    path = edited(several, tmp_path / "run", lambda lines: lines[::-1])
    assert mmfl.load(path).runs[0].accuracy.index.tolist() == [1, 2, 3, 4, 5, 6]
    assert not caplog.records


@pytest.mark.parametrize("cut", [1, 30, "newline"])
def test_a_last_line_cut_short_by_a_crash_is_normal(several, tmp_path, caplog, cut):
    """Its run was killed, and so says nothing of its end."""
    path = edited(several, tmp_path / "run", lambda lines: [*lines[:-1], lines[-1][: -1 if cut == "newline" else cut]])
    told = json.loads((path / "state.json").read_text())
    (path / "state.json").write_text(json.dumps(told | {"condition": "running", "pid": 1, "birth": "gone"}))
    loaded = mmfl.load(path)
    assert [len(run.records) for run in loaded] == [6, 6, 6, 6 if cut == "newline" else 5]
    assert [run.condition for run in list_runs(tmp_path)] == ["lost"]
    assert not caplog.records


def test_records_after_the_checkpoint_may_be_damaged_for_they_are_made_again(several, tmp_path):
    path = edited(several, tmp_path / "run", broken(22))
    for newest in (path / "checkpoint").glob("round-000006.*"):
        newest.unlink()
    compare(path, resume=True)
    assert len(mmfl.load(path).runs[3].records) == 6


def test_a_run_under_way_is_read_as_far_as_it_is(tmp_path):
    seen = []

    class Reading(mmfl.Listener):
        def round(self, records):
            (run,) = list_runs(tmp_path)
            seen.append((run.condition, run.round, [len(each.records) for each in mmfl.load(tmp_path / "run")]))

    compare(tmp_path / "run", listeners=[Reading()])
    assert seen == [("running", t, [t] * 4) for t in range(1, 7)]


def test_the_list_parses_no_records_but_the_last_of_runs_that_are_whole(several, tmp_path, monkeypatch):
    lines = (several / "metrics.jsonl").read_bytes().splitlines()
    more = [json.dumps(json.loads(line) | {"round": t}) for t in range(7, 101) for line in lines[-4:]]
    path = edited(several, tmp_path / "run", lambda before: [*before, *(f"{line}\n".encode() for line in more)])
    parsed = []
    loads = json.loads
    monkeypatch.setattr("mmfl.runs.records.json.loads", lambda text: (parsed.append(text), loads(text))[1])
    assert [run.round for run in list_runs(path)] == [100]
    assert 0 < len(parsed) < 100  # of 400


def test_a_report_of_a_damaged_run_ends_with_code_2_and_writes_nothing(several, tmp_path, answer):
    path = edited(several, tmp_path / "run", broken(9))
    for command in (["report", str(path)], ["report", str(path), "--json"]):
        code, out, err = answer(*command)
        assert (code, out) == (2, "")
        problem = "is damaged: round 3 of random with seed 1 is missing (line 10 is not a record)."
        assert err.splitlines() == [
            f"error: {path / 'metrics.jsonl'} {problem}",
            "Put the file back as it was, or start a new run.",
        ]
    assert not (path / "report.html").exists()


def test_the_list_says_below_what_is_wrong(several, tmp_path, answer):
    edited(several, tmp_path / "runs" / "a", broken(9))
    edited(several, tmp_path / "runs" / "b", lambda lines: [*lines, lines[-1]])
    code, out, _ = answer("runs", str(tmp_path / "runs"))
    assert code == 0
    first, second = out.splitlines()[-2:]
    assert first.startswith(f"{tmp_path}/runs/a: metrics.jsonl is damaged: round 3 of random with seed 1 is missing")
    assert second == (
        f"{tmp_path}/runs/b: round 6 of full with seed 1 is recorded twice with the same numbers, and counted once"
    )
    reasons = [run["reason"] for run in json.loads(answer("runs", str(tmp_path / "runs"), "--json")[1])]
    assert ["damaged" in reason for reason in reasons] == [True, False]
    assert "recorded twice" in reasons[1]
