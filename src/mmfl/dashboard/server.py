"""The server: hands the page and the answers to a browser on this machine, and to nobody else."""

import gc
import hashlib
import ipaddress
import json
import logging
import os
import sys
import webbrowser
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from pathlib import Path
from socketserver import TCPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from mmfl.dashboard.answers import Answers
from mmfl.errors import UserError
from mmfl.report.interactive import plotly_script, require_plotly

PORT = 8421
_log = logging.getLogger(__name__)
_JSON = "application/json"
_FILES = ("style.css", "app.js", "deployment.js", "figures.js", "parts.js")
_KINDS = {"css": "text/css", "js": "text/javascript"}
_RARELY = (100_000, 20, 20)  # collections of garbage: they pass over all records, in which there is none
_HEADERS = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class Server(ThreadingHTTPServer):
    """Serves the runs below a folder on a loopback address."""

    daemon_threads = True

    def __init__(self, folder: Path, port: int | None = None, host: str = "127.0.0.1"):
        """Without a port it is the usual one, or one that is free where that is taken."""
        if port is not None and not 0 < port < 65536:
            raise UserError(f"dashboard: port is {port}; expected 1 to 65535.")
        if not folder.is_dir():
            problem = "is a file" if folder.exists() else "does not exist"
            raise UserError(f"dashboard: folder '{folder}' {problem}; expected one with runs, made by `mmfl run`.")
        if not is_loopback(host):
            problem = "can be reached by others" if _is_public(host) else "is not an IPv4 loopback address"
            raise UserError(f"dashboard: host '{host}' {problem}; expected 127.0.0.1 or localhost.")
        require_plotly()
        self.complaints: set[str] = set()
        self.answers = Answers(folder.resolve())
        try:
            self._listen(host, PORT if port is None else port)
        except OSError as error:
            if port is not None:
                raise UserError(f"dashboard: port {port} cannot be used: {error.strerror}.") from None
            self._listen(host, 0)

    def server_bind(self) -> None:
        """As the library does, without asking the network for this machine's name: there may be none."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def _listen(self, host: str, port: int) -> None:
        super().__init__((host, port), PageRequest)

    @property
    def url(self) -> str:
        """Where the page is."""
        return f"http://{self.server_name}:{self.server_port}/"

    def show(self, browser: bool) -> None:
        """Serves until Ctrl-C, and opens a browser where there is a screen for one."""
        screen = sys.platform in ("darwin", "win32") or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
        if browser and screen:
            webbrowser.open(self.url)
        gc.set_threshold(*_RARELY)
        with suppress(KeyboardInterrupt):
            self.serve_forever()

    def complain(self, problem: str) -> None:
        """Prints an error once, although the page keeps asking."""
        if problem not in self.complaints:
            _log.exception(problem)
        self.complaints.add(problem)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that has gone away is no error."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class PageRequest(BaseHTTPRequestHandler):
    """A browser's request; only GET is answered.

    A site elsewhere could make its own name point to this machine (DNS rebinding), so the host that the browser asked
    for must be a name of this machine.
    """

    protocol_version = "HTTP/1.1"
    server: Server

    def do_GET(self) -> None:
        """The page, or an answer to it."""
        if not is_loopback(_host(self.headers.get("Host", ""))):
            return self._refuse(HTTPStatus.FORBIDDEN, "the dashboard is for browsers on its machine: http://127.0.0.1.")
        where = urlsplit(self.path)
        try:
            if where.path.startswith("/api/"):
                answer = self.server.answers.to(where.path.removeprefix("/api/"), parse_qs(where.query))
                return self._reply(answer.encode(), _JSON)
            if where.path not in page():
                raise UserError(f"there is nothing at '{where.path}'.")
            return self._reply(page()[where.path], _KINDS.get(where.path.rpartition(".")[2], "text/html"))
        except UserError as error:
            return self._refuse(HTTPStatus.NOT_FOUND, str(error))
        except OSError as error:
            return self._refuse(HTTPStatus.NOT_FOUND, f"the run cannot be read: {error.strerror}.")
        except Exception as error:  # whatever is wrong with one run must not end the others' page
            problem = f"{where.path} cannot be shown ({type(error).__name__}: {error})."
            self.server.complain(problem)
            return self._refuse(HTTPStatus.INTERNAL_SERVER_ERROR, problem)

    def refuse_method(self) -> None:
        """Refuses all methods that could change something."""
        self.close_connection = True  # what was sent along is not read
        self._refuse(HTTPStatus.METHOD_NOT_ALLOWED, "the dashboard only shows; expected GET.", {"Allow": "GET"})

    do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = refuse_method  # noqa: N815

    def _reply(self, body: bytes, kind: str) -> None:
        """Sends a body, unless the browser has it already, as the ETag it sends says."""
        tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
        known = self.headers.get("If-None-Match") == tag
        status = HTTPStatus.NOT_MODIFIED if known else HTTPStatus.OK
        self._send(status, b"" if known else body, {"ETag": tag, "Content-Type": f"{kind}; charset=utf-8"})

    def _refuse(self, status: HTTPStatus, why: str, headers: Mapping[str, str] | None = None) -> None:
        self._send(status, json.dumps({"error": why}).encode(), {"Content-Type": _JSON, **(headers or {})})

    def _send(self, status: HTTPStatus, body: bytes, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for name, value in {**_HEADERS, **headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Writes no log of requests."""


@cache
def page() -> dict[str, bytes]:
    """The files of the page, by path."""
    static = resources.files("mmfl.dashboard") / "static"
    files = {f"/{name}": (static / name).read_bytes() for name in _FILES}
    return files | {"/": (static / "index.html").read_bytes(), "/plotly.js": plotly_script().encode()}


def is_loopback(host: str) -> bool:
    """Whether a host's name leads to this machine and to no other.

    >>> is_loopback("localhost"), is_loopback("127.0.0.1"), is_loopback("0.0.0.0"), is_loopback("example.org")
    (True, True, False, False)
    """
    try:
        return host == "localhost" or ipaddress.IPv4Address(host).is_loopback
    except ValueError:
        return False


def _is_public(host: str) -> bool:
    """Whether it is an address, and not one of those that stay within the machine."""
    try:
        return not ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _host(header: str) -> str:
    """The name in a `Host` header, without the port."""
    try:
        return urlsplit(f"//{header}").hostname or ""
    except ValueError:
        return ""
