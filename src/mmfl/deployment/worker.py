"""The worker of a node: a process that holds data and models while the node runs, and answers one message at a time.

    python -m mmfl.deployment.worker --module deployed.py --clients 0,1 --socket FOLDER/worker

Flower starts a process for every message, and importing torch in each would take longer than most trainings. So that
process only passes bytes to the worker, through a socket in a folder that nobody else can read. The worker ends when
its standard input is closed.
"""

import argparse
import os
import socket
import struct
import sys
import threading
from contextlib import suppress
from pathlib import Path

from mmfl.deployment.node_service import NodeService
from mmfl.deployment.remote_federation import NodeFederation
from mmfl.deployment.user_module import UserModule
from mmfl.engine import Simulation
from mmfl.errors import UserError
from mmfl.privacy import Privacy

_LENGTH = struct.Struct(">Q")


def main(arguments: list[str] | None = None) -> int:
    """Serves until standard input is closed."""
    parser = argparse.ArgumentParser(prog="mmfl.deployment.worker")
    parser.add_argument("--module", required=True, type=Path)
    parser.add_argument("--clients", required=True, type=lambda text: [int(part) for part in text.split(",")])
    parser.add_argument("--socket", required=True, type=Path)
    parser.add_argument("--capacity", default=1, type=int)
    parser.add_argument("--device", default=None)
    parser.add_argument("--clip", default=None, type=float)
    parser.add_argument("--noise", default=0.0, type=float)
    options = parser.parse_args(arguments)
    try:
        module = UserModule.load(options.module)
        service = NodeService(
            NodeFederation(module.tasks, options.clients, module.data, options.capacity),
            Simulation(options.device),
            Privacy(options.clip, options.noise),
        )
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    threading.Thread(target=_end_with_input, args=(options.socket,), daemon=True).start()
    serve(service, options.socket)
    return 0


def serve(service: NodeService, path: Path) -> None:
    """Answers connections, one after the other. The socket file appears under its name once the worker listens."""
    new = path.with_name(f"{path.name}.new")
    for each in (path, new):
        each.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.bind(str(new))
        new.chmod(0o600)
        server.listen()
        new.rename(path)
        while True:
            connection, _ = server.accept()
            with connection, suppress(OSError):  # the other side may have closed the connection
                answer_one(service, connection)


def answer_one(service: NodeService, connection: socket.socket) -> None:
    """Reads a request, as length and bytes, and writes the reply in the same form."""
    with connection.makefile("rwb") as stream:
        head = stream.read(_LENGTH.size)
        if len(head) == _LENGTH.size:
            reply = service.answer(stream.read(*_LENGTH.unpack(head)))
            stream.write(_LENGTH.pack(len(reply)))
            stream.write(reply)


def _end_with_input(path: Path) -> None:
    while sys.stdin.buffer.read(1 << 16):
        pass
    path.unlink(missing_ok=True)
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
