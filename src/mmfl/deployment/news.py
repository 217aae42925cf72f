"""News of messages for nodes: the server tells the proxy, where nodes wait for them instead of asking repeatedly."""

import asyncio
import socket
from contextlib import suppress
from pathlib import Path

SOCKET_VARIABLE = "MMFL_NEWS"
"""The variable by which runs at a SuperLink behind a proxy know the socket of its news."""


class News:
    """Wakes up who waits, whenever a datagram arrives at a socket in the file system."""

    def __init__(self, path: Path):
        path.unlink(missing_ok=True)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self._socket.setblocking(False)
        self._waiting: set[asyncio.Future[None]] = set()
        self.count = 0  # of datagrams that have arrived

    def listen(self) -> None:
        """Listens for datagrams, in the event loop that is running."""
        asyncio.get_running_loop().add_reader(self._socket.fileno(), self._wake)

    async def wait(self, known: int, seconds: float) -> None:
        """Waits until more than a `known` number of datagrams have arrived, or some seconds have passed."""
        if self.count > known:
            return
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(woken)
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await woken
        finally:
            self._waiting.discard(woken)

    def _wake(self) -> None:
        with suppress(OSError):
            self._socket.recv(1)
            self.count += 1
        for woken in self._waiting:
            if not woken.done():
                woken.set_result(None)


def tell(path: str | None) -> None:
    """Tells that there are new messages, if anybody listens at the socket."""
    if path:
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line:
            line.setblocking(False)
            line.sendto(b".", path)
