"""The ClientApp: hands a message's bytes to the worker beside the node, and its answer back.

A copy of this file is all that Flower runs on a node, in a fresh process for every message; so it imports nothing but
the standard library and flwr, and leaves data and models to the worker, which stays.
"""

import socket
import struct
import time

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

PATIENCE = 300.0  # seconds in which a worker that is not there may start, and load its data
_LENGTH = struct.Struct(">Q")

app = ClientApp()


@app.query()
@app.train()
@app.evaluate()
def deliver(message: Message, context: Context) -> Message:
    """Asks the worker."""
    payload = message.content["mmfl"]["payload"]
    if not isinstance(payload, bytes):
        raise TypeError(f"the message holds a {type(payload).__name__}; expected bytes")
    answer = ask(str(context.node_config["worker"]), payload)
    return Message(RecordDict({"mmfl": ConfigRecord({"payload": answer})}), reply_to=message)


def ask(path: str, payload: bytes, patience: float = PATIENCE) -> bytes:
    """The worker's answer to some bytes."""
    with connect(path, patience) as connection:
        try:
            connection.sendall(_LENGTH.pack(len(payload)) + payload)
            (length,) = _LENGTH.unpack(receive(connection, _LENGTH.size))
            return receive(connection, length)
        except OSError as error:
            raise ConnectionError(f"the node's worker ended before it answered: {error}") from None


def connect(path: str, patience: float) -> socket.socket:
    """A connection to the worker, which may be about to start."""
    deadline = time.monotonic() + patience
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


def receive(connection: socket.socket, length: int) -> bytes:
    """Exactly so many bytes."""
    data = bytearray(length)
    view, got = memoryview(data), 0
    while got < length:
        count = connection.recv_into(view[got:])
        if count == 0:
            raise ConnectionError("the connection was closed")
        got += count
    return bytes(data)
