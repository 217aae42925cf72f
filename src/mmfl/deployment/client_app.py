"""The ClientApp: passes a message's bytes to the node's worker, and the worker's reply back.

Flower runs a copy of this file on a node, in a new process for every message. So it imports only the standard library
and flwr; data and models are in the worker, which keeps running.
"""

import time
from multiprocessing.connection import Client, Connection

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

SECONDS_TO_CONNECT = 300.0  # in which a worker can start and load its data

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
    with connect(path, seconds) as connection:
        try:
            connection.send_bytes(payload)
            return connection.recv_bytes()
        except (OSError, EOFError) as error:
            reason = error if str(error) else "the connection was closed"
            raise ConnectionError(f"the node's worker ended before it answered: {reason}") from None


def connect(path: str, seconds: float) -> Connection:
    """A connection to the worker; one that is still starting is waited for."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return Client(path, "AF_UNIX")
        except OSError as error:
            if time.monotonic() > deadline:
                raise ConnectionError(f"the node's worker cannot be reached: {error}") from None
        time.sleep(0.1)
