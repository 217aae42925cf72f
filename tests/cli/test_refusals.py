"""What is refused is named as it was typed, at once, and for the reason that holds."""

import pytest

LONG = "a" * 300
TASK = 'tasks.digits.name="a\\u0000b"'
NAMED = 'method={name="a\\u0000b", allocation="full", aggregation="average"}'


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "lvr-3taks"], ["error: configuration 'lvr-3taks' does not exist", "did you mean 'lvr-3tasks'?"]),
        (["run", "missing.toml"], ["error: configuration 'missing.toml' does not exist, as a TOML file or as a"]),
        (
            ["data", "plot", "--set", "tasks.digits.partition=labls"],
            ["error: the embedded default: task 'digits': unknown partition 'labls'"],
        ),
        (["data", "plot", "--seed", "-1"], ["error: --seed is -1; expected 0 or above."]),
        (["data", "plot", "--out", LONG], ["error: pictures in 'aaa", "...' cannot be written: File name too long."]),
        (["data", "plot", "--out", "file"], ["error: pictures in 'file' cannot be written: File exists."]),
        (["run", "--set", "method=mmfl-lrv"], ["error: unknown method 'mmfl-lrv': did you mean 'mmfl-lvr'?"]),
        (["run", "--set", "tasks.digits.lr=fast"], ["error: the embedded default: 'tasks.digits.lr' is 'fast'"]),
        (["run", "--set", "rate=1.5", "--out", "unused"], ["error: rate is 1.5"]),
        (["run", "--out", "."], ["error: run directory '.' exists"]),
        (["run", "--out", "file"], ["error: run directory 'file' cannot be made: Not a directory; expected a new"]),
        (["run", "--out", "file/run"], ["error: run directory 'file/run' cannot be made: Not a directory"]),
        (["run", "--out", LONG], ["error: run directory 'aaa", "...' cannot be made: File name too long"]),
        (["compare", "--out", "\udcff"], ["error: run directory '\\udcff': the name is not valid Unicode"]),
        (
            ["run", "--set", TASK, "--out", "unused"],
            ["error: the embedded default: task 'a\\x00b': the name has a control character"],
        ),
        (["run", "--set", NAMED, "--out", "unused"], ["error: method 'a\\x00b': the name has a control character"]),
        (["run", "--device", "tpu9", "--out", "unused"], ["error: "]),
        (["compare", "--methods", ","], ["error: no methods given"]),
        (["sweep", "--out", "unused"], ["error: sweep: the grid is empty; expected keys with values to try"]),
        (["sweep", "--grid", "rate", "--out", "unused"], ["error: --grid rate: expected key=value,value"]),
        (["sweep", "--grid", "rate=", "--out", "unused"], ["error: sweep: the grid has no values for 'rate'"]),
        (
            ["sweep", "--grid", "rat=1", "--out", "unused"],
            ["error: the embedded default with rat=1: unknown key", "rate"],
        ),
        (["sweep", "--grid", "rate=0.5,2", "--out", "unused"], ["error: sweep, rate=2: rate is 2.0; expected"]),
        (["sweep", "--grid", "tasks.digits.lr=fast", "--out", "unused"], ["error: the embedded default with lr=fast"]),
        (["sweep", "--grid", "rate=1", "--grid", "rate=0.5"], ["error: --grid rate=0.5: 'rate' is given twice"]),
        (["sweep", "--grid", "rate=1", "--methods", ",", "--out", "unused"], ["error: no methods given"]),
        (["sweep", "--grid", "rate=1", "--seeds", "20000"], ["error: sweep: the grid has 1 point x 1 method x 20,000"]),
        (["sweep", "--grid", "rate=1", "--out", "."], ["error: run directory '.' exists"]),
        (["sweep", "--grid", "rate=1", "--out", "file"], ["error: run directory 'file' cannot be made"]),
        (["resume", LONG], ["error: run directory 'aaa", "...' cannot be read: File name too long."]),
        (["resume", "nowhere"], ["error: 'nowhere' is not a run directory"]),
        (["report", "nowhere"], ["error: 'nowhere' is not a run directory"]),
        (["export", "nowhere", "--to", "model.pt"], ["error: 'nowhere' is not a run directory"]),
        (["report", ".", "--export", "pgn"], ["error: --export: unknown format 'pgn': did you mean 'png'?"]),
        (["runs", LONG], ["error: 'aaa", "...': File name too long."]),
        (["runs", "file"], ["error: 'file' is a file; expected one that holds run directories."]),
        (["dashboard", LONG], ["error: 'aaa", "...': File name too long."]),
        (["dashboard", "file"], ["error: dashboard: folder 'file' is a file; expected one with runs"]),
        (["dashboard"], ["error: dashboard: folder 'runs' does not exist; expected one with runs"]),
        (["dashboard", "--port", "99999"], ["error: dashboard: port is 99999; expected 1 to 65535"]),
        (["dashboard", ".", "--port", "0"], ["error: dashboard: port is 0; expected 1 to 65535"]),
        (["dashboard", ".", "--host", "0.0.0.0"], ["error: dashboard: host '0.0.0.0' can be reached by others"]),
        *(
            (["dashboard", ".", "--host", host], [f"error: dashboard: host '{host}' is not an IPv4 loopback address"])
            for host in ("foo", "::1")
        ),
        (["reproduce", "mfa-fig1", "--json"], ["error: reproduce: --json goes with --list."]),
        (["deploy", "missing.py", "--local", "2"], ["error: ", "missing.py"]),
        (["comapre"], ["No such command 'comapre': did you mean 'compare'?"]),
        (["data", "plt"], ["did you mean 'plot'?"]),
        (["zzz"], ["expected one of: backup, compare, control, dashboard, data,"]),
        (["run", "--ruonds", "3"], ["--rounds"]),
        (["run", "--rounds", "ten"], ["--rounds", "integer"]),
    ],
)
def test_mistakes_end_with_code_2_one_or_two_lines_and_no_traceback(tmp_path, monkeypatch, answer, arguments, words):
    (tmp_path / "file").touch()
    monkeypatch.chdir(tmp_path)
    code, _, errors = answer(*arguments)
    assert code == 2
    assert all(word in errors for word in words), errors
    assert "Traceback" not in errors
    if words[0].startswith("error"):
        assert errors.startswith(words[0])
        assert len(errors.strip().splitlines()) <= 2
    assert not (tmp_path / "unused").exists()


def test_a_run_directory_that_exists_is_refused_before_anything_is_loaded_or_shown(answer, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "notes.txt").touch()
    monkeypatch.setattr("mmfl.runs.config_schema.Config.experiment", lambda config: pytest.fail("data was loaded"))
    code, out, err = answer("run", "--out", "used")
    assert (code, out, "run directory 'used' exists" in err) == (2, "", True)
