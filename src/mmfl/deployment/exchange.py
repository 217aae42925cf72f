"""Exchange of messages between the server and its nodes: send, wait until a deadline, check, and go on."""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from mmfl.deployment.payload import InvalidPayloadError, Payload
from mmfl.deployment.replies import Replies
from mmfl.deployment.roster import Roster
from mmfl.deployment.settings import DeploymentSettings
from mmfl.errors import UserError
from mmfl.runs.live import LiveStateWriter

# Between two looks for replies. Flower announces a reply before its content is there, and a look that comes in between
# takes a second or three, so that looking more often is slower.
_POLL_SECONDS = 0.4
_RETRY_SECONDS = 5.0  # until a node whose announcement could not be used is asked again
_SECONDS_BEFORE_EVENT = 10.0  # of waiting for clients, until an event says so
_MAX_REPEATS = 3  # of a request whose reply was lost
_STAGES = {  # by part of a request
    "losses": "losses",
    "train": "training",
    "sum": "training",
    "secure": "secure aggregation",
    "collect": "updates",
    "test": "tests",
}


@dataclass(frozen=True)
class Reply:
    """A node's reply to a message; `payload` is None, and `error` says why, where the message failed.

    A reply that was `lost` on its way is no fault of the node, which can be asked again.
    """

    message: str
    payload: bytes | None
    error: str = ""
    lost: bool = False


class Transport(Protocol):
    """What carries payloads to nodes and their replies back. A reply has at most `max_reply_bytes`; None: any size."""

    max_reply_bytes: int | None

    def nodes(self) -> set[int]:
        """The numbers of the connected nodes."""

    def send(self, payloads: Mapping[int, bytes], round: int, seconds: float) -> dict[str, int]:
        """Sends each node its payload, with a time limit for the reply; returns the node of each message by its id."""

    def receive(self, messages: Iterable[str]) -> list[Reply]:
        """The replies and errors that have arrived; each is returned once."""


class NoNodes:
    """The transport of a deployment that is only read: nobody is connected."""

    max_reply_bytes: int | None = None

    def nodes(self) -> set[int]:
        """No one."""
        return set()

    def send(self, payloads: Mapping[int, bytes], round: int, seconds: float) -> dict[str, int]:
        """Sends nothing."""
        return {}

    def receive(self, messages: Iterable[str]) -> list[Reply]:
        """No replies."""
        return []


class NodeExchange:
    """Sends requests to nodes and reads their replies; keeps the roster of connected nodes up to date.

    A node that does not reply in time counts as absent until it replies; the late reply itself is not used. A reply
    that cannot be read is ignored. Either way an event is added, and the run goes on. Where a reply was lost on its
    way, the node is sent the same request again, which it answers from memory.
    """

    def __init__(
        self,
        transport: Transport,
        roster: Roster,
        settings: DeploymentSettings,
        asked_to_stop: Callable[[], bool],
        live: LiveStateWriter | None = None,
    ):
        self.transport, self.roster, self.settings, self.events = transport, roster, settings, roster.events
        self.asked_to_stop, self.live = asked_to_stop, live or LiveStateWriter()
        self._retry_at: dict[int, float] = {}
        self._first_round_began = False

    def wait_for_clients(self, round: int) -> None:
        """Waits until enough clients are connected; before the first round, a while longer for all of them."""
        self.events.round = round
        settings = self.settings
        began, event_added = time.monotonic(), False
        self.live.begin_round(round)
        self.live.begin_stage("waiting for clients")
        while True:
            self._request_announcements(self.roster.update_connected(self.transport.nodes()))
            self._read_late_replies()
            self.write_live_state()
            connected, waited = int(self.roster.federation.connected.sum()), time.monotonic() - began
            early = not self._first_round_began and connected < settings.clients and waited < settings.gather
            if connected >= settings.least and not early:
                self._first_round_began = True
                return
            if waited > max(settings.patience, settings.gather):
                raise UserError(
                    f"deployment: {connected} clients are there after {waited:.3g} s; "
                    f"expected at least {settings.least}."
                )
            if self.asked_to_stop():
                raise KeyboardInterrupt
            if waited > _SECONDS_BEFORE_EVENT and not event_added:
                event_added = True
                self.events.add("waiting", detail=f"{connected} of {settings.clients} clients are there")
            time.sleep(_POLL_SECONDS)

    def send(self, requests: Mapping[int, Payload], read: Callable[[int, Payload], None] | None = None) -> Replies:
        """Sends each node its request, and returns what the nodes replied in time; or hands each reply to `read`."""
        replies = Replies()
        if not requests:
            return replies
        if (limit := self.transport.max_reply_bytes) is not None:
            for request in requests.values():
                request.fields["max_reply_bytes"] = limit
        self.live.begin_stage(_stage(requests.values()), len(requests))
        pending = self._send(requests)
        for node in sorted(set(requests) - set(pending.values())):
            self.events.add("lost", node, detail="the message was not taken")
            self.roster.forget(node)
        self._wait(requests, pending, read or (lambda node, payload: replies.read(requests[node].fields, payload)))
        for message, node in pending.items():
            self.events.add("late", node)
            self.roster.unanswered[node] = message
        self.roster.assign_clients()
        for client, detail in replies.missing:
            self.events.add("rejected", client=client, detail=detail)
        self.live.begin_stage("work on the server")
        self.write_live_state()
        return replies

    def write_live_state(self, messages_out: int = 0) -> None:
        """Writes how the deployment is doing, for those who look at it."""
        roster, federation = self.roster, self.roster.federation
        nodes = {number: (roster.name_of(number), entry.clients) for number, entry in roster.nodes.items()}
        self.live.update(
            nodes,
            roster.unanswered,
            messages_out,
            clients=federation.clients,
            connected=int(federation.connected.sum()),
            tasks=federation.task_names,
            events=dict(self.events.totals),
        )

    def _send(self, requests: Mapping[int, Payload]) -> dict[str, int]:
        packed = {node: request.pack() for node, request in requests.items()}
        return self.transport.send(packed, self.events.round, self.settings.timeout)

    def _wait(
        self, requests: Mapping[int, Payload], pending: dict[str, int], read: Callable[[int, Payload], None]
    ) -> None:
        """Hands each reply to `read`, until no message is `pending` or the time is over."""
        deadline = time.monotonic() + self.settings.timeout
        repeats_left = dict.fromkeys(pending.values(), _MAX_REPEATS)
        while pending:
            began = time.monotonic()
            self.write_live_state(len(pending))
            for reply in self.transport.receive(list(pending)):
                node = pending.pop(reply.message)
                if reply.lost and repeats_left[node] and (again := self._send({node: requests[node]})):
                    repeats_left[node] -= 1
                    self.events.add("repeated", node, detail=reply.error)
                    pending |= again
                    continue
                self._read_reply(node, reply, read)
                if reply.payload is None:
                    self.roster.forget(node)
            now = time.monotonic()
            if not pending or now > deadline:
                break
            time.sleep(max(_POLL_SECONDS, now - began))  # with many nodes, asking itself takes long: pause as long

    def _request_announcements(self, nodes: set[int]) -> None:
        """Asks nodes which clients they hold, without waiting for the answer."""
        now = time.monotonic()
        due = [node for node in sorted(nodes) if self._retry_at.get(node, 0.0) <= now]
        if due:
            sent = self._send(dict.fromkeys(due, Payload({"announce": True})))
            self.roster.unanswered |= {node: message for message, node in sent.items()}

    def _read_late_replies(self) -> None:
        """Reads announcements, and notes which nodes have replied to old messages; those replies are not used.

        Where an old message could not be delivered, the node must announce its clients again.
        """
        node_of = {message: node for node, message in self.roster.unanswered.items()}
        for reply in self.transport.receive(list(node_of)):
            node = node_of[reply.message]
            del self.roster.unanswered[node]
            if node not in self.roster.nodes:
                if not reply.lost:
                    self._read_reply(node, reply, self.roster.register)
                if node not in self.roster.nodes:
                    self._retry_at[node] = time.monotonic() + _RETRY_SECONDS
            elif reply.payload is None:
                self.events.add("lost", node)
                self.roster.forget(node)
        self.roster.assign_clients()

    def _read_reply(self, node: int, reply: Reply, read: Callable[[int, Payload], None]) -> None:
        """Hands a reply to `read`; an error, or a reply that cannot be read, becomes an event."""
        self.live.note_reply(node)
        try:
            payload = Payload({"error": reply.error}) if reply.payload is None else Payload.unpack(reply.payload)
            if "error" in payload.fields:
                self.events.add("failed", node, detail=str(payload.fields["error"]))
            else:
                read(node, payload)
        except Exception as error:  # whatever a node sends must not end the run
            kind = "" if isinstance(error, InvalidPayloadError) else f"{type(error).__name__}: "
            self.events.add("garbage", node, detail=f"{kind}{error}")


def _stage(requests: Iterable[Payload]) -> str:
    """What nodes are asked for, in words.

    >>> _stage([Payload({"train": [], "losses": []}), Payload({"train": []})])
    'losses and training'
    """
    parts = {part for request in requests for part in request.fields}
    return " and ".join(name for part, name in _STAGES.items() if part in parts)
