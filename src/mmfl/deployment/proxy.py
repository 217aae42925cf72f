"""The proxy in front of a SuperLink: passes on nodes' requests, and nothing else.

Flower serves nodes, and those who start runs or register keys, on one port, and authenticates only the nodes. So where
other machines can reach the server, the SuperLink listens on loopback and this proxy in front of it. Flower reads a
request into memory before it looks at who sent it; the proxy looks first, bounds what is read, and drops who is slow.
"""

import argparse
import asyncio
import json
import re
import resource
import signal
import socket
import ssl
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from mmfl.deployment.admission import KeyRing, Places
from mmfl.deployment.connection import Connection, Head, InvalidHeadError
from mmfl.deployment.news import News

_OF_A_CONNECTION = {
    b"host",
    b"connection",
    b"keep-alive",
    b"transfer-encoding",
    b"upgrade",
    b"te",
    b"trailer",
    b"expect",
}
_IDLE_FACTOR = 6  # times the patience: seconds that a node may be silent between requests
_STALL_FACTOR = 3  # times the patience: seconds within which a part of a body must come or be taken
_LEAST_RATE = 16 << 10  # bytes in a second that a body must have on average
_SECONDS_TO_ANSWER = 300.0  # of the SuperLink
_SECONDS_OPEN = 3.0  # that an idle connection to the SuperLink is used again; the SuperLink closes it after five
_PULL = b"/pull-messages"  # what a node asks for messages by
_MAX_HELD = 1 << 12  # bytes of such a request
_SECONDS_HELD = 20.0  # that a node waits for messages; it gives up after thirty
_MAX_DRAINED = 1 << 24  # bytes of a refused body that are read, so that its sender sees the answer
# What a SuperNode that has just started is told, in the form in which Flower shows it to its owner: code and detail.
_UNKNOWN_KEY = {
    b"register-node": (2001, "All SuperNodes must be registered: this one has no key."),
    b"activate-node": (2004, "Failed to activate SuperNode: its key is not registered."),
}
_REASONS = {400: "Bad Request", 401: "Unauthorized", 403: "Forbidden", 413: "Content Too Large", 502: "Bad Gateway"}
_REASONS |= {412: "Precondition Failed", 503: "Service Unavailable"}


class Refusal(Exception):  # noqa: N818  # an answer, rather than an error
    """A request that is answered by the proxy itself."""

    def __init__(self, status: int, text: str):
        super().__init__(status, text)
        self.status, self.text = status, text


class Upstream:
    """Connections to the SuperLink, used again while they are fresh."""

    def __init__(self, host: str, port: int, context: ssl.SSLContext | None):
        self.host, self.port, self.context = host, port, context
        self._idle: list[tuple[float, Connection]] = []

    async def open(self) -> Connection:
        """A connection that nobody else uses."""
        while self._idle:
            since, connection = self._idle.pop()
            if time.monotonic() - since < _SECONDS_OPEN and connection.is_usable():
                return connection
            connection.close()
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        connection = Connection(socket.socket(family, socket.SOCK_STREAM))
        try:
            await asyncio.get_running_loop().sock_connect(connection.sock, (self.host, self.port))
            if self.context is not None:
                await connection.encrypt(self.context, self.host)
        except BaseException:
            connection.close()
            raise
        return connection

    def give_back(self, connection: Connection) -> None:
        """Keeps a connection for the next request, and closes those that have been idle for too long."""
        now = time.monotonic()
        for since, old in [each for each in self._idle if now - each[0] > _SECONDS_OPEN]:
            self._idle.remove((since, old))
            old.close()
        self._idle.append((now, connection))


@dataclass(frozen=True)
class Held:
    """A small body that was read, to be sent as often as need be."""

    body: bytes

    async def read_body(self, length: int, seconds: float) -> AsyncIterator[bytes]:
        """The body."""
        if length:
            yield self.body


class Proxy:
    """Serves nodes' connections, one task each.

    A request may have at most `max_bytes` bytes, and all requests in progress together four times that, of one node no
    more than one of that size; beyond it, nodes are told to try again. `patience` is how many seconds a handshake, and
    the head of a first request, may take; other limits are multiples of it.

    A node that asks for messages when there are none would ask again every three seconds. Where there is `news`, it
    waits here instead, and the SuperLink is asked again when there is some.
    """

    def __init__(
        self,
        prefix: str,
        upstream: Upstream,
        ring: KeyRing,
        max_bytes: int,
        patience: float,
        news: News | None = None,
    ):
        self.upstream, self.ring, self.max_bytes, self.patience = upstream, ring, max_bytes, patience
        self.news = news
        self.allowed = re.compile(rb"POST (" + re.escape(prefix).encode() + rb"[a-z-]+) HTTP/1\.1")
        self.places = Places(ring.folder is not None)
        self.bytes_in_progress: Counter[str] = Counter()  # by node

    async def listen(self, listener: socket.socket) -> None:
        """Accepts connections for ever."""
        loop, tasks = asyncio.get_running_loop(), set()
        if self.news:
            self.news.listen()
        while True:
            try:
                accepted, (address, *_) = await loop.sock_accept(listener)
            except OSError:  # too many open files: some will be closed soon
                await asyncio.sleep(0.1)
                continue
            task = loop.create_task(self.serve(Connection(accepted), address))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
            self.places.enter(task, address)

    async def serve(self, client: Connection, address: str) -> None:
        """Answers the requests of a connection until it is closed, or too slow."""
        task = asyncio.current_task()
        assert task is not None
        seconds = self.patience
        try:
            if self.ring.context is not None:
                self.ring.refresh()
                async with asyncio.timeout(self.patience):
                    await client.encrypt(self.ring.context)
            while True:
                async with asyncio.timeout(seconds):
                    head = await client.read_head()
                if head is None:
                    return
                await self._answer(task, client, address, head)
                seconds = _IDLE_FACTOR * self.patience
        except Refusal as refusal:
            with suppress(OSError, TimeoutError):
                await self._refuse(client, refusal)
        except (OSError, TimeoutError, InvalidHeadError):  # whoever it was, it is gone or does not speak HTTP
            pass
        finally:
            self.places.leave(task)
            client.close()

    async def _answer(self, task: "asyncio.Task[None]", client: Connection, address: str, head: Head) -> None:
        """Passes on a request and its response."""
        try:
            match, length = self.allowed.fullmatch(head.first), head.length()
        except InvalidHeadError as error:
            raise Refusal(400, str(error)) from None
        name = address if self.ring.folder is None else self.ring.name(head)
        if match is None:
            raise Refusal(403, "this address is for nodes only")
        if name is None:
            raise _unknown_key(match[1])
        if not self.places.admit(task, name):
            raise Refusal(503, "too many connections of one node; try again")
        if length > self.max_bytes:
            raise Refusal(413, "too much for one request")
        of_node = self.bytes_in_progress[name] if self.ring.folder else 0
        if of_node + length > self.max_bytes or self.bytes_in_progress.total() + length > 4 * self.max_bytes:
            raise Refusal(503, "too much at once; try again")
        self.bytes_in_progress[name] += length
        try:
            if self.news and length <= _MAX_HELD and match[1].endswith(_PULL):
                answer, server = await self._wait_for_messages(self.news, client, match[1], head, length)
            else:
                answer, server = await self._forward(client, match[1], head, length)
        except (OSError, TimeoutError, InvalidHeadError):
            raise Refusal(502, "the SuperLink does not answer") from None
        finally:
            self.bytes_in_progress[name] -= length
            if not self.bytes_in_progress[name]:
                del self.bytes_in_progress[name]
        try:
            await self._relay(server, client, _end_to_end(answer), answer.length())
        except BaseException:
            server.close()
            raise
        self._give_back(server, answer)

    def _give_back(self, server: Connection, answer: Head) -> None:
        """Keeps a connection whose response has been read, if the SuperLink does."""
        if answer.value(b"connection") == b"close" or answer.first.startswith(b"HTTP/1.0"):
            server.close()
        else:
            self.upstream.give_back(server)

    async def _wait_for_messages(
        self, news: News, client: Connection, path: bytes, head: Head, length: int
    ) -> tuple[Head, Connection]:
        """The SuperLink's response to a node that asks for messages, once there is one, or the time is over."""
        body = b"".join([part async for part in client.read_body(length, self.patience)])
        deadline = time.monotonic() + _SECONDS_HELD
        while True:
            known = news.count  # before the SuperLink is asked, so that nothing is missed
            answer, server = await self._forward(Held(body), path, head, length)
            left = deadline - time.monotonic()
            if answer.length() or b" 200 " not in answer.first or left <= 0:
                return answer, server
            self._give_back(server, answer)
            await news.wait(known, left)
            if not client.is_usable():  # a message that the SuperLink hands out now would be lost
                raise ConnectionError("the node has gone")

    async def _forward(
        self, client: "Connection | Held", path: bytes, head: Head, length: int
    ) -> tuple[Head, Connection]:
        """Sends a request to the SuperLink; returns the head of the response, and the connection with its body."""
        async with asyncio.timeout(_SECONDS_TO_ANSWER):
            server = await self.upstream.open()
        try:
            host = f"{self.upstream.host}:{self.upstream.port}".encode()
            first = Head(b"POST " + path + b" HTTP/1.1", ((b"host", host), *_end_to_end(head).headers))
            await self._relay(client, server, first, length)
            async with asyncio.timeout(_SECONDS_TO_ANSWER):
                answer = await server.read_head()
            if answer is None or not answer.first.startswith(b"HTTP/1."):
                raise InvalidHeadError("no response")
            answer.length()
        except BaseException:
            server.close()
            raise
        return answer, server

    async def _relay(self, source: "Connection | Held", target: Connection, head: Head, length: int) -> None:
        """Passes on a head and a body, whose parts must come, and be taken, in time."""
        stall = _STALL_FACTOR * self.patience
        async with asyncio.timeout(stall + length / _LEAST_RATE):
            await target.write(head.pack())
            async for part in source.read_body(length, stall):
                async with asyncio.timeout(stall):
                    await target.write(part)
                await asyncio.sleep(0)

    async def _refuse(self, client: Connection, refusal: Refusal) -> None:
        """Answers, and reads a while what the node is still sending, as it would not see the answer otherwise."""
        status = f"HTTP/1.1 {refusal.status} {_REASONS[refusal.status]}".encode()
        text = refusal.text.encode()
        headers = (
            (b"content-length", str(len(text)).encode()),
            (b"content-type", b"text/plain"),
            (b"connection", b"close"),
        )
        async with asyncio.timeout(self.patience):
            await client.write(Head(status, headers).pack() + text)
            async for _ in client.read_body(_MAX_DRAINED, self.patience):
                pass


def _unknown_key(path: bytes) -> Refusal:
    """The answer to a request that is not signed by a key of the folder."""
    if (found := _UNKNOWN_KEY.get(path.rpartition(b"/")[2])) is None:
        return Refusal(401, "no signature of a registered key")
    return Refusal(412, json.dumps(dict(zip(("code", "detail"), found, strict=True))))


def _end_to_end(head: Head) -> Head:
    """A head without the headers that are about one connection alone."""
    return Head(head.first, tuple(each for each in head.headers if each[0] not in _OF_A_CONNECTION))


def main() -> None:
    """Serves until the process is ended."""
    parser = argparse.ArgumentParser()
    for option in ("--host", "--port", "--prefix", "--target-host", "--target-port", "--max-bytes"):
        parser.add_argument(option, required=True)
    for option in ("--certificate", "--key", "--authority", "--keys", "--news"):
        parser.add_argument(option, type=Path)
    parser.add_argument("--patience", type=float, default=10.0)
    given = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    context = ssl.create_default_context(cafile=given.authority) if given.authority else None
    upstream = Upstream(given.target_host, int(given.target_port), context)
    ring = KeyRing(given.keys, given.certificate, given.key)
    news = News(given.news) if given.news else None
    proxy = Proxy(given.prefix, upstream, ring, int(given.max_bytes), given.patience, news)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    family = socket.AF_INET6 if ":" in given.host else socket.AF_INET
    with socket.create_server((given.host, int(given.port)), family=family, backlog=1024) as listener:
        listener.setblocking(False)
        asyncio.run(proxy.listen(listener))


if __name__ == "__main__":
    main()
