"""The server's transport, over a Flower grid whose replies are invalid, or have only half arrived."""

import threading
from types import SimpleNamespace

import pytest

from conftest import wait_for

pytest.importorskip("flwr", reason="flwr is not installed")
from mmfl.deployment import programs
from mmfl.deployment.flower_transport import FlowerTransport


class Reply:
    """A message of Flower's, as far as the server looks at it."""

    def __init__(self, to, content=None, error=None):
        self.metadata = SimpleNamespace(reply_to_message_id=to)
        self.content, self.error = content, error

    def has_error(self):
        return self.error is not None


def reply_to(name: str) -> Reply:
    return Reply(name, {"mmfl": {"payload": name.encode()}})


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """Every pull is waited for, however slow the machine is."""
    monkeypatch.setattr("mmfl.deployment.flower_transport._PULL_SECONDS", 600.0)


@pytest.fixture
def hasty(monkeypatch, patient):
    """No pull is waited for longer than an instant."""
    monkeypatch.setattr("mmfl.deployment.flower_transport._PULL_SECONDS", 0.01)


def transport_over(pull):
    return FlowerTransport(SimpleNamespace(pull_messages=pull))


def test_an_answer_that_flower_cannot_read_takes_no_other_with_it():
    def pull(names):
        if "bad" in names:
            raise ValueError("DecodeError")
        return [reply_to(name) for name in names]

    transport = transport_over(pull)
    for _ in range(2):
        replies = {reply.message: reply.payload for reply in transport.receive(["good", "bad", "fine"])}
        assert replies == {"good": b"good", "bad": b"", "fine": b"fine"}


def test_an_answer_that_one_pull_fails_to_bring_is_pulled_again():
    """The SuperLink may have failed before it deleted anything; what is gone, and could not be read, is garbage."""
    failures = {"there": 1, "unreadable": 1}

    def pull(names):
        (name,) = names
        if failures.get(name):
            failures[name] -= 1
            raise OSError
        return [reply_to(name) if name == "there" else Reply(name, error=SimpleNamespace(code=3, reason="gone"))]

    replies = {reply.message: reply.payload for reply in transport_over(pull).receive(["there", "unreadable"])}
    assert replies == {"there": b"there", "unreadable": b""}


def test_answers_that_are_half_there_keep_no_other_from_being_read_and_come_in_the_end(hasty):
    there, pulled, whole = {"half"}, [], threading.Event()

    def pull(names):
        found = sorted(there & set(names))
        there.difference_update(found)
        pulled.extend(found)
        if {"half", "torn"} & set(found):
            whole.wait()
        return [reply_to(name) for name in found]

    def received(*names, until):
        """What comes when one looks until these have come."""
        came = {}

        def all_came():
            came.update((reply.message, reply.payload) for reply in transport.receive(set(names) - set(came)))
            return until <= set(came)

        wait_for(all_came)
        return came

    transport = transport_over(pull)
    assert received("half", "slow", until=set()) == {}
    there |= {"slow", "quick"}
    assert received("half", "slow", "quick", until={"slow", "quick"}) == {"slow": b"slow", "quick": b"quick"}
    there |= {"third", "torn"}
    assert received("third", "torn", "half", until={"third"}) == {"third": b"third"}
    there.add("fourth")
    assert received("torn", "fourth", "half", until={"fourth"}) == {"fourth": b"fourth"}
    whole.set()
    assert transport.receive(["another"]) == []
    assert received("half", "torn", until={"half", "torn"}) == {"half": b"half", "torn": b"torn"}
    assert transport.receive(["half", "torn"]) == []
    assert (pulled.count("half"), pulled.count("torn")) == (1, 1)


def test_replies_are_answers_to_what_was_asked_or_empty():
    def pull(names):
        yield Reply("another", {"mmfl": {"payload": b"x"}})
        yield Reply("a", {"other": {}})
        yield Reply("b", {"mmfl": {"payload": "text"}})
        yield Reply("c", error=SimpleNamespace(code=5, reason="gone"))

    replies = [(each.message, each.payload, each.error) for each in transport_over(pull).receive(["a", "b", "c"])]
    assert replies == [("a", b"", ""), ("b", b"", ""), ("c", None, "code 5: gone")]


def test_what_an_answer_may_have_leaves_room_for_what_flower_puts_around_it(monkeypatch):
    monkeypatch.delenv(programs.MAX_BYTES_VARIABLE, raising=False)
    assert transport_over(None).max_reply_bytes is None
    monkeypatch.setenv(programs.MAX_BYTES_VARIABLE, str(10**6))
    assert 900_000 < transport_over(None).max_reply_bytes < 10**6 - 10_000
