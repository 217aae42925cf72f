"""A node's side: what it announces and answers, the worker that keeps it alive, and the user's module."""

import socket
import stat
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch
from inside import service_of
from traces import needs_flower

import mmfl
from conftest import toy_task
from mmfl.deployment.node_service import NodeService
from mmfl.deployment.payload import Payload, fingerprint
from mmfl.deployment.remote_federation import NodeFederation, UserModule
from mmfl.errors import UserError
from mmfl.privacy import Privacy

FEDERATION = mmfl.Federation([toy_task("a"), toy_task("b", classes=3)], 4, capacity=2)
LENGTHS = {"a": 16, "b": 12}


def asked(service: NodeService, fields: dict, **vectors: torch.Tensor) -> Payload:
    return Payload.unpack(service.answer(Payload(fields, vectors).pack()))


def weights(name: str = "a") -> dict[str, torch.Tensor]:
    return {f"weights.{name}": torch.zeros(LENGTHS[name])}


def training(*rows: list, round: int = 1, method: str = "random") -> dict:
    return {"train": [list(row) for row in rows], "round": round, "seed": 0, "method": method}


# --- what a node answers ---


def test_a_node_announces_its_clients():
    fields = asked(service_of(FEDERATION, [1, 3], 5), {"announce": True}).fields
    assert [row[:2] for row in fields["clients"]] == [[1, 2], [3, 2]]
    assert fields["clients"][0][2] == {"a": int(FEDERATION.sizes[1, 0]), "b": int(FEDERATION.sizes[1, 1])}
    assert fields["tested"] == {"a": 30, "b": 30}


def test_an_update_is_kept_until_it_is_asked_for():
    service = service_of(FEDERATION, [1])
    kept = asked(service, training(["a", 1, False, ""]), **weights())
    assert not kept.vectors
    collected = asked(service, {"collect": [["a", 1, 1]]})
    update = collected.vectors["update.a.1"]
    assert kept.fields["trained"][0][4] == pytest.approx(float(update.norm()))
    assert asked(service, {"collect": [["a", 1, 2], ["b", 1, 1]]}).fields.keys() == {"announced"}
    again = asked(service, training(["a", 1, False, fingerprint(update)], round=2), **weights())
    assert not again.vectors
    newest = asked(service, {"collect": [["a", 1, 2]]}).vectors["update.a.1"]
    assert again.fields["trained"][0][5] == pytest.approx(float((newest * update).sum()), rel=1e-5)


def test_who_remembers_another_update_is_sent_the_new_one():
    service = service_of(FEDERATION, [1])
    reply = asked(service, training(["a", 1, False, "0123456789abcdef"]), **weights())
    assert list(reply.vectors) == ["update.a.1"]
    assert reply.fields["trained"][0][5] is None


def test_noise_is_drawn_once_for_an_update():
    service = service_of(FEDERATION, [1])
    service.privacy = Privacy(clip=0.1, noise=0.5)
    asked(service, training(["a", 1, False, ""]), **weights())
    first = asked(service, {"collect": [["a", 1, 1]]}).vectors["update.a.1"]
    assert torch.equal(first, asked(service, {"collect": [["a", 1, 1]]}).vectors["update.a.1"])
    again = asked(service, training(["a", 1, True, ""]), **weights()).vectors["update.a.1"]
    assert not torch.equal(first, again)


def test_a_request_that_comes_again_is_answered_from_memory_and_an_error_is_not_kept():
    service = service_of(FEDERATION, [1])
    service.privacy = Privacy(clip=0.1, noise=0.5)
    request = Payload(training(["a", 1, True, ""]), weights()).pack()
    assert service.answer(request) == service.answer(request)  # with the same noise
    service.privacy = Privacy(clip=0.1, noise=0.5)
    other = Payload(training(["a", 1, True, ""], round=2), weights()).pack()
    service.engine, engine = None, service.engine
    assert "AttributeError" in Payload.unpack(service.answer(other)).fields["error"]
    service.engine = engine
    assert "trained" in Payload.unpack(service.answer(other)).fields


@pytest.mark.parametrize(
    ("fields", "vectors", "expected"),
    [
        ({"losses": [["c", 1]]}, {}, "about task 'c'"),
        ({"losses": [["a", 2]]}, {}, "client 2, which has no task 'a' here"),
        ({"losses": [["a", 99]]}, {}, "client 99"),
        ({"losses": [["a", 1]]}, {}, "no vector 'weights.a'"),
        ({"losses": [["a", 1]]}, {"weights.a": torch.zeros(3)}, "expected float32 [16]"),
        ({"losses": [["a"]]}, {}, "'losses' does not read"),
        ({"train": [["a", 1, True, ""]], "round": 1, "seed": 0, "method": "nonesuch"}, weights(), "nonesuch"),
        ({"train": [["a", 1, True, ""]]}, weights(), "KeyError"),
    ],
)
def test_a_bad_request_is_answered_with_what_is_wrong(fields, vectors, expected):
    service = service_of(FEDERATION, [1])
    assert expected in asked(service, fields, **vectors).fields["error"]
    assert "clients" in asked(service, {"announce": True}).fields


@pytest.mark.parametrize("limit", ["much", 1.5, None])
def test_a_limit_that_is_no_number_of_bytes_is_none(limit):
    assert "clients" in asked(service_of(FEDERATION, [1]), {"announce": True, "max_reply_bytes": limit}).fields


@pytest.mark.parametrize(
    ("clients", "data", "capacity", "expected"),
    [
        ([], lambda task, client: None, 1, "clients are"),
        ([-1], lambda task, client: None, 1, "clients are"),
        ([0], lambda task, client: None, 1, "client 0 has no data for any task"),
        ([0], lambda task, client: [1, 2, 3], 1, "the data is a list; expected (x, y)"),
        ([0], lambda task, client: (np.zeros((4, 7)), np.zeros(4, dtype=int)), 1, "fails on inputs of shape"),
        ([0], lambda task, client: (np.zeros((4, 3)), np.full(4, 9)), 1, "label 9"),
        ([0], lambda task, client: (np.zeros((4, 3)), np.zeros(4, dtype=int)), 0, "capacity is 0"),
    ],
)
def test_bad_local_data_is_named(clients, data, capacity, expected):
    with pytest.raises(UserError) as caught:
        NodeFederation(FEDERATION.tasks, clients, data, capacity)
    assert expected in str(caught.value)


def test_a_client_may_lack_a_task():
    held = NodeFederation(
        FEDERATION.tasks,
        [2, 5],
        lambda task, client: None if (task, client) == ("b", 2) else (np.zeros((4, 3)), np.zeros(4, dtype=int)),
        2,
    )
    assert held.sizes[[2, 5]].tolist() == [[4, 0], [4, 4]]
    assert held.capacity[[2, 5]].tolist() == [1, 2]
    assert held.test_examples == [0, 0]


# --- the user's module ---

MODULE = """
    import mmfl
    import numpy as np

    def tasks():
        model = lambda: mmfl.models.LogisticRegression(inputs=3, classes=2)
        return [mmfl.Task("a", model)]

    def data(task, client):
        return np.ones((5 + client, 3)), np.zeros(5 + client, dtype=int)
"""


def written(folder: Path, text: str = MODULE) -> Path:
    path = folder / "mine.py"
    path.write_text(textwrap.dedent(text))
    return path


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x = 1", "has no function 'tasks'"),
        ("def tasks():\n    return []\n", "has no function 'data'"),
        ("def tasks():\n    return []\ndef data(task, client): ...\n", "expected a list of mmfl.Task"),
        ("import nonesuch", "ModuleNotFoundError: No module named 'nonesuch'"),
        ("def (", "SyntaxError"),
        (
            'import mmfl\ndef tasks():\n    t = mmfl.Task("a", mmfl.models.Perceptron)\n    return [t, t]\n'
            "def data(task, client): ...\n",
            "two tasks are named 'a'",
        ),
        (
            'import mmfl\ndef tasks():\n    return [mmfl.Task("a", mmfl.models.Perceptron, metrics=["auc"])]\n'
            "def data(task, client): ...\n",
            "task 'a': metric 'auc' is not available where nodes test",
        ),
    ],
)
def test_a_module_that_cannot_be_used_is_named(text, expected, tmp_path):
    with pytest.raises(UserError) as caught:
        UserModule.load(written(tmp_path, text))
    assert expected in str(caught.value)
    assert str(tmp_path) in str(caught.value)


# --- the worker ---


def worker(folder: Path, *options: str) -> subprocess.Popen:
    command = [sys.executable, "-m", "mmfl.deployment.worker", "--module", str(written(folder)), *options]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


@needs_flower
def test_a_worker_answers_whoever_connects(tmp_path):
    from mmfl.deployment.client_app import ask_worker

    path = tmp_path / "socket"
    process = worker(tmp_path, "--clients", "0,2", "--socket", str(path), "--capacity", "3")
    try:
        fields = Payload.unpack(ask_worker(str(path), Payload({"announce": True}).pack())).fields
        assert fields["clients"] == [[0, 1, {"a": 5}], [2, 1, {"a": 7}]]
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        with socket.socket(socket.AF_UNIX) as rude:  # leaves without a word
            rude.connect(str(path))
        assert "unreadable" in Payload.unpack(ask_worker(str(path), b"junk")).fields["error"]
    finally:
        process.kill()
        process.stderr.close()


def test_a_worker_with_a_bad_setting_says_so(tmp_path):
    process = worker(tmp_path, "--clients", "0", "--socket", str(tmp_path / "s"), "--noise", "1")
    _, told = process.communicate(timeout=600)
    assert process.returncode == 2
    assert told.startswith("error: privacy: noise is 1.0 without clip")
    assert "Traceback" not in told
