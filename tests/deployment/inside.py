"""Nodes within this process: a transport whose nodes reply at once, or as badly as a test wants."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

import mmfl
from conftest import toy_task
from mmfl.data import Dataset
from mmfl.deployment.exchange import Reply
from mmfl.deployment.node_service import NodeService
from mmfl.deployment.remote_federation import NodeFederation, UserModule
from mmfl.deployment.settings import DeploymentSettings
from mmfl.federation import Federation
from mmfl.runs.directory import RunDirectory

CLIENTS = 6
NODES = {100: [0, 3], 101: [1], 102: [2, 4], 103: [5]}
Trouble = Callable[[int, int, bytes], bytes | None]


class InsideTransport:
    """Nodes by number, each with its service. `trouble(node, round, reply)` may change a reply; None drops it."""

    max_reply_bytes: int | None = None

    def __init__(self, services: Mapping[int, NodeService], trouble: Trouble = lambda node, round, reply: reply):
        self.services, self.trouble = dict(services), trouble
        self.sent: list[tuple[int, int, bytes]] = []
        self.waiting: dict[str, bytes | None] = {}
        self._names = count()

    def nodes(self) -> set[int]:
        return set(self.services)

    def send(self, payloads: Mapping[int, bytes], round: int, seconds: float) -> dict[str, int]:
        names = {}
        for node, payload in payloads.items():
            name = f"message-{next(self._names)}"
            names[name] = node
            self.sent.append((node, round, payload))
            reply = self.services[node].answer(payload) if node in self.services else None
            self.waiting[name] = None if reply is None else self.trouble(node, round, reply)
        return names

    def receive(self, messages: Iterable[str]) -> list[Reply]:
        here = [name for name in messages if self.waiting.get(name) is not None]
        return [Reply(name, self.waiting.pop(name)) for name in here]


def federation() -> Federation:
    """Two tasks, of which a client lacks the second."""
    tasks = [toy_task("a", epochs=2, batch_size=4), toy_task("b", classes=3, lr=0.3)]
    lacks = np.zeros((CLIENTS, 2), dtype=bool)
    lacks[2, 1] = True
    return mmfl.Federation(tasks, CLIENTS, lacks=lacks)


def service_of(
    federation: Federation, clients: Sequence[int], capacity: int = 1, folder: Path | None = None
) -> NodeService:
    """A node with some clients of a simulated federation, and exactly their data; a shared test set they all have."""

    def data(task: str, client: int) -> Dataset | tuple | None:
        s = federation.task_names.index(task)
        rows, whole, tests = federation.shards[s].of(client), federation.tasks[s].data, federation.test_shards[s]
        if not len(rows):
            return None
        test_rows = np.arange(len(whole.x_test)) if tests is None else tests.of(client)
        x, y = whole.x[rows], whole.y[rows]
        return Dataset(task, x, y, whole.x_test[test_rows], whole.y_test[test_rows]) if len(test_rows) else (x, y)

    members = NodeFederation(federation.tasks, clients, data, capacity)
    return NodeService(members, mmfl.engine.Simulation("cpu"), folder=folder)


def transport(pool: Federation | None = None, **options) -> InsideTransport:
    """A transport to all nodes of a federation."""
    pool = pool or federation()
    return InsideTransport({node: service_of(pool, clients) for node, clients in NODES.items()}, **options)


def deployed(
    method="mmfl-lvr",
    rounds=4,
    rate=0.5,
    *,
    to=None,
    trouble=None,
    directory=None,
    resume=False,
    tasks=None,
    known=None,
    **others,
) -> mmfl.Run:
    """A deployment over a transport, by default to all nodes, with a `trouble` if there is one; updates as they are."""
    from mmfl.deployment.server_app import run

    to = to or transport(**({"trouble": trouble} if trouble else {}))
    module = UserModule(tasks or federation().tasks, lambda task, client: None)
    told = {"clients": CLIENTS, "method": method, "rounds": rounds, "rate": rate, "gather": 0.2, "clip": 0}
    with TemporaryDirectory() as temporary:
        place = directory or Path(temporary) / "run"
        if not place.exists():
            RunDirectory.create(place, {"source": "deployment"})
        return run(to, module, DeploymentSettings.of(told | others), place, resume, known).runs[0]


def trained_by(run: mmfl.Run) -> list[set[int]]:
    """The clients that were drawn, by round."""
    return [{i for clients, _ in record.drawn.values() for i in clients} for record in run.records]


class MedianOfAll(mmfl.AggregationRule):
    """The median of all clients' updates, drawn or not: a rule of one's own that knows of no nodes."""

    needs_everyone = True

    def aggregate(self, weights, updates, view, state):
        return (weights - updates.flat.median(dim=0).values if len(updates) else weights), state
