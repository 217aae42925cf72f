"""The ClientApp: passes a message's bytes to the node's worker, and the worker's reply back.

Flower runs a copy of this file on a node, in a new process for every message. So it imports only the standard library
and flwr; data and models are in the worker, which keeps running.
"""

import socket
import struct
import time

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

SECONDS_TO_CONNECT = 300.0  # in which a worker can start and load its data
_LENGTH = struct.Struct(">Q")

app = ClientApp()


@app.query()
@app.train()
@app.evaluate()
def forward_to_worker(message: Message, context: Context) -> Message:
    """Answers a message with the worker's reply."""
    payload = message.content["mmfl"]["payload"]
    if not isinstance(payload, bytes):
        raise TypeError(f"the message holds a {type(payload).__name__}; expected bytes")
    reply = ask_worker(str(context.node_config["worker"]), payload)
    return Message(RecordDict({"mmfl": ConfigRecord({"payload": reply})}), reply_to=message)


def ask_worker(path: str, payload: bytes, seconds: float = SECONDS_TO_CONNECT) -> bytes:
    """The worker's reply to a payload."""
    with connect(path, seconds) as connection, connection.makefile("rb") as stream:
        try:
            connection.sendall(_LENGTH.pack(len(payload)) + payload)
            (length,) = _LENGTH.unpack(stream.read(_LENGTH.size))
            reply = stream.read(length)
        except (OSError, struct.error) as error:
            raise ConnectionError(f"the node's worker ended before it answered: {error}") from None
    if len(reply) < length:
        raise ConnectionError("the node's worker ended before it answered: the connection was closed")
    return reply


def connect(path: str, seconds: float) -> socket.socket:
    """A connection to the worker; one that is still starting is waited for."""
    deadline = time.monotonic() + seconds
    while True:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.connect(path)
            return connection
        except OSError as error:
            connection.close()
            if time.monotonic() > deadline:
                raise ConnectionError(f"the node's worker cannot be reached: {error}") from None
        time.sleep(0.1)
