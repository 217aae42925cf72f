"""The server's transport, over a Flower grid whose replies are invalid, or have only half arrived."""

import random
import threading
import time
from itertools import count
from types import SimpleNamespace

import pytest

import mmfl
from conftest import wait_for

pytest.importorskip("flwr", reason="flwr is not installed")
from digits import assert_same_weights, events
from inside import NODES, deployed, federation, service_of

from mmfl.deployment import programs
from mmfl.deployment.flower_transport import FlowerTransport
from mmfl.deployment.payload import Payload


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


def test_an_answer_that_cannot_be_fetched_takes_no_other_with_it():
    def pull(names):
        if "bad" in names:
            raise ValueError("DecodeError")
        return [reply_to(name) for name in names]

    transport = transport_over(pull)
    for _ in range(2):
        replies = {reply.message: reply.payload for reply in transport.receive(["good", "bad", "fine"])}
        assert replies == {"good": b"good", "fine": b"fine"}


def test_an_answer_that_one_pull_fails_to_bring_is_pulled_again_and_lost_if_it_is_gone_by_then():
    failures = {"there": 1, "gone": 1}

    def pull(names):
        (name,) = names
        if failures.get(name):
            failures[name] -= 1
            raise OSError
        return [reply_to(name) if name == "there" else Reply(name, error=SimpleNamespace(code=3, reason="gone"))]

    transport = transport_over(pull)
    assert transport.receive(["there", "gone"]) == []
    replies = {reply.message: (reply.payload, reply.lost) for reply in transport.receive(["there", "gone"])}
    assert replies == {"there": (b"there", False), "gone": (None, True)}


@pytest.mark.parametrize(("code", "lost"), [(2, False), (3, True), (4, True), (5, False), (8, True)])
def test_what_was_lost_on_the_way_is_told_from_what_the_node_failed_at(code, lost):
    transport = transport_over(lambda names: [Reply("a", error=SimpleNamespace(code=code, reason="why"))])
    assert [(each.payload, each.lost) for each in transport.receive(["a"])] == [(None, lost)]


def test_calls_of_the_grid_that_fail_are_repeated_a_few_times(monkeypatch):
    monkeypatch.setattr("mmfl.deployment.flower_transport._FIRST_PAUSE", 1e-6)
    left = 5

    def node_ids():
        nonlocal left
        left -= 1
        if left:
            raise OSError("database is locked")
        return [3, 4]

    transport = FlowerTransport(SimpleNamespace(get_node_ids=node_ids))
    assert transport.nodes() == {3, 4}
    left = 100
    with pytest.raises(OSError, match="locked"):
        transport.nodes()


# --- a run over a grid that deletes what it hands out, as Flower's does ---


class AdverseGrid:
    """Nodes within this process behind a grid that deletes a reply when it is first pulled.

    It is slow, or one call in five fails: before anything was done, or after the reply was deleted.
    """

    def __init__(self, services, slow=False, flaky=False):
        self.services, self.slow, self.flaky = services, slow, flaky
        self.replies, self.names, self.lock = {}, count(), threading.Lock()
        self.rng = random.Random(0)

    def get_node_ids(self):
        self.fail()
        return list(self.services)

    def create_message(self, content, kind, node, group, ttl):
        return node, content["mmfl"]["payload"]

    def push_messages(self, messages):
        names = []
        for node, payload in messages:
            names.append(f"message-{next(self.names)}")
            self.replies[names[-1]] = self.services[node].answer(payload)
        self.fail()
        return names

    def pull_messages(self, names):
        (name,) = names
        self.fail()
        with self.lock:
            reply = self.replies.pop(name, None)
        self.fail()
        if self.slow and reply is not None:
            time.sleep(0.02)  # longer than anyone waits for a pull
        if reply is None:
            return [Reply(name, error=SimpleNamespace(code=3, reason="Message Unavailable"))]
        return [Reply(name, {"mmfl": {"payload": reply}})]

    def fail(self):
        with self.lock:
            fails = self.flaky and self.rng.random() < 0.2
        if fails:
            raise OSError("the SuperLink is busy")


class NaiveTransport(FlowerTransport):
    """Forgets a pull that takes long, and pulls again."""

    def receive(self, messages):
        found = []
        for name in messages:
            brought = []
            pull = threading.Thread(target=lambda n, into: into.append(self._find(n)), args=(name, brought))
            pull.start()
            pull.join(0.005)
            found += list(brought)
        return found


def run_over(grid, transport, directory):
    run = deployed("mmfl-stalevr", 2, to=transport(grid), directory=directory, gather=600)
    return run, [event for event in events(directory) if event["kind"] not in ("joined", "waiting")]


@pytest.mark.parametrize("troubles", [{"slow": True}, {"slow": True, "flaky": True}], ids=str)
def test_no_answer_is_lost_to_a_grid_that_is_slow_or_fails(troubles, hasty, monkeypatch, tmp_path):
    monkeypatch.setattr("mmfl.deployment.flower_transport._FIRST_PAUSE", 1e-3)
    monkeypatch.setattr("mmfl.deployment.exchange._POLL_SECONDS", 1e-3)
    monkeypatch.setattr("mmfl.deployment.exchange._RETRY_SECONDS", 1e-3)
    monkeypatch.setattr("mmfl.deployment.exchange._MAX_REPEATS", 1000)
    pool = federation()
    grid = AdverseGrid({node: service_of(pool, clients) for node, clients in NODES.items()}, **troubles)
    run, told = run_over(grid, FlowerTransport, tmp_path / "run")
    same = mmfl.train(pool, "mmfl-stalevr", 2, 0.5, device="cpu")
    assert_same_weights(run.weights, same.weights)
    assert [record.drawn for record in run.records] == [record.drawn for record in same.records]
    assert {event["kind"] for event in told} <= {"repeated"}
    assert bool(told) == ("flaky" in troubles)


def test_a_transport_that_forgets_slow_pulls_would_lose_answers():
    grid = AdverseGrid({node: service_of(federation(), clients) for node, clients in NODES.items()}, slow=True)
    transport = NaiveTransport(grid)
    names = transport.send({node: Payload({"announce": True}).pack() for node in NODES}, 0, 60)
    came = {}

    def all_came():
        came.update((reply.message, reply.lost) for reply in transport.receive(set(names) - set(came)))
        return set(came) == set(names)

    wait_for(all_came)
    assert any(came.values())


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
