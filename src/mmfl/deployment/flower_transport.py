"""Transport over Flower: replies are pulled so that none is lost and no node holds up the others."""

import logging
import os
import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from flwr.app import ConfigRecord, MessageType, RecordDict
from flwr.serverapp import Grid

from mmfl.deployment.exchange import Reply
from mmfl.deployment.programs import MAX_BYTES_VARIABLE

_log = logging.getLogger(__name__)
_EXTRA_LIFETIME = 10.0  # seconds for which Flower keeps a message after its reply was due
_MAX_OVERHEAD = 1 << 16  # bytes that Flower adds to a payload
_PULL_SECONDS = 2.0  # to wait for one pull before the next is started


class FlowerTransport:
    """Sends payloads to nodes as Flower messages, and receives their replies in any order.

    Flower deletes a reply when it is first pulled. It also announces a reply before its content has arrived, and
    whoever pulls it then waits for the rest: for minutes where a node died while sending. So every reply is pulled by
    itself, in a thread of its own, and never by two threads at once. A pull that takes long goes on in the background,
    and a later `receive` returns its reply.
    """

    def __init__(self, grid: Grid):
        self.grid = grid
        limit = os.environ.get(MAX_BYTES_VARIABLE)
        self.max_reply_bytes = int(limit) - _MAX_OVERHEAD if limit else None
        self._pulls: dict[str, threading.Thread] = {}
        self._replies: dict[str, Reply] = {}

    def nodes(self) -> set[int]:
        """The numbers of the connected SuperNodes."""
        return set(self.grid.get_node_ids())

    def send(self, payloads: Mapping[int, bytes], round: int, seconds: float) -> dict[str, int]:
        """Sends each node its payload, with a time limit for the reply; returns the node of each message by its id."""
        messages = [
            self.grid.create_message(
                RecordDict({"mmfl": ConfigRecord({"payload": payload})}),
                MessageType.TRAIN,
                node,
                str(round),
                seconds + _EXTRA_LIFETIME,
            )
            for node, payload in payloads.items()
        ]
        names = self.grid.push_messages(messages)
        return {name: node for name, node in zip(names, payloads, strict=False) if name}

    def receive(self, messages: Iterable[str]) -> list[Reply]:
        """The replies and errors that have arrived; each is returned once."""
        names = dict.fromkeys(messages)
        for name in names:
            if name not in self._pulls:
                pull = self._pulls[name] = threading.Thread(target=self._pull, args=(name,), daemon=True)
                pull.start()
                pull.join(_PULL_SECONDS)
        done = [name for name in names if not self._pulls[name].is_alive()]
        for name in done:
            del self._pulls[name]
        return [self._replies.pop(name) for name in done if name in self._replies]

    def _pull(self, message: str) -> None:
        """Pulls the reply to a message, if it has arrived.

        After an error it tries once more, in case the SuperLink was at fault. A reply that is gone by then had arrived,
        but could not be read.
        """
        try:
            reply = self._find(message)
        except Exception as error:
            _log.warning("an answer could not be read (%s)", type(error).__name__)
            reply = Reply(message, b"", type(error).__name__)
            with suppress(Exception):
                again = self._find(message)
                if again is None or again.payload is not None:
                    reply = again
        if reply is not None:
            self._replies[message] = reply

    def _find(self, message: str) -> Reply | None:
        for answer in self.grid.pull_messages([message]):
            if answer.metadata.reply_to_message_id == message:
                if answer.has_error():
                    return Reply(message, None, f"code {answer.error.code}: {answer.error.reason}")
                content: Any = answer.content
                payload = content["mmfl"].get("payload") if "mmfl" in content else None
                return Reply(message, payload if isinstance(payload, bytes) else b"")
        return None
