"""Exchange of messages between the server and its nodes: send, wait until a deadline, check, and go on."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from mmfl.deployment.events import Events
from mmfl.deployment.payload import InvalidPayloadError, Payload
from mmfl.deployment.replies import Replies
from mmfl.deployment.roster import Roster
from mmfl.deployment.transport import Reply, Transport
from mmfl.errors import UserError

_POLL_SECONDS = 0.1  # between two looks for replies
_RETRY_SECONDS = 5.0  # until a node whose announcement could not be used is asked again
_SECONDS_BEFORE_EVENT = 10.0  # of waiting for clients, until an event says so
_MAX_ERROR_LENGTH = 300


@dataclass(frozen=True)
class Limits:
    """How long the server waits, in seconds, and what it accepts; the configuration's keys are in parentheses.

    It waits `timeout` for replies (`timeout`), `first_round_wait` for all clients before the first round (`gather`),
    and `max_wait` (`patience`) until at least `min_clients` (`least`) are connected. An update longer than
    `max_update_ratio` times the weights it started from (`norm`) is rejected; weights shorter than 1 count as 1.
    """

    timeout: float = 600.0
    first_round_wait: float = 60.0
    max_wait: float = 3600.0
    min_clients: int = 1
    max_update_ratio: float = 100.0

    def __post_init__(self) -> None:
        positive = {
            "timeout": self.timeout,
            "patience": self.max_wait,
            "least": self.min_clients,
            "norm": self.max_update_ratio,
        }
        for key, value in positive.items():
            if not value > 0:
                raise UserError(f"deployment: {key} is {value}; expected a positive number.")
        if not self.first_round_wait >= 0:
            raise UserError(f"deployment: gather is {self.first_round_wait}; expected at least 0 seconds.")


@dataclass
class NodeRequest:
    """What one node is asked to do, all in one message."""

    fields: dict[str, Any] = field(default_factory=dict)
    vectors: dict[str, Tensor] = field(default_factory=dict)

    def add(self, part: str, row: Sequence[Any]) -> None:
        """Adds a row to one part of the request, such as `losses` or `train`."""
        self.fields.setdefault(part, []).append(list(row))


class NodeExchange:
    """Sends requests to nodes and reads their replies; keeps the roster of connected nodes up to date.

    A node that does not reply in time counts as absent until it replies; the late reply itself is not used. A reply
    that cannot be read is ignored. Either way an event is added, and the run goes on.
    """

    def __init__(
        self,
        transport: Transport,
        roster: Roster,
        limits: Limits,
        events: Events,
        asked_to_stop: Callable[[], bool] = lambda: False,
    ):
        self.transport, self.roster, self.limits, self.events = transport, roster, limits, events
        self.asked_to_stop = asked_to_stop
        self._announcement_requests: dict[str, int] = {}  # messages to nodes that have not announced their clients
        self._retry_at: dict[int, float] = {}
        self._first_round_began = False

    def wait_for_clients(self, round: int) -> None:
        """Waits until enough clients are connected; before the first round, a while longer for all of them."""
        self.events.round = round
        clients, limits = self.roster.federation.clients, self.limits
        began, event_added = time.monotonic(), False
        while True:
            unknown = self.roster.update_connected(self.transport.nodes())
            self._request_announcements(unknown - set(self._announcement_requests.values()))
            self._read_late_replies()
            connected, waited = int(self.roster.federation.connected.sum()), time.monotonic() - began
            wait_for_all = not self._first_round_began and connected < clients and waited < limits.first_round_wait
            if connected >= limits.min_clients and not wait_for_all:
                self._first_round_began = True
                return
            if waited > max(limits.max_wait, limits.first_round_wait):
                raise UserError(
                    f"deployment: {connected} clients are there after {waited:.3g} s; "
                    f"expected at least {limits.min_clients}."
                )
            if self.asked_to_stop():
                raise KeyboardInterrupt
            if waited > _SECONDS_BEFORE_EVENT and not event_added:
                event_added = True
                self.events.add("waiting", detail=f"{connected} of {clients} clients are there")
            time.sleep(_POLL_SECONDS)

    def send(self, requests: Mapping[int, NodeRequest]) -> Replies:
        """Sends each node its request, and returns what the nodes replied in time."""
        replies = Replies()
        if not requests:
            return replies
        max_bytes = self.transport.max_reply_bytes
        limit = {} if max_bytes is None else {"max_reply_bytes": max_bytes}
        payloads = {node: Payload(each.fields | limit, each.vectors).pack() for node, each in requests.items()}
        self._send_and_wait(payloads, lambda node, payload: replies.read(requests[node].fields, payload))
        for client, detail in replies.missing:
            self.events.add("rejected", client=client, detail=detail)
        return replies

    def _request_announcements(self, nodes: set[int]) -> None:
        """Asks nodes which clients they hold, without waiting for the answer."""
        now = time.monotonic()
        due = [node for node in sorted(nodes) if self._retry_at.get(node, 0.0) <= now]
        if due:
            payloads = dict.fromkeys(due, Payload({"announce": True}).pack())
            self._announcement_requests |= self.transport.send(payloads, self.events.round, self.limits.timeout)

    def _send_and_wait(self, payloads: Mapping[int, bytes], read: Callable[[int, Payload], None]) -> None:
        """Sends payloads and hands each reply to `read`, until all nodes have replied or the time is over."""
        pending = self.transport.send(payloads, self.events.round, self.limits.timeout)
        for node in sorted(set(payloads) - set(pending.values())):
            self.events.add("lost", node, detail="the message was not taken")
            self.roster.forget(node)
        deadline = time.monotonic() + self.limits.timeout
        while pending:
            began = time.monotonic()
            for reply in self.transport.receive(list(pending)):
                node = pending.pop(reply.message)
                self._read_reply(node, reply, read)
                if reply.payload is None:
                    self.roster.forget(node)
            now = time.monotonic()
            if not pending or now > deadline:
                break
            time.sleep(max(_POLL_SECONDS, now - began))  # with many nodes, asking itself takes long: pause as long
        for message, node in pending.items():
            self.events.add("late", node)
            self.roster.add_pending(node, message)
        self.roster.assign_clients()

    def _read_late_replies(self) -> None:
        """Reads announcements, and notes which nodes have replied to old messages; those replies are not used."""
        late = self.roster.pending_messages()
        for reply in self.transport.receive([*self._announcement_requests, *late]):
            if reply.message in self._announcement_requests:
                node = self._announcement_requests.pop(reply.message)
                self._read_reply(node, reply, self.roster.register)
                if node not in self.roster.nodes:
                    self._retry_at[node] = time.monotonic() + _RETRY_SECONDS
            else:
                self.roster.on_late_reply(late[reply.message], reply.message, delivered=reply.payload is not None)
        self.roster.assign_clients()

    def _read_reply(self, node: int, reply: Reply, read: Callable[[int, Payload], None]) -> None:
        """Hands a reply to `read`; an error, or a reply that cannot be read, becomes an event."""
        try:
            payload = Payload({"error": reply.error}) if reply.payload is None else Payload.unpack(reply.payload)
            if "error" in payload.fields:
                self.events.add("failed", node, detail=str(payload.fields["error"])[:_MAX_ERROR_LENGTH])
            else:
                read(node, payload)
        except InvalidPayloadError as error:
            self.events.add("garbage", node, detail=str(error))
        except Exception as error:  # whatever a node sends must not end the run
            self.events.add("garbage", node, detail=f"{type(error).__name__}: {error}")
