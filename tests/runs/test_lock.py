"""One process at a time works on a run, whoever else tries to."""

import fcntl
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest
from toy_runs import Heard, train

from conftest import refused
from mmfl.errors import UserError
from mmfl.runs import lock
from mmfl.runs.lock import Holder, hold
from mmfl.runs.processes import is_alive, start_time

HERE = socket.gethostname()
WAIT = "wait until it ends, or end it."
STARTER = """
import sys
from pathlib import Path
from mmfl.errors import UserError
from mmfl.runs.lock import hold
print("ready", flush=True)
sys.stdin.readline()
try:
    with hold(Path(sys.argv[1])):
        print("held", flush=True)
        sys.stdin.readline()
except UserError as error:
    print(error, flush=True)
"""


def locked(path: Path, **told) -> Path:
    """A directory with the lock of some process; by default of this one."""
    path.mkdir(exist_ok=True)
    (path / "lock").write_text(json.dumps(vars(Holder.current()) | told))
    return path


def gone() -> int:
    """The number of a process that has ended."""
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


@pytest.mark.parametrize("left_behind", [False, True])
def test_of_many_that_start_at_the_same_instant_exactly_one_wins(tmp_path, left_behind):
    place = tmp_path / "run"
    if left_behind:
        locked(place, pid=gone())
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    starters = [subprocess.Popen([sys.executable, "-c", STARTER, str(place)], **pipes) for _ in range(6)]
    try:
        assert [each.stdout.readline() for each in starters] == ["ready\n"] * 6
        for each in starters:
            each.stdin.write("\n")
        for each in starters:
            each.stdin.flush()
        said = {each.pid: each.stdout.readline() for each in starters}
        (winner,) = [pid for pid, text in said.items() if text == "held\n"]
        refusal = f"run '{place}' is in use by process {winner} on {HERE}; {WAIT}\n"
        assert sorted(said.values()) == sorted(["held\n"] + [refusal] * 5)
    finally:
        for each in starters:
            each.communicate("\n")
    assert list(place.iterdir()) == []


def test_a_second_resume_is_refused_and_the_run_goes_on_undisturbed_and_lets_go_however_it_ends(tmp_path, answer):
    problem = f"run '{tmp_path / 'run'}' is in use by process {os.getpid()} on {HERE}; {WAIT}"

    def fail(info):
        with refused(problem):
            train(tmp_path / "run", resume=True)
        assert answer("resume", str(tmp_path / "run")) == (2, "", f"error: {problem}\n")
        raise MemoryError

    with pytest.raises(MemoryError):
        train(tmp_path / "run", Heard(1, fail))
    assert not (tmp_path / "run" / "lock").exists()
    assert len(train(tmp_path / "run", resume=True).records) == 6
    assert not (tmp_path / "run" / "lock").exists()


def test_a_lock_that_nobody_holds_is_taken_over(tmp_path):
    mine = vars(Holder.current())
    reused = mine | {"birth": "12"}  # the number has been given to another process, this one, since
    for left in (mine | {"pid": gone()}, reused, mine | {"pid": 2**40}, {"pid": "x"}, [], None):
        (tmp_path / "lock").write_text("{" if left is None else json.dumps(left))
        with hold(tmp_path):
            assert json.loads((tmp_path / "lock").read_text())["pid"] == os.getpid()
        assert list(tmp_path.iterdir()) == []


def test_a_process_that_has_ended_and_was_not_waited_for_is_gone(tmp_path):
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        birth = start_time(process.pid)
        assert is_alive(process.pid, birth)
        process.stdin.close()
        assert process.stdout.read() == b""
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # a zombie from now on
        assert not is_alive(process.pid, birth)


def test_a_lock_of_another_machine_stands_and_the_error_says_which_file_to_delete(tmp_path, answer):
    train(tmp_path / "run")
    locked(tmp_path / "run", pid=gone(), host="elsewhere")
    words = ["on elsewhere.\n", f"If that process is gone, delete {tmp_path / 'run' / 'lock'} and try again."]
    with refused(*words):
        train(tmp_path / "run", resume=True)
    code, _, err = answer("resume", str(tmp_path / "run"))
    assert (code, len(err.splitlines())) == (2, 2)
    assert (tmp_path / "run" / "lock").exists()
    (tmp_path / "run" / "lock").unlink()
    assert len(train(tmp_path / "run", resume=True).records) == 6


def test_between_judging_a_lock_and_taking_it_over_nobody_else_can_do_so(tmp_path, monkeypatch):
    """Another one comes just when the first has seen that the lock's holder is gone."""
    locked(tmp_path, pid=gone())
    said, proceed, read, flock = [], threading.Event(), lock._read, fcntl.flock

    def second():
        with suppress(UserError), hold(tmp_path):
            said.append("held")
        said.append("over")
        proceed.set()

    thread = threading.Thread(target=second)

    def read_and_be_interrupted(directory):
        found = read(directory)
        monkeypatch.setattr(lock, "_read", read)
        monkeypatch.setattr(fcntl, "flock", lambda *arguments: (proceed.set(), flock(*arguments)))
        thread.start()
        proceed.wait()  # for the second one to end, or to wait for the first
        return found

    monkeypatch.setattr(lock, "_read", read_and_be_interrupted)
    with hold(tmp_path):
        thread.join()
    assert said == ["over"]


def test_a_lock_that_stayed_behind_does_not_make_an_empty_directory_used(tmp_path):
    locked(tmp_path / "run", pid=gone())
    assert len(train(tmp_path / "run").records) == 6


def test_where_there_are_no_hard_links_the_lock_is_renamed(tmp_path, monkeypatch):
    def refuse(*_):
        raise PermissionError

    monkeypatch.setattr(os, "link", refuse)
    with hold(tmp_path), refused("in use by process"), hold(tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_was_removed_meanwhile_is_no_error(tmp_path):
    with hold(tmp_path / "run"):
        shutil.rmtree(tmp_path / "run")
    assert not (tmp_path / "run").exists()
