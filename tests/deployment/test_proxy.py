"""The proxy as a process of its own, before a server that answers when it is told to."""

import os
import socket
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from traces import clean, needs_flower

import mmfl.deployment
from conftest import wait_for
from mmfl.deployment.child_processes import ChildProcesses
from mmfl.deployment.machines import free_port, listens
from mmfl.deployment.security import Address

__all__ = ["clean"]
PROXY = Path(mmfl.deployment.__file__).with_name("proxy.py")
MAX_MESSAGE_BYTES = 1000


class Slow(ThreadingHTTPServer):
    """Counts the requests that came, and answers all once it is released."""

    daemon_threads, request_queue_size = True, 200

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Answer)
        self.came, self.counting, self.released = 0, threading.Lock(), threading.Event()
        self.answer_bytes = 0

    def wait_for(self, count: int) -> int:
        """How many have come, when there are so many."""
        wait_for(lambda: self.came >= count)
        return self.came


class Answer(BaseHTTPRequestHandler):
    """Reads a request, and waits; one that breaks off it forgets."""

    def do_POST(self):
        length = int(self.headers["content-length"])
        if len(self.rfile.read(length)) < length:
            return
        with self.server.counting:
            self.server.came += 1
        self.server.released.wait()
        self.send_response(200)
        self.send_header("content-length", str(self.server.answer_bytes))
        self.end_headers()
        with suppress(OSError):
            self.wfile.write(bytes(self.server.answer_bytes))

    def log_message(self, *_):
        pass


@pytest.fixture
def slow() -> Iterator[Slow]:
    with Slow() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.released.set()
        server.shutdown()


@pytest.fixture
def port(slow, clean, tmp_path) -> Iterator[int]:
    """Where the proxy listens; it waits for nobody longer than a second or two."""
    port = free_port()
    command = [sys.executable, str(PROXY), "--host", "127.0.0.1", "--port", str(port), "--prefix", "/v1/fleet/"]
    command += ["--target-host", "127.0.0.1", "--target-port", str(slow.server_port)]
    command += ["--max-bytes", str(MAX_MESSAGE_BYTES), "--patience", "2"]
    with ChildProcesses(tmp_path) as processes:
        processes.start("proxy", command, os.environ)
        wait_for(lambda: listens(Address("127.0.0.1", port)))
        yield port


@pytest.fixture
def send_bytes(port) -> Callable[[int], int]:
    """Sends so many bytes through the proxy; gives the status of the answer."""
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def send(size: int) -> int:
        try:
            return direct.open(f"http://127.0.0.1:{port}/v1/fleet/push-object", data=bytes(size)).status
        except urllib.error.HTTPError as error:
            return error.code

    return send


@needs_flower
def test_when_the_proxy_has_no_more_room_a_node_is_told_to_try_again_and_may(slow, send_bytes):
    with ThreadPoolExecutor(4) as others:
        sent = [others.submit(send_bytes, MAX_MESSAGE_BYTES) for _ in range(4)]
        slow.wait_for(4)
        fifth = send_bytes(MAX_MESSAGE_BYTES)
        slow.released.set()
    assert [each.result() for each in sent] == [200] * 4
    assert fifth == 503
    assert send_bytes(MAX_MESSAGE_BYTES) == 200


@needs_flower
def test_many_nodes_may_use_the_proxy_at_once(slow, send_bytes):
    with ThreadPoolExecutor(150) as nodes:
        sent = [nodes.submit(send_bytes, 1) for _ in range(150)]
        came = slow.wait_for(150)
        slow.released.set()
    assert came == 150
    assert [each.result() for each in sent] == [200] * 150


def connect(port: int, text: str = "") -> socket.socket:
    """A connection on which a text has been sent."""
    connection = socket.create_connection(("127.0.0.1", port), timeout=60)
    connection.sendall(text.encode())
    return connection


def request(length: int | str) -> str:
    """The head of a request with a body of this length."""
    return f"POST /v1/fleet/push-object HTTP/1.1\r\nhost: a\r\ncontent-length: {length}\r\n\r\n"


def received(connection: socket.socket) -> int:
    """How many bytes come until the other side closes the connection, as it must."""
    count = 0
    with suppress(ConnectionError):
        while data := connection.recv(1 << 20):
            count += len(data)
    return count


@needs_flower
def test_idle_connections_do_not_keep_a_node_out(slow, port, send_bytes):
    slow.released.set()
    idle = [connect(port) for _ in range(700)]  # more than one address may have
    assert send_bytes(10) == 200
    assert received(idle[0]) == 0
    for each in idle:
        each.close()


@needs_flower
@pytest.mark.parametrize("text", ["", "POST /v1/fl", request(900) + "a few bytes"], ids=["nothing", "a head", "a body"])
def test_who_sends_nothing_more_is_dropped(port, text):
    with connect(port, text) as connection:
        assert received(connection) < 200


@needs_flower
def test_who_does_not_read_is_dropped(slow, port, send_bytes):
    slow.answer_bytes = 50 << 20  # more than the system keeps for both sides
    slow.released.set()
    with connect(port, request(0)) as connection:
        slow.wait_for(1)
        time.sleep(8)  # longer than the proxy waits for a reader
        assert 0 < received(connection) < slow.answer_bytes
    slow.answer_bytes = 0
    assert send_bytes(10) == 200


@needs_flower
@pytest.mark.parametrize(
    ("text", "status"),
    [
        (request(MAX_MESSAGE_BYTES + 1), 413),
        (request(10).replace("fleet", "control"), 403),
        (request(10).replace("POST", "GET"), 403),
        (request("ten"), 400),
        (request(10).replace("\r\n\r\n", "\r\ncontent-length: 11\r\n\r\n"), 400),
        (request(10).replace("content-length: 10", "transfer-encoding: chunked"), 400),
        (request(10).replace("\r\n\r\n", "\r\ntransfer-encoding: chunked\r\n\r\n"), 400),
    ],
)
def test_requests_that_two_readers_could_understand_differently_are_refused(port, text, status):
    with connect(port, text) as connection:
        assert connection.recv(1000).startswith(f"HTTP/1.1 {status} ".encode())
