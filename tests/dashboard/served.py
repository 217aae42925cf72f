"""A dashboard to test: small runs, trained on the spot, and a server that shows them."""

import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import urlencode

import mmfl
from mmfl.dashboard.server import Server
from mmfl.runs.live import LiveStateWriter
from mmfl.runs.status import StatusWriter

SCRIPT = "<script>alert(1)</script>"


def make_run(path: Path, method: str = "random", tasks: tuple[str, ...] = ("a", "b"), **options) -> Path:
    """A finished run of four rounds."""
    data = mmfl.data.digits()
    made = [mmfl.Task(name, mmfl.models.LogisticRegression, data, lr=0.2) for name in tasks]
    settings = {"rounds": 4, "rate": 0.5, "directory": path, "checkpoint_every": 2}
    mmfl.train(mmfl.Federation(made, clients=8), method, **{**settings, **options})
    return path


def make_deployment(path: Path, name: str = "7") -> LiveStateWriter:
    """A run directory as the server of a deployment has it in the middle of a round, with one late node of two."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.toml").write_text('source = "deployment"\n[settings]\nmethod = "random"\nrounds = 9\n')
    StatusWriter(path, 9).round(2, 9)
    kinds = [(1, "joined", "7"), (1, "joined", "8"), (2, "late", "8")]
    lines = [json.dumps({"time": 1e9 + t, "round": t, "kind": kind, "node": node}) for t, kind, node in kinds]
    (path / "events.jsonl").write_text("\n".join(lines) + "\n")
    writer = LiveStateWriter(path)
    writer.known |= {"rounds": 9, "round": 3}
    writer.begin_stage("training", 2)
    writer.update({7: (name, [0, 1]), 8: ("8", [4])}, {8}, 1, clients=5, connected=2)
    return writer


class Site:
    """A server, and questions to it."""

    def __init__(self, server: Server):
        self.port, self.url = server.server_port, server.url

    def ask(self, path: str, method: str = "GET", host: str | None = None, **headers: str):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        with closing(connection):
            connection.request(method, path, headers={"Host": host or f"127.0.0.1:{self.port}", **headers})
            reply = connection.getresponse()
            return reply, reply.read()

    def get(self, question: str, *runs: str, **more: str):
        reply, body = self.ask(f"/api/{question}?{urlencode([('run', run) for run in runs] + list(more.items()))}")
        assert reply.status == 200, body
        return json.loads(body)

    def run(self, id: str = "run") -> dict:
        return next(run for run in self.get("runs")["runs"] if run["id"] == id)


@contextmanager
def serving(folder: Path) -> Iterator[Site]:
    """While active, the runs of a folder are served."""
    with Server(folder) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield Site(server)
        finally:
            server.shutdown()
            thread.join()
