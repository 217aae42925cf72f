"""Nodes within this process: transport that is answered at once, or as badly as a test wants."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count

import mmfl
from mmfl.data import Dataset
from mmfl.deployment.node_service import NodeService
from mmfl.deployment.remote_federation import Held
from mmfl.deployment.transport import Reply
from mmfl.deployment.user_module import Module
from mmfl.federation import Federation


class InsideTransport:
    """Nodes by number, each a site. `trouble(node, round, reply)` may change a reply, or keep it back with None."""

    most: int | None = None

    def __init__(self, sites: Mapping[int, NodeService]):
        self.sites = dict(sites)
        self.trouble: Callable[[int, int, bytes], bytes | None] = lambda node, round, reply: reply
        self.sent: list[tuple[int, int, bytes]] = []
        self._names = count()
        self._waiting: dict[str, bytes | None] = {}

    def nodes(self) -> set[int]:
        return set(self.sites)

    def send(self, payloads: Mapping[int, bytes], round: int, seconds: float) -> dict[str, int]:
        names = {}
        for node, payload in payloads.items():
            name = f"message-{next(self._names)}"
            names[name] = node
            self.sent.append((node, round, payload))
            reply = self.sites[node].answer(payload) if node in self.sites else None
            self._waiting[name] = None if reply is None else self.trouble(node, round, reply)
        return names

    def receive(self, messages: Iterable[str]) -> list[Reply]:
        here = [name for name in messages if self._waiting.get(name) is not None]
        return [Reply(name, self._waiting.pop(name)) for name in here]


def service_of(federation: Federation, clients: Sequence[int], capacity: int = 1) -> NodeService:
    """A node with some clients of a simulated federation, and exactly their data."""

    def data(task: str, client: int) -> Dataset | None:
        s = federation.task_names.index(task)
        rows, whole = federation.shards[s].of(client), federation.tasks[s].data
        if not len(rows):
            return None
        return Dataset(task, whole.x[rows], whole.y[rows], whole.x_test, whole.y_test)

    return NodeService(Held(federation.tasks, clients, data, capacity), mmfl.engine.Simulation("cpu"))


def module_of(federation: Federation) -> Module:
    return Module(federation.tasks, lambda task, client: None)
