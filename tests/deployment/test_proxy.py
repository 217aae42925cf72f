"""The proxy as a process of its own, before a server that answers when it is told to."""

import os
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from traces import clean, needs_flower

import mmfl.deployment
from conftest import wait_for
from mmfl.deployment.child_processes import ChildProcesses
from mmfl.deployment.machines import free_port

__all__ = ["clean"]
PROXY = Path(mmfl.deployment.__file__).with_name("proxy.py")
MAX_MESSAGE_BYTES = 1000


class Slow(ThreadingHTTPServer):
    """Counts the requests that came, and answers all once it is released."""

    daemon_threads, request_queue_size = True, 200

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Answer)
        self.came, self.counting, self.released = 0, threading.Lock(), threading.Event()

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
        self.send_header("content-length", "0")
        self.end_headers()

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
def send_bytes(slow, clean, tmp_path) -> Iterator:
    """Sends so many bytes through the proxy; gives the status of the answer."""
    port = free_port()
    command = [sys.executable, str(PROXY), "--host", "127.0.0.1", "--port", str(port), "--prefix", "/v1/fleet/"]
    command += ["--target-host", "127.0.0.1", "--target-port", str(slow.server_port)]
    command += ["--max-bytes", str(MAX_MESSAGE_BYTES)]
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def send(size: int) -> int:
        try:
            return direct.open(f"http://127.0.0.1:{port}/v1/fleet/push-object", data=bytes(size)).status
        except urllib.error.HTTPError as error:
            return error.code

    with ChildProcesses(tmp_path) as processes:
        processes.start("proxy", command, os.environ)

        def listens() -> bool:
            try:
                return send(MAX_MESSAGE_BYTES + 1) == 413
            except urllib.error.URLError:
                return False

        wait_for(listens)
        yield send


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
