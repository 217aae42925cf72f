"""A deployment with troubles. Each is set for a round beforehand, and no deadline passes by the clock, so that what
happens does not depend on how fast the machine is.

The folder that MMFL_TROUBLES names says what goes wrong: a file `0.2` spoils the answer to the training of round 2 on
the node whose first client is 0, in the way that it says. `silent` is an answer that waits for a file `go-on`; the
file `0.2.silent` tells that it does. A file `0.open` spoils the answer to the stage `open` of secure aggregation. A
file `lost-7` tells that node 7 will not answer in time, and while there is a file `hold-5` the server sends nothing of
round 5.

Run as a program it is the worker of a node. As a module it holds the ServerApp.
"""

import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import torch

from mmfl.deployment.payload import Payload

FOLDER = Path(os.environ.get("MMFL_TROUBLES", ""))


def spoiled(client: int, round: int | str, reply: bytes) -> bytes:
    """A node's answer, with the trouble that was set for it."""
    order = FOLDER / f"{client}.{round}"
    if not order.exists():
        return reply
    kind, payload = order.read_text(), Payload.unpack(reply)
    order.unlink()  # once: a round may be trained again after the server was lost
    if kind == "silent":
        (FOLDER / f"{order.name}.silent").touch()
        while not (FOLDER / "go-on").exists():
            time.sleep(0.05)
    elif kind == "garbage":
        return b"\x80\x04garbage"
    elif kind == "nan":
        payload.vectors[min(payload.vectors)][0] = torch.nan
    return payload.pack()


def work() -> int:
    from mmfl.deployment import worker
    from mmfl.deployment.node_service import NodeService

    answer = NodeService.answer

    def troubled(service: NodeService, packed: bytes) -> bytes:
        asked, reply, client = Payload.unpack(packed).fields, answer(service, packed), service.federation.members[0]
        if "open" in asked.get("secure", {}):
            return spoiled(client, "open", reply)
        return spoiled(client, asked["round"], reply) if "train" in asked else reply

    NodeService.answer = troubled
    return worker.main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(work())
else:
    from flwr.serverapp import ServerApp

    from mmfl.deployment import exchange
    from mmfl.deployment import server_app as server
    from mmfl.deployment.flower_transport import FlowerTransport

    skipped = 0.0
    app = ServerApp()

    class TroubledTransport(FlowerTransport):
        """Lets the time of an exchange be over when all have answered but the nodes that are known to be lost."""

        def __init__(self, grid):
            super().__init__(grid)
            self.asked = {}

        def send(self, payloads, round, seconds):
            while (FOLDER / f"hold-{round}").exists():
                time.sleep(0.05)
            sent = super().send(payloads, round, seconds)
            work = {node for node, payload in payloads.items() if "announce" not in Payload.unpack(payload).fields}
            self.asked |= {name: (node, seconds) for name, node in sent.items() if node in work}
            return sent

        def receive(self, messages):
            global skipped
            replies = super().receive(messages)
            left = set(messages) - {reply.message for reply in replies}
            if left and all(name in self.asked and (FOLDER / f"lost-{self.asked[name][0]}").exists() for name in left):
                skipped += max(self.asked.pop(name)[1] for name in left) + 1
            return replies

    @app.main()
    def main(grid, context):
        exchange.time = SimpleNamespace(sleep=time.sleep, monotonic=lambda: time.monotonic() + skipped)
        server.FlowerTransport = TroubledTransport
        server.main(grid, context)
