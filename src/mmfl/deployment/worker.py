"""The worker of a node: a process that holds data and models while the node runs, and answers one message at a time.

    python -m mmfl.deployment.worker --module deployed.py --clients 0,1 --socket FOLDER/worker

Flower starts a process for every message, and importing torch in each would take longer than most trainings. So that
process only passes bytes to the worker, through a socket in a folder that nobody else can read.
"""

import argparse
import sys
from contextlib import suppress
from multiprocessing.connection import Listener
from pathlib import Path

from mmfl.deployment.node_service import NodeService
from mmfl.deployment.remote_federation import NodeFederation, UserModule
from mmfl.engine import Simulation
from mmfl.errors import UserError
from mmfl.privacy import Privacy


def main(arguments: list[str] | None = None) -> int:
    """Serves until the process is ended."""
    parser = argparse.ArgumentParser(prog="mmfl.deployment.worker")
    parser.add_argument("--module", required=True, type=Path)
    parser.add_argument("--clients", required=True, type=lambda text: [int(part) for part in text.split(",")])
    parser.add_argument("--socket", required=True, type=Path)
    parser.add_argument("--capacity", default=1, type=int)
    parser.add_argument("--device", default=None)
    parser.add_argument("--clip", default=None, type=float)
    parser.add_argument("--noise", default=0.0, type=float)
    parser.add_argument("--sums-only", default="no", choices=("yes", "no"))
    options = parser.parse_args(arguments)
    try:
        module = UserModule.load(options.module)
        service = NodeService(
            NodeFederation(module.tasks, options.clients, module.data, options.capacity),
            Simulation(options.device),
            Privacy(options.clip, options.noise),
            options.socket.parent,
            options.sums_only == "yes",
        )
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    serve(service, options.socket)
    return 0


def serve(service: NodeService, path: Path) -> None:
    """Answers connections to a new socket, one after the other."""
    with Listener(str(path), "AF_UNIX") as listener:
        path.chmod(0o600)
        while True:
            with listener.accept() as connection, suppress(OSError, EOFError):  # the other side may have closed it
                connection.send_bytes(service.answer(connection.recv_bytes()))


if __name__ == "__main__":
    sys.exit(main())
