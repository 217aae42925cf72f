"""Processes that come back when they end, and what a node says of a server that it cannot reach."""

import os
import signal
import socket
import ssl
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest
from traces import clean, needs_flower

from conftest import refused, wait_for
from mmfl.deployment import programs, running_node
from mmfl.deployment.child_processes import ChildProcesses
from mmfl.deployment.diagnosis import find_problem
from mmfl.deployment.machines import free_port
from mmfl.deployment.running_node import NodeSpec, RunningNode
from mmfl.deployment.security import Address, make_keys
from mmfl.deployment.supervision import GrowingPauses, Supervised

__all__ = ["clean"]


@pytest.fixture
def hasty(monkeypatch):
    """Pauses are an instant."""
    monkeypatch.setattr(GrowingPauses, "next", lambda self: 0.0)


def test_pauses_grow_to_the_longest_and_are_not_the_same_for_all():
    pauses = GrowingPauses(first=1, longest=8)
    found = [pauses.next() for _ in range(6)]
    for seconds, most in zip(found, (1, 2, 4, 8, 8, 8), strict=True):
        assert most / 2 <= seconds <= most
    pauses.reset()
    assert pauses.next() <= 1
    assert len({GrowingPauses().next() for _ in range(5)}) > 1


def test_a_process_that_ends_is_started_again_and_it_is_said_why(clean, tmp_path, hasty):
    said = []
    with ChildProcesses(tmp_path) as processes:
        script = ["sh", "-c", "echo error: the disk is full; exec sleep 999"]
        supervised = Supervised(processes, lambda: processes.start("link", script, os.environ), said.append)
        first = supervised.child
        supervised.check()
        assert (supervised.child, said) == (first, [])
        first.kill()
        supervised.check()
        supervised.check()
        assert supervised.child.process.pid != first.process.pid
        assert supervised.child.alive
        assert said == ["link ended (killed by signal 9); it is started again in 0 s"]
        os.kill(supervised.child.process.pid, signal.SIGTERM)
        supervised.child.process.wait()
        processes.start("link", ["sh", "-c", "echo error: the disk is full; exit 3"], os.environ).process.wait()
        supervised.child = processes.children[-1]
        supervised.check()
        assert "link ended (the disk is full)" in said[-1]


# --- what is wrong with a server ---


@contextmanager
def answering(answer):
    """The address of a server on loopback that does this with every connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve():
            while True:
                try:
                    answer(listener.accept()[0])
                except OSError:
                    if listener.fileno() < 0:
                        return

        threading.Thread(target=serve, daemon=True).start()
        yield Address("127.0.0.1", listener.getsockname()[1])


@pytest.fixture
def keys(tmp_path):
    pytest.importorskip("flwr", reason="flwr is not installed")
    return make_keys(tmp_path / "keys", ["localhost"], ["0"])


@pytest.fixture
def encrypted(keys):
    """The address of a server with these keys."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(keys.certificate, keys.server_key)
    with answering(lambda line: context.wrap_socket(line, server_side=True).close()) as address:
        yield address


def plain(line):
    line.recv(100)
    line.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    line.close()


def test_the_right_server_is_no_problem(keys, encrypted):
    assert find_problem(encrypted, keys.authority) is None
    with answering(plain) as address:
        assert find_problem(address, None) is None


def test_what_is_wrong_with_a_server_is_said_with_what_to_do(keys, encrypted, tmp_path, monkeypatch):
    monkeypatch.setattr("mmfl.deployment.diagnosis._SECONDS", 0.5)
    strange = make_keys(tmp_path / "strange", ["localhost"], ["0"])
    found = {
        "plaintext": find_problem(encrypted, None),
        "stranger": find_problem(encrypted, strange.authority),
        "nobody": find_problem(Address("127.0.0.1", free_port()), None),
        "unknown": find_problem(Address("no-such-host.invalid", 80), None),
    }
    with answering(plain) as address:
        found["not encrypted"] = find_problem(address, keys.authority)
    held = []
    with answering(held.append) as address:
        found["silent"] = find_problem(address, keys.authority)
    assert {name: problem.lasting for name, problem in found.items()} == {
        "plaintext": True,
        "stranger": True,
        "nobody": False,
        "unknown": False,
        "not encrypted": True,
        "silent": False,
    }
    words = {
        "plaintext": "expected --root-certificates ca.crt, and for a node --key node-K.key",
        "stranger": "expected the ca.crt",
        "nobody": "is `mmfl link` running there?",
        "unknown": "the host 'no-such-host.invalid' is not known here",
        "not encrypted": "started without --keys",
        "silent": "accepts a connection, but does not answer",
    }
    for name, expected in words.items():
        assert expected in found[name].text


def for_nodes_only(line):
    line.recv(1000)
    text = b"this address is for nodes only"
    line.sendall(b"HTTP/1.1 403 Forbidden\r\ncontent-length: %d\r\n\r\n%s" % (len(text), text))
    line.close()


@needs_flower
def test_a_run_started_where_it_cannot_be_is_refused_with_what_to_do_and_leaves_nothing(
    clean, encrypted, tmp_path, monkeypatch, answer
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "app.py").write_text("def tasks(): ...\ndef data(task, client): ...\n")
    monkeypatch.setattr(programs, "_SECONDS_TO_ANSWER", 60.0)

    def refusal(address):
        code, _, err = answer("deploy", "app.py", "--server", str(address), "--clients", "2", "--out", "run")
        assert (code, (tmp_path / "run").exists()) == (2, False)
        assert len(err.strip().splitlines()) <= 2, err
        return " ".join(err.split())

    with answering(for_nodes_only) as address:
        assert f"{address} is where nodes connect" in refusal(address)
    assert "takes encrypted connections only; expected --root-certificates" in refusal(encrypted)
    assert "`mmfl link` starts one" in refusal(Address("127.0.0.1", free_port()))


def test_a_link_or_a_node_that_is_refused_leaves_no_folder(clean, encrypted, tmp_path, monkeypatch, answer):
    monkeypatch.chdir(tmp_path)
    app = tmp_path / "app.py"
    app.write_text("")
    before = sorted(tmp_path.iterdir())
    code, _, err = answer("link", str(encrypted))
    assert (code, "cannot listen at" in err) == (2, True)
    code, _, err = answer("node", "app.py", "--clients", "0", "--server", str(encrypted))
    assert (code, "takes encrypted connections only" in " ".join(err.split())) == (2, True)
    assert sorted(tmp_path.iterdir()) == before


# --- a node that loses its server ---


@pytest.fixture
def node(clean, tmp_path, monkeypatch, hasty):
    """Makes a node whose SuperNode is a script; what the node says is in the list."""
    monkeypatch.setattr(running_node, "_SECONDS_BETWEEN_LOOKS", 0.0)
    with ChildProcesses(tmp_path / "logs") as processes:
        said = []

        def start(script: str, name: str = "node", key: Path | None = None) -> RunningNode:
            monkeypatch.setattr(programs, "supernode", lambda *_: ["sh", "-c", script])
            worker = ("sh", "-c", 'touch "$4"; exec sleep 999', "worker")
            spec = NodeSpec(tmp_path / "app.py", [0], Address("127.0.0.1", free_port()), None, key, worker=worker)
            running = RunningNode(processes, spec, name, said.append)
            running.connect()
            return running

        start.said = said
        yield start


def count_starts(node: RunningNode) -> int:
    return node.supernode.log.read_text().count("SuperNode ID")


@needs_flower
@pytest.mark.parametrize("end", ["exit 1", "echo Exception in thread Thread-4; exec sleep 999"])
def test_a_node_comes_back_whatever_ends_its_connection(node, end):
    running = node(f"echo SuperNode ID: 17; {end}")
    assert "is `mmfl link` running there?" in node.said[0]
    wait_for(lambda: running.check() or count_starts(running) > 3)
    assert running.id == 17
    assert len(node.said) > 2


@needs_flower
def test_a_node_that_is_refused_says_so_and_tries_again_unless_it_lacks_a_key(node):
    running = node("echo [code: 1] Failed to activate SuperNode; exit 1")
    first = running.supernode
    wait_for(lambda: running.check() or running.supernode is not first)
    assert "its key is not registered there, or another node uses it" in node.said[1]
    keyless = node("echo SuperNode must be registered; exit 1", "keyless")
    keyless.supernode.process.wait()
    with refused("keyless: the server lets in nodes with a key only; expected --key node-K.key."):
        keyless.check()
