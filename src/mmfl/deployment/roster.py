"""The roster: which nodes are connected, which clients each of them serves, and which replies are pending."""

from dataclasses import dataclass, field
from typing import Any

from mmfl.deployment.events import Events
from mmfl.deployment.payload import InvalidPayloadError, Payload
from mmfl.deployment.remote_federation import ServerFederation

_MAX_EXAMPLES = 2**40  # that a client may announce


@dataclass
class RosterEntry:
    """What the server knows of one connected node.

    `clients` are the clients it serves, `announced` all that it holds, with capacity and examples by task. A node with
    `pending` messages has not replied in time; it is not relied on until it does.
    """

    clients: set[int] = field(default_factory=set)
    announced: dict[int, tuple[int, list[int]]] = field(default_factory=dict)
    test_examples: dict[str, int] = field(default_factory=dict)
    pending: set[str] = field(default_factory=set)


class Roster:
    """The connected nodes, by number. A client is served by one node at a time.

    Another node that announces the same client serves it once the first one has left or stopped replying, as after a
    restart.
    """

    def __init__(self, federation: ServerFederation, events: Events):
        self.federation, self.events = federation, events
        self.nodes: dict[int, RosterEntry] = {}

    def update_connected(self, connected: set[int]) -> set[int]:
        """Removes nodes that have left; returns those that have not announced their clients yet."""
        for node in sorted(set(self.nodes) - connected):
            self.events.add("left", node)
            del self.nodes[node]
        self.assign_clients()
        return connected - set(self.nodes)

    def add_pending(self, number: int, message: str) -> None:
        """Notes that a node has not replied to a message in time."""
        if number in self.nodes:
            self.nodes[number].pending.add(message)

    def pending_messages(self) -> dict[str, int]:
        """The messages without a reply in time, with the node of each."""
        return {message: number for number, node in self.nodes.items() for message in node.pending}

    def on_late_reply(self, number: int, message: str, delivered: bool) -> None:
        """Notes a late reply. Where the message could not be delivered, the node must announce its clients again."""
        if number not in self.nodes:
            return
        if delivered:
            self.nodes[number].pending.discard(message)
        else:
            self.events.add("lost", number)
            self.forget(number)

    def forget(self, number: int) -> None:
        """Removes a node, which must then announce its clients again."""
        self.nodes.pop(number, None)

    def register(self, number: int, announcement: Payload) -> None:
        """Enters a node with the clients that it announces."""
        names, last = self.federation.task_names, self.federation.clients - 1
        node, rows = RosterEntry(), announcement.rows("clients", int, int, dict)
        for client, capacity, sizes in rows:
            counts = [sizes.get(name, 0) for name in names]
            valid = all(map(_is_count, counts)) and capacity >= 1 and sum(counts) > 0
            if not valid or set(sizes) - set(names):
                raise InvalidPayloadError(f"client {client} announces {str(sizes)[:200]} with capacity {capacity}")
            if 0 <= client <= last:
                node.announced[client] = (capacity, counts)
        outside = [client for client, _, _ in rows if not 0 <= client <= last]
        if outside:
            self.events.add("refused", number, outside[0], f"expected a client from 0 to {last}")
        tested = announcement.fields.get("tested", {})
        if not isinstance(tested, dict) or not all(map(_is_count, tested.values())):
            raise InvalidPayloadError("'tested' does not read as a table of numbers")
        node.test_examples = {name: tested[name] for name in names if name in tested}
        self.nodes[number] = node
        self.events.add("joined", number, detail=f"clients {', '.join(map(str, sorted(node.announced)))}")
        self.assign_clients()
        taken = sorted(set(node.announced) - node.clients)
        if taken:
            self.events.add("refused", number, taken[0], "another node serves it")

    def assign_clients(self) -> None:
        """Assigns clients without a responsive node to one that announced them; updates who is connected."""
        served = {client for node in self.nodes.values() if not node.pending for client in node.clients}
        for node in self.nodes.values():
            for client, (capacity, counts) in node.announced.items():
                if client not in served and not node.pending:
                    for other in self.nodes.values():
                        other.clients.discard(client)
                    node.clients.add(client)
                    served.add(client)
                    self.federation.announce(client, counts, capacity)
        self.federation.connected[:] = False
        self.federation.connected[list(served)] = True

    def node_of(self, client: int) -> int | None:
        """The node that serves a client; None if no responsive node does."""
        return next((n for n, node in self.nodes.items() if client in node.clients and not node.pending), None)

    def nodes_with_test_data(self, task: str) -> list[int]:
        """The responsive nodes that hold test examples of a task."""
        return [n for n, node in self.nodes.items() if node.test_examples.get(task) and not node.pending]


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < _MAX_EXAMPLES
