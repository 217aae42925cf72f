"""Nodes within this process: a transport whose nodes reply at once, or as badly as a test wants."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count

import mmfl
from mmfl.data import Dataset
from mmfl.deployment.node_service import NodeService
from mmfl.deployment.remote_federation import NodeFederation
from mmfl.deployment.transport import Reply
from mmfl.deployment.user_module import UserModule
from mmfl.federation import Federation


class InsideTransport:
    """Nodes by number, each with its service. `trouble(node, round, reply)` may change a reply; None drops it."""

    max_reply_bytes: int | None = None

    def __init__(self, services: Mapping[int, NodeService]):
        self.services = dict(services)
        self.trouble: Callable[[int, int, bytes], bytes | None] = lambda node, round, reply: reply
        self.sent: list[tuple[int, int, bytes]] = []
        self._names = count()
        self._waiting: dict[str, bytes | None] = {}

    def nodes(self) -> set[int]:
        return set(self.services)

    def send(self, payloads: Mapping[int, bytes], round: int, seconds: float) -> dict[str, int]:
        names = {}
        for node, payload in payloads.items():
            name = f"message-{next(self._names)}"
            names[name] = node
            self.sent.append((node, round, payload))
            reply = self.services[node].answer(payload) if node in self.services else None
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

    return NodeService(NodeFederation(federation.tasks, clients, data, capacity), mmfl.engine.Simulation("cpu"))


def module_of(federation: Federation) -> UserModule:
    return UserModule(federation.tasks, lambda task, client: None)


class MedianOfAll(mmfl.AggregationRule):
    """The median of all clients' updates, drawn or not: a rule of one's own that knows of no nodes."""

    needs_everyone = True

    def aggregate(self, weights, updates, view, state):
        return (weights - updates.flat.median(dim=0).values if len(updates) else weights), state
