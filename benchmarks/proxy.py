"""Many nodes at the proxy of `mmfl link`: memory for each connection, and time for their heartbeats.

    python benchmarks/proxy.py --connections 5000 --keys 250

Starts the proxy with certificates and keys, in front of a server that answers at once, and connects over TLS on
loopback. Every connection sends a signed request of a heartbeat's size, then all of them are silent, then all send
another one.
"""

import argparse
import asyncio
import base64
import datetime
import os
import resource
import ssl
import sys
import tempfile
import time
from pathlib import Path

import mmfl.deployment
from mmfl.deployment.child_processes import ChildProcesses
from mmfl.deployment.machines import free_port, listens
from mmfl.deployment.security import Address, Keys, make_keys

_PROXY = Path(mmfl.deployment.__file__).with_name("proxy.py")
_AT_ONCE = 100  # handshakes
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def signed_headers(path: Path) -> bytes:
    """The headers by which a node shows its key."""
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_private_key

    key = load_ssh_private_key(path.read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    now = datetime.datetime.now(datetime.UTC).isoformat().encode()
    signature = base64.b64encode(key.sign(now, ec.ECDSA(SHA256())))
    lines = (
        b"flwr-public-key: " + base64.b64encode(public),
        b"flwr-timestamp: " + now,
        b"flwr-signature: " + signature,
    )
    return b"\r\n".join(lines)


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """The server behind the proxy: answers every request at once."""
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(int(line[15:]) for line in head.split(b"\r\n") if line.startswith(b"content-length:"))
            await reader.readexactly(length)
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
    except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
        writer.close()


async def beat(streams: Streams, headers: bytes) -> bool:
    """Sends a request of a heartbeat's size; returns whether it was answered."""
    reader, writer = streams
    writer.write(
        b"POST /v1/fleet/send-node-heartbeat HTTP/1.1\r\ncontent-length: 20\r\n" + headers + b"\r\n\r\n" + bytes(20)
    )
    return (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200")


async def measure(port: int, process: int, keys: Keys, count: int, connections: int) -> None:
    """Opens all connections and prints what they take."""
    context = ssl.create_default_context(cafile=keys.authority)
    paths = [keys.node_key(k) for k in range(count)]
    gate = asyncio.Semaphore(_AT_ONCE)
    before = resident_kilobytes(process)

    async def join(n: int) -> Streams:
        async with gate:
            streams = await asyncio.open_connection("127.0.0.1", port, ssl=context)
            assert await beat(streams, signed_headers(paths[n % count]))
            return streams

    began, used = time.monotonic(), processor_seconds(process)
    opened = await asyncio.gather(*map(join, range(connections)))
    seconds, used = time.monotonic() - began, processor_seconds(process) - used
    print(
        f"{connections} connections of {count} keys, each with a first request: {seconds:.1f} s, "
        f"proxy {used:.1f} s of processor"
    )
    print(
        f"memory of the proxy: {(resident_kilobytes(process) - before) / connections:.1f} kB for each connection, "
        f"{before} kB without"
    )
    headers = [signed_headers(path) for path in paths]
    began, used = time.monotonic(), processor_seconds(process)
    answered = await asyncio.gather(*(beat(streams, headers[n % count]) for n, streams in enumerate(opened)))
    seconds, used = time.monotonic() - began, processor_seconds(process) - used
    print(f"a heartbeat of each: {sum(answered)} answered in {seconds:.1f} s, proxy {used:.1f} s of processor")


def resident_kilobytes(process: int) -> int:
    """The memory of a process."""
    return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024


def processor_seconds(process: int) -> float:
    """The time of processors that a process has used."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--connections", type=int, default=5000)
    parser.add_argument("--keys", type=int, default=250)
    given = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with tempfile.TemporaryDirectory() as folder, ChildProcesses(Path(folder) / "logs") as processes:
        keys = make_keys(Path(folder) / "keys", ["localhost"], [str(k) for k in range(given.keys)])
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        target, port = server.sockets[0].getsockname()[1], free_port()
        command = [sys.executable, str(_PROXY), "--host", "127.0.0.1", "--port", str(port), "--prefix", "/v1/fleet/"]
        command += [
            "--target-host",
            "127.0.0.1",
            "--target-port",
            str(target),
            "--max-bytes",
            "1000000",
            "--patience",
            "60",
        ]
        command += ["--certificate", str(keys.certificate), "--key", str(keys.server_key), "--keys", str(keys.folder)]
        child = processes.start("proxy", command, os.environ)
        while not listens(Address("127.0.0.1", port)):
            await asyncio.sleep(0.1)
        await asyncio.wait_for(measure(port, child.process.pid, keys, given.keys, given.connections), 500)
        print(child.output(), end="")


if __name__ == "__main__":
    asyncio.run(main())
