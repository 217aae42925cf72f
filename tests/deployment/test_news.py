"""Nodes that wait at the proxy for messages, instead of asking for them every three seconds."""

import asyncio
from types import SimpleNamespace

import pytest

pytest.importorskip("flwr", reason="flwr is not installed")
from conftest import run_coroutine
from mmfl.deployment import proxy as proxies
from mmfl.deployment.connection import Head
from mmfl.deployment.news import News, tell
from mmfl.deployment.proxy import Proxy


def answer(size: int, status: bytes = b"200 OK") -> Head:
    return Head(b"HTTP/1.1 " + status, ((b"content-length", b"%d" % size),))


class Node:
    """A node's connection, with the body of one request."""

    def __init__(self, here: bool = True):
        self.here = here

    async def read_body(self, length, seconds):
        yield b"node 7"[:length]

    def is_usable(self):
        return self.here


class AskingProxy(Proxy):
    """A proxy whose SuperLink gives these answers, one after another; the bodies that it was asked with are kept."""

    def __init__(self, news, answers):
        ring = SimpleNamespace(folder=None, context=None)
        super().__init__("/v1/fleet/", SimpleNamespace(give_back=lambda server: None), ring, 1000, 1.0, news)
        self.answers, self.bodies = list(answers), []

    async def _forward(self, client, path, head, length):
        self.bodies.append([part async for part in client.read_body(length, 1.0)])
        return self.answers.pop(0), SimpleNamespace(close=lambda: None)


def waited(answers, tmp_path, node=None, then=lambda path: None):
    """What a node is answered that asks for messages, and how often the SuperLink was asked; `then` happens soon."""

    async def ask():
        news = News(tmp_path / "news")
        news.listen()
        proxy = AskingProxy(news, answers)
        asyncio.get_running_loop().call_later(0.05, then, str(tmp_path / "news"))
        found, _ = await proxy._wait_for_messages(news, node or Node(), b"/pull-messages", answer(0), 6)
        return found, proxy.bodies

    return run_coroutine(ask())


def test_a_node_waits_until_the_server_tells_of_messages(tmp_path):
    found, bodies = waited([answer(0), answer(99)], tmp_path, then=tell)
    assert found.length() == 99
    assert bodies == [[b"node 7"]] * 2


def test_a_message_or_a_refusal_is_passed_on_at_once(tmp_path):
    for first in (answer(5), answer(0, b"401 Unauthorized")):
        assert waited([first], tmp_path)[0] == first


def test_a_node_is_answered_when_its_time_is_over_and_not_asked_for_when_it_has_gone(tmp_path, monkeypatch):
    monkeypatch.setattr(proxies, "_SECONDS_HELD", 0.1)
    found, bodies = waited([answer(0), answer(0)], tmp_path)
    assert (found.length(), len(bodies)) == (0, 2)
    with pytest.raises(ConnectionError, match="gone"):
        waited([answer(0)], tmp_path, Node(here=False), then=tell)


def test_news_that_came_before_the_answer_are_not_missed(tmp_path):
    async def ask():
        news = News(tmp_path / "news")
        news.listen()
        known = news.count
        tell(str(tmp_path / "news"))
        await asyncio.sleep(0.05)
        await asyncio.wait_for(news.wait(known, 600.0), 60.0)

    run_coroutine(ask())


def test_telling_nobody_is_no_error(tmp_path):
    tell(None)
    tell(str(tmp_path / "nowhere"))
