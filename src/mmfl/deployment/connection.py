"""Connection: one HTTP/1.1 connection on a non-blocking socket, with little memory while it is idle."""

import asyncio
import re
import ssl
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from socket import socket
from typing import TypeVar

_MAX_HEAD = 16 << 10  # bytes of a first line and headers
_CHUNK = 64 << 10
_HEADER = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([^\x00\r\n]*?)[ \t]*")
Result = TypeVar("Result")


class InvalidHeadError(ValueError):
    """A head that is not one of HTTP/1.1, or that names no length of its body."""


@dataclass(frozen=True)
class Head:
    """The first line of a request or response, and its headers, with names in lower case."""

    first: bytes
    headers: tuple[tuple[bytes, bytes], ...]

    @classmethod
    def parse(cls, text: bytes) -> "Head":
        """Reads a head strictly, so that no other reader can understand something else."""
        first, *lines = text.split(b"\r\n")
        matches = [_HEADER.fullmatch(line) for line in lines]
        if not first.isascii() or None in matches:
            raise InvalidHeadError("not a head of HTTP")
        return cls(first, tuple((match[1].lower(), match[2]) for match in matches if match))

    def value(self, name: bytes) -> bytes | None:
        """The value of a header that may be there once."""
        values = [value for each, value in self.headers if each == name]
        if len(values) > 1:
            raise InvalidHeadError(f"{name.decode()} is there {len(values)} times")
        return values[0] if values else None

    def length(self) -> int:
        """The number of bytes of the body, which must be given."""
        text = self.value(b"content-length") or b""
        if not re.fullmatch(rb"[0-9]{1,15}", text) or self.value(b"transfer-encoding") is not None:
            raise InvalidHeadError("no content-length")
        return int(text)

    def pack(self) -> bytes:
        """The head as it is sent."""
        return b"\r\n".join([self.first, *(name + b": " + value for name, value in self.headers), b"", b""])


class Connection:
    """Reads and writes heads and bodies. Nothing here waits for ever, if callers set a time limit around it.

    It needs no buffer between requests, and reads no more than its caller passes on, so that a slow reader slows down
    the writer. Sockets are used directly: the streams of asyncio hold 256 kB for each encrypted connection.
    """

    def __init__(self, sock: socket | ssl.SSLSocket):
        sock.setblocking(False)
        self.sock, self._received = sock, b""

    async def encrypt(self, context: ssl.SSLContext, hostname: str | None = None) -> None:
        """Does the handshake of TLS: as the server, or as a client of the server with this name."""
        self.sock = context.wrap_socket(
            self.sock, server_side=hostname is None, server_hostname=hostname, do_handshake_on_connect=False
        )
        await self._repeat(self.sock.do_handshake, writes=False)

    async def read_head(self) -> Head | None:
        """The next head; None if the other side has closed the connection."""
        while (end := self._received.find(b"\r\n\r\n")) < 0:
            if len(self._received) > _MAX_HEAD:
                raise InvalidHeadError("the head is too long")
            data = await self._read()
            if not data:
                return None
            self._received += data
        text, self._received = self._received[:end], self._received[end + 4 :]
        return Head.parse(text)

    async def read_body(self, length: int, seconds: float) -> AsyncIterator[bytes]:
        """The next so many bytes, in parts; each must come within some seconds."""
        while length:
            async with asyncio.timeout(seconds):
                data = self._received or await self._read()
            data, self._received = data[:length], data[length:]
            if not data:
                raise ConnectionError("closed within a body")
            length -= len(data)
            yield data

    async def write(self, data: bytes) -> None:
        """Sends all of it."""
        left = memoryview(data)
        while left:
            part = left[:_CHUNK]
            sent = await self._repeat(lambda part=part: self.sock.send(part), writes=True)  # type: ignore[misc]
            left = left[sent:]

    def is_usable(self) -> bool:
        """Whether it is open, and nothing has arrived that nobody asked for."""
        try:
            self.sock.recv(1)
        except (ssl.SSLWantReadError, BlockingIOError):
            return not self._received
        except OSError:
            return False
        return False

    def close(self) -> None:
        """Closes it without waiting for the other side."""
        self.sock.close()

    async def _read(self) -> bytes:
        return await self._repeat(lambda: self.sock.recv(_CHUNK), writes=False)

    async def _repeat(self, attempt: Callable[[], Result], writes: bool) -> Result:
        """Tries until it need not wait for the other side."""
        while True:
            try:
                return attempt()
            except ssl.SSLWantReadError:
                await self._wait(False)
            except ssl.SSLWantWriteError:
                await self._wait(True)
            except BlockingIOError:
                await self._wait(writes)

    async def _wait(self, writable: bool) -> None:
        """Waits until the socket can be written, or read."""
        loop = asyncio.get_running_loop()
        ready: asyncio.Future[None] = loop.create_future()
        place = self.sock.fileno()
        if writable:
            loop.add_writer(place, _finish, ready)
        else:
            loop.add_reader(place, _finish, ready)
        try:
            await ready
        finally:
            if writable:
                loop.remove_writer(place)
            else:
                loop.remove_reader(place)


def _finish(ready: "asyncio.Future[None]") -> None:
    if not ready.done():
        ready.set_result(None)
