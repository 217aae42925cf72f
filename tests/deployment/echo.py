"""An empty deployment: every node sends back the bytes it got. The baseline of what Flower itself costs a round.

As a module of an app it holds the ServerApp; run as a program it is the worker beside a node.
"""

import argparse
import json
import os
import time
from multiprocessing.connection import Listener
from pathlib import Path


def main(grid, context):
    """Sends bytes to every node and waits for all answers, round after round."""
    from flwr.app import ConfigRecord, Message, RecordDict

    from mmfl.deployment.news import SOCKET_VARIABLE, tell

    directory = Path(context.run_config["directory"])
    settings = json.loads(context.run_config["settings"])
    payload = os.urandom(settings.get("bytes", 1000))
    state, note = "finished", ""
    if settings.get("crash"):
        raise RuntimeError("the echo was told to crash")
    deadline = time.monotonic() + settings.get("timeout", 600)
    while len(nodes := list(grid.get_node_ids())) < settings["nodes"] and time.monotonic() < deadline:
        time.sleep(0.1)
    for t in range(1, settings["rounds"] + 1):
        begun = time.perf_counter()
        content = RecordDict({"mmfl": ConfigRecord({"payload": payload})})
        messages = [Message(content, dst_node_id=node, message_type="train", group_id=str(t)) for node in nodes]
        asked, answers = set(grid.push_messages(messages)), []
        if settings.get("news", True):
            tell(os.environ.get(SOCKET_VARIABLE))
        while asked and time.monotonic() < deadline:
            for reply in grid.pull_messages(list(asked)):
                asked.discard(reply.metadata.reply_to_message_id)
                answers.append(reply)
            time.sleep(0.05)
        same = [not r.has_error() and r.content["mmfl"]["payload"] == payload for r in answers]
        note = "; ".join(r.error.reason or "" for r in answers if r.has_error())
        record = {"round": t, "method": "echo", "seed": 0, "tasks": {}, "clients": settings["nodes"], "cost": {}}
        record |= {"max_bytes": os.environ.get("MMFL_MAX_MESSAGE_BYTES"), "same": sum(same)}
        record["seconds"] = time.perf_counter() - begun
        with (directory / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(record) + "\n")
        if (directory / "stop").exists():
            state = "stopped"
            break
    (directory / "ended.json").write_text(json.dumps({"state": state, "message": note}))


def work(path: str) -> None:
    """Answers every connection with what it sent."""
    listener = Listener(path, "AF_UNIX")
    while True:
        with listener.accept() as connection:
            payload = connection.recv_bytes()
            if payload == b"die":
                os._exit(1)
            connection.send_bytes(payload)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--socket")
    work(parser.parse_known_args()[0].socket)
else:
    from flwr.serverapp import ServerApp

    app = ServerApp()
    app.main()(main)
