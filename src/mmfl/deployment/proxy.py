"""The proxy in front of a SuperLink: passes on nodes' requests, and nothing else. A program that needs no other module.

Flower serves nodes, and those who start runs or register keys, on one port, and authenticates only the nodes. So where
other machines can reach the server, the SuperLink listens on loopback and this proxy in front of it.
"""

import argparse
import re
import ssl
from collections.abc import AsyncIterator, Iterable

import httpx
import uvicorn
from starlette.background import BackgroundTask
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

_HOP_HEADERS = {b"host", b"connection", b"keep-alive", b"transfer-encoding", b"upgrade", b"te", b"trailer", b"expect"}
_MAX_CONNECTIONS = 1000  # at once; further ones are answered with 503


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
        """Answers one request."""
        if scope["type"] == "http":
            response = await self.forward(Request(scope, receive))
            await response(scope, receive, send)

    async def forward(self, request: Request) -> Response:
        """The SuperLink's response to a request, or a refusal of the proxy's own."""
        path, received = request.scope["path"], 0
        if request.method != "POST" or not self.allowed.fullmatch(path):
            return PlainTextResponse("this address is for nodes only", 403)

        async def body() -> AsyncIterator[bytes]:
            nonlocal received
            async for data in request.stream():
                received += len(data)
                self.bytes_in_progress += len(data)
                if received > self.max_bytes:
                    raise HTTPException(413, "too much for one request")
                if self.bytes_in_progress > 4 * self.max_bytes:
                    raise HTTPException(503, "too much at once; try again")
                yield data

        try:
            passed_on = self.client.build_request(
                "POST", path, headers=_end_to_end(request.headers.raw), content=body()
            )
            answer = await self.client.send(passed_on, stream=True)
        except HTTPException as refused:
            return PlainTextResponse(refused.detail, refused.status_code)
        except (httpx.HTTPError, ClientDisconnect):
            return PlainTextResponse("the SuperLink does not answer", 502)
        finally:
            self.bytes_in_progress -= received
        response = StreamingResponse(answer.aiter_raw(), answer.status_code, background=BackgroundTask(answer.aclose))
        response.raw_headers = _end_to_end(answer.headers.raw)
        return response


def _end_to_end(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """The headers that are not about one connection alone."""
    return [(name, value) for name, value in headers if name.lower() not in _HOP_HEADERS]


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
