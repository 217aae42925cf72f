"""The door to a SuperLink for the outside: lets nodes' requests through, and nothing else; run by path, on its own.

Flower answers nodes, and whoever starts runs or registers keys, on one port, and asks only the nodes who they are. So
where others can reach the machine, the SuperLink itself listens on loopback and this door stands in front of it.
"""

import argparse
import re
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from typing import Any

import httpx
import uvicorn

Fields = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Fields]]
Send = Callable[[Fields], Awaitable[None]]
_HOP = {b"host", b"connection", b"keep-alive", b"transfer-encoding", b"upgrade", b"te", b"trailer", b"expect"}
_CONNECTIONS = 1000  # at once; who comes then is told to try again


class RefusedError(Exception):
    """A request that is not passed on: status and text of the answer."""


class Proxy:
    """An ASGI application that passes on POST requests below one path.

    What comes in is held by the SuperLink before it knows who sent it: so a request has at most `most` bytes, and all
    that are under way at once four times that; a node that comes when there is no more room is told to try again.
    """

    def __init__(self, prefix: str, target: str, authority: str | None, most: int):
        self.most, self.held = most, 0
        self.allowed = re.compile(re.escape(prefix) + "[a-z-]+")
        verify = ssl.create_default_context(cafile=authority) if authority else True
        limits = httpx.Limits(max_connections=_CONNECTIONS)
        self.client = httpx.AsyncClient(base_url=target, verify=verify, timeout=None, limits=limits, trust_env=False)

    async def __call__(self, scope: Fields, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            return
        if scope["method"] != "POST" or not self.allowed.fullmatch(scope["path"]):
            await respond(send, 403, b"this address is for nodes only")
            return

        taken = 0

        async def body() -> AsyncIterator[bytes]:
            nonlocal taken
            while True:
                part = await receive()
                if part["type"] == "http.disconnect":
                    raise ConnectionError("the node hung up")
                data = part.get("body", b"")
                taken += len(data)
                self.held += len(data)
                if taken > self.most:
                    raise RefusedError(413, b"too much for one request")
                if self.held > 4 * self.most:
                    raise RefusedError(503, b"too much at once; try again")
                yield data
                if not part.get("more_body", False):
                    return

        headers = [(name, value) for name, value in scope["headers"] if name.lower() not in _HOP]
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
            self.held -= taken
        kept = [(name, value) for name, value in answer.headers.raw if name.lower() not in _HOP]
        await send({"type": "http.response.start", "status": answer.status_code, "headers": kept})
        try:
            async for part in answer.aiter_raw():
                await send({"type": "http.response.body", "body": part, "more_body": True})
        finally:
            await answer.aclose()
        await send({"type": "http.response.body", "body": b""})


async def respond(send: Send, status: int, text: bytes) -> None:
    """A short answer of the gate's own."""
    headers = [(b"content-type", b"text/plain"), (b"content-length", str(len(text)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": text})


def main() -> None:
    """Serves until it is ended."""
    parser = argparse.ArgumentParser()
    for option in ("--host", "--port", "--prefix", "--target", "--most"):
        parser.add_argument(option, required=True)
    for option in ("--certificate", "--key", "--authority"):
        parser.add_argument(option)
    given = parser.parse_args()
    uvicorn.run(
        Proxy(given.prefix, given.target, given.authority, int(given.most)),
        host=given.host,
        port=int(given.port),
        ssl_certfile=given.certificate,
        ssl_keyfile=given.key,
        lifespan="off",
        limit_concurrency=_CONNECTIONS,
        access_log=False,
        log_level="warning",
    )


if __name__ == "__main__":
    main()
