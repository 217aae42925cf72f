"""Transport over Flower: replies are pulled so that none is lost and no node holds up the others."""

import logging
import os
import random
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from flwr.app import ConfigRecord, MessageType, RecordDict
from flwr.serverapp import Grid

from mmfl.deployment.exchange import Reply
from mmfl.deployment.news import SOCKET_VARIABLE, tell
from mmfl.deployment.programs import MAX_BYTES_VARIABLE

_log = logging.getLogger(__name__)
_EXTRA_LIFETIME = 10.0  # seconds for which Flower keeps a message after its reply was due
_MAX_OVERHEAD = 1 << 16  # bytes that Flower adds to a payload
_PULL_SECONDS = 2.0  # to wait for one pull before the next is started
_CALLS = 6  # of the grid, until its error is raised
_FIRST_PAUSE = 0.2  # seconds between the first two of them; doubled each time
# Flower's codes for replies that were lost between node and server: the message is gone, its reply is gone, or the
# process that carried it on the node died.
_LOST = (3, 4, 8)
Result = TypeVar("Result")


class FlowerTransport:
    """Sends payloads to nodes as Flower messages, and receives their replies in any order.

    Flower deletes a reply when it is first pulled. It also announces a reply before its content has arrived, and
    whoever pulls it then waits for the rest: for minutes where a node died while sending. So every reply is pulled by
    itself, in a thread of its own, and never by two threads at once. A pull that takes long goes on in the background,
    and a later `receive` returns what it brings.

    A pull that fails brings nothing, and the reply is pulled again. If the SuperLink had deleted it by then, the reply
    is marked as `lost`: its node has it still, and can be asked again.
    """

    def __init__(self, grid: Grid):
        self.grid = grid
        limit = os.environ.get(MAX_BYTES_VARIABLE)
        self.max_reply_bytes = int(limit) - _MAX_OVERHEAD if limit else None
        self._pulls: dict[str, threading.Thread] = {}
        self._replies: dict[str, Reply] = {}
        self._failed: set[str] = set()  # messages whose pull has failed at least once

    def nodes(self) -> set[int]:
        """The numbers of the connected SuperNodes."""
        return _retry(lambda: set(self.grid.get_node_ids()))

    def send(self, payloads: Mapping[int, bytes], round: int, seconds: float) -> dict[str, int]:
        """Sends each node its payload, with a time limit for the reply; returns the node of each message by its id."""

        def push() -> Iterable[str]:
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
            return self.grid.push_messages(messages)

        names = _retry(push)
        tell(os.environ.get(SOCKET_VARIABLE))
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
        """Pulls the reply to a message, if it has arrived."""
        try:
            reply = self._find(message)
        except Exception as error:
            if message not in self._failed:
                self._failed.add(message)
                _log.warning("an answer could not be fetched yet (%s)", type(error).__name__)
            return
        if reply is not None:
            self._failed.discard(message)
            self._replies[message] = reply

    def _find(self, message: str) -> Reply | None:
        for answer in self.grid.pull_messages([message]):
            if answer.metadata.reply_to_message_id == message:
                if answer.has_error():
                    code, reason = answer.error.code, answer.error.reason
                    return Reply(message, None, f"code {code}: {reason}", lost=code in _LOST)
                content: Any = answer.content
                payload = content["mmfl"].get("payload") if "mmfl" in content else None
                return Reply(message, payload if isinstance(payload, bytes) else b"")
        return None


def _retry(call: Callable[[], Result]) -> Result:
    """The result of a call of the grid; one that fails is repeated after growing pauses.

    Flower itself repeats calls while the SuperLink cannot be reached. What is left are its errors under load. Where
    messages were sent twice, nodes answer the second from memory.
    """
    for k in range(_CALLS - 1):
        try:
            return call()
        except Exception as error:
            _log.warning("the SuperLink has failed (%s); trying again", type(error).__name__)
            time.sleep(_FIRST_PAUSE * 2**k * random.uniform(0.5, 1.0))
    return call()
