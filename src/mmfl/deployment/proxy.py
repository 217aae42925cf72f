"""The proxy in front of a SuperLink: passes on nodes' requests, and nothing else. A program that needs no other module.

Flower serves nodes, and those who start runs or register keys, on one port, and authenticates only the nodes. So where
other machines can reach the server, the SuperLink listens on loopback and this proxy in front of it.
"""

import argparse
import re
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from typing import Any

import httpx
import uvicorn

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Scope]]
Send = Callable[[Scope], Awaitable[None]]
_HOP_HEADERS = {b"host", b"connection", b"keep-alive", b"transfer-encoding", b"upgrade", b"te", b"trailer", b"expect"}
_MAX_CONNECTIONS = 1000  # at once; further ones are answered with 503


class RefusedError(Exception):
    """A request that is not passed on; the arguments are status and text of the response."""


class Proxy:
    """An ASGI application that passes on POST requests below one path.

    The SuperLink holds a request in memory before it authenticates the sender. So a request may have at most
    `max_bytes` bytes, and all requests in progress together four times that; beyond it, nodes are told to try again.
    """

    def __init__(self, prefix: str, target: str, authority: str | None, max_bytes: int):
        self.max_bytes, self.bytes_in_progress = max_bytes, 0
        self.allowed = re.compile(re.escape(prefix) + "[a-z-]+")
        verify = ssl.create_default_context(cafile=authority) if authority else True
        limits = httpx.Limits(max_connections=_MAX_CONNECTIONS)
        self.client = httpx.AsyncClient(base_url=target, verify=verify, timeout=None, limits=limits, trust_env=False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes on one request, and the response."""
        if scope["type"] != "http":
            return
        if scope["method"] != "POST" or not self.allowed.fullmatch(scope["path"]):
            await respond(send, 403, b"this address is for nodes only")
            return

        received = 0

        async def body() -> AsyncIterator[bytes]:
            nonlocal received
            while True:
                part = await receive()
                if part["type"] == "http.disconnect":
                    raise ConnectionError("the node hung up")
                data = part.get("body", b"")
                received += len(data)
                self.bytes_in_progress += len(data)
                if received > self.max_bytes:
                    raise RefusedError(413, b"too much for one request")
                if self.bytes_in_progress > 4 * self.max_bytes:
                    raise RefusedError(503, b"too much at once; try again")
                yield data
                if not part.get("more_body", False):
                    return

        headers = [(name, value) for name, value in scope["headers"] if name.lower() not in _HOP_HEADERS]
        try:
            request = self.client.build_request("POST", scope["path"], headers=headers, content=body())
            answer = await self.client.send(request, stream=True)
        except RefusedError as refused:
            await respond(send, *refused.args)
            return
        except (httpx.HTTPError, ConnectionError):
            await respond(send, 502, b"the SuperLink does not answer")
            return
        finally:
            self.bytes_in_progress -= received
        headers = [(name, value) for name, value in answer.headers.raw if name.lower() not in _HOP_HEADERS]
        await send({"type": "http.response.start", "status": answer.status_code, "headers": headers})
        try:
            async for part in answer.aiter_raw():
                await send({"type": "http.response.body", "body": part, "more_body": True})
        finally:
            await answer.aclose()
        await send({"type": "http.response.body", "body": b""})


async def respond(send: Send, status: int, text: bytes) -> None:
    """Sends a short response of the proxy's own."""
    headers = [(b"content-type", b"text/plain"), (b"content-length", str(len(text)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": text})


def main() -> None:
    """Serves until the process is ended."""
    parser = argparse.ArgumentParser()
    for option in ("--host", "--port", "--prefix", "--target", "--max-bytes"):
        parser.add_argument(option, required=True)
    for option in ("--certificate", "--key", "--authority"):
        parser.add_argument(option)
    given = parser.parse_args()
    uvicorn.run(
        Proxy(given.prefix, given.target, given.authority, int(given.max_bytes)),
        host=given.host,
        port=int(given.port),
        ssl_certfile=given.certificate,
        ssl_keyfile=given.key,
        lifespan="off",
        limit_concurrency=_MAX_CONNECTIONS,
        access_log=False,
        log_level="warning",
    )


if __name__ == "__main__":
    main()
