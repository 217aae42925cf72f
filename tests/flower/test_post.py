"""The server's mailbox, over a grid whose answers are bad, or half there."""

import threading
import time
from types import SimpleNamespace

import pytest

pytest.importorskip("flwr", reason="flwr is not installed")
from mmfl.flower import programs
from mmfl.flower.post import FlowerMail


class Reply:
    """A message of Flower's, as far as the server looks at it."""

    def __init__(self, to, content=None, error=None):
        self.metadata = SimpleNamespace(reply_to_message_id=to)
        self.content, self.error = content, error

    def has_error(self):
        return self.error is not None


def reply_to(name: str) -> Reply:
    return Reply(name, {"mmfl": {"payload": name.encode()}})


def mail_over(pull):
    return FlowerMail(SimpleNamespace(pull_messages=pull))


def test_an_answer_that_flower_cannot_read_takes_no_other_with_it():
    def pull(names):
        if "bad" in names:
            raise ValueError("DecodeError")
        return [reply_to(name) for name in names]

    mail = mail_over(pull)
    for _ in range(2):
        letters = {letter.message: letter.payload for letter in mail.receive(["good", "bad", "fine"])}
        assert letters == {"good": b"good", "bad": b"", "fine": b"fine"}


def test_answers_that_are_half_there_keep_no_other_from_being_read_and_come_in_the_end(monkeypatch):
    monkeypatch.setattr("mmfl.flower.post._MOMENT", 0.1)
    there, pulled, whole = {"half"}, [], threading.Event()

    def pull(names):
        found = sorted(there & set(names))
        there.difference_update(found)
        pulled.extend(found)
        if {"half", "torn"} & set(found):
            whole.wait()
        return [reply_to(name) for name in found]

    def received(*names):
        return {letter.message: letter.payload for letter in mail.receive(names)}

    mail = mail_over(pull)
    assert received("half", "slow") == {}
    there |= {"slow", "quick"}
    assert received("half", "slow", "quick") == {"slow": b"slow", "quick": b"quick"}
    there |= {"third", "torn"}
    assert received("third", "torn", "half") == {"third": b"third"}
    there.add("fourth")
    assert received("torn", "fourth", "half") == {"fourth": b"fourth"}
    assert pulled.count("torn") == 1
    whole.set()
    came, deadline = {}, time.monotonic() + 30
    while len(came) < 2 and time.monotonic() < deadline:
        assert received("another") == {}
        came |= received("half", "torn")
    assert came == {"half": b"half", "torn": b"torn"}
    assert received("half", "torn") == {}


def test_letters_are_answers_to_what_was_asked_or_garbage():
    def pull(names):
        yield Reply("another", {"mmfl": {"payload": b"x"}})
        yield Reply("a", {"other": {}})
        yield Reply("b", {"mmfl": {"payload": "text"}})
        yield Reply("c", error=SimpleNamespace(code=5, reason="gone"))

    letters = [(each.message, each.payload, each.error) for each in mail_over(pull).receive(["a", "b", "c"])]
    assert letters == [("a", b"", ""), ("b", b"", ""), ("c", None, "code 5: gone")]


def test_what_an_answer_may_have_leaves_room_for_what_flower_puts_around_it(monkeypatch):
    monkeypatch.delenv(programs.MOST, raising=False)
    assert mail_over(None).most is None
    monkeypatch.setenv(programs.MOST, str(10**6))
    assert 900_000 < mail_over(None).most < 10**6 - 10_000
