"""Metrics and health on loopback: what they say, in a format that another parser reads, and to whom."""

import http.client
import re
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="flwr is not installed")

from conftest import refused
from mmfl.deployment.child_processes import ChildProcesses
from mmfl.deployment.machines import free_port
from mmfl.deployment.metrics import (
    FAMILIES,
    Sample,
    exposition,
    process_samples,
    run_samples,
    serving_metrics,
    why_run_is_not_ready,
)
from mmfl.runs.live import LiveStateWriter
from mmfl.runs.status import StatusWriter

PAGE = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
LINE = re.compile(r"(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(?P<labels>.*)\})? (?P<value>\S+)")
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"(?:,|$)')
ESCAPED = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}


def parse(text: str) -> dict[tuple[str, tuple], float]:
    """Reads the text format after its specification, and nothing that the writer knows: HELP and TYPE come once, before
    all samples of their family, which stand together."""
    assert text.endswith("\n")
    found: dict[tuple[str, tuple], float] = {}
    kinds: dict[str, str] = {}
    family = ""
    for line in text.splitlines():
        if line.startswith("# HELP "):
            family = line.split()[2]
            assert family not in kinds
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split()
            assert name == family
            assert kind in ("gauge", "counter")
            kinds[name] = kind
        else:
            match = LINE.fullmatch(line)
            assert match, line
            assert match["name"] == family
            labels = match["labels"] or ""
            assert LABEL.sub("", labels) == ""
            pairs = tuple(
                (name, re.sub(r"\\.", lambda m: ESCAPED[m[0]], value)) for name, value in LABEL.findall(labels)
            )
            assert (family, pairs) not in found
            found[family, pairs] = float(match["value"])
    for name, kind in kinds.items():
        assert (kind == "counter") == name.endswith("_total")
    return found


@pytest.fixture
def run(tmp_path):
    """A run directory in the middle of a round, with one late node of two."""
    StatusWriter(tmp_path, 9).round(2, 9)
    writer = LiveStateWriter(tmp_path)
    writer.known |= {"rounds": 9, "round": 3}
    writer.begin_stage("training", 2)
    nodes = {7: ('a "quoted"\\\n name', [0, 1]), 8: ("8", [4])}
    writer.update(nodes, {8}, 1, clients=5, connected=2, events={"late": 3, "joined": 2})
    return tmp_path


def test_what_is_told_of_a_run_is_read_by_another_parser(run):
    told = parse(exposition(run_samples(run)))
    assert told["mmfl_run_round", ()] == 3
    assert told["mmfl_run_late_nodes", ()] == 1
    assert told["mmfl_run_unanswered_messages", ()] == 1
    assert told["mmfl_run_events_total", (("kind", "late"),)] == 3
    assert ("mmfl_run_node_last_reply_timestamp_seconds", (("node", 'a "quoted"\\\n name'),)) in told


def test_prometheus_own_parser_agrees(run):
    parser = pytest.importorskip("prometheus_client.parser", reason="prometheus_client is not installed")
    text = exposition(run_samples(run))
    samples = [each for family in parser.text_string_to_metric_families(text) for each in family.samples]
    assert {(each.name, tuple(each.labels.items())): each.value for each in samples} == parse(text)


def test_a_run_without_a_server_has_metrics_and_is_not_ready(tmp_path, run):
    empty = tmp_path / "empty"
    empty.mkdir()
    assert parse(exposition(run_samples(empty)))["mmfl_run_running", ()] == 0
    assert why_run_is_not_ready(empty) == "the server of the run is not running"
    assert why_run_is_not_ready(run) == ""


def test_names_have_their_units_and_the_page_lists_every_family():
    rows = re.findall(r"^\| `(mmfl_\w+)` \| (\w+) \| ([^|]*) \| (.+) \|$", PAGE, re.MULTILINE)
    labels = {name: ", ".join(f"`{label}`" for label in family.labels) for name, family in FAMILIES.items()}
    assert rows == [(name, family.kind, labels[name].strip(), family.help) for name, family in FAMILIES.items()]


def ask(port: int, path: str, method: str = "GET", host: str = "127.0.0.1"):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request(method, path, headers={"Host": host})
    reply = connection.getresponse()
    return reply.status, reply.read().decode(), reply.headers


def test_health_and_readiness_are_different_questions():
    problem, port = ["the worker is starting"], free_port()
    with serving_metrics(port, lambda: [Sample("mmfl_node_clients", 4)], lambda: problem[0]):
        assert ask(port, "/healthz")[:2] == (200, "alive\n")
        assert ask(port, "/readyz")[:2] == (503, "not ready: the worker is starting\n")
        _, text, headers = ask(port, "/metrics")
        assert headers["Content-Type"].startswith("text/plain; version=0.0.4")
        assert parse(text) == {("mmfl_node_clients", ()): 4, ("mmfl_ready", ()): 0}
        problem[0] = ""
        assert ask(port, "/readyz")[:2] == (200, "ready\n")
        assert ask(port, "/elsewhere")[0] == 404
        assert ask(port, "/metrics", method="POST")[0] == 501
        assert ask(port, "/metrics", host="example.org")[0] == 403
        with refused(f"--metrics-port {port} cannot be used"), serving_metrics(port, list, str):
            pass
    with serving_metrics(None, list, str):
        pass
    with refused("--metrics-port is 0"), serving_metrics(0, list, str):
        pass


def test_a_port_that_cannot_be_is_refused_before_anything_is_written(tmp_path, answer, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "app.py").write_text("def tasks(): ...\ndef data(task, client): ...\n")
    code, _, err = answer("deploy", "app.py", "--local", "1", "--rate", "1", "--metrics-port", "70000")
    assert (code, err) == (2, "error: --metrics-port is 70000; expected 1 to 65535.\n")
    assert [path.name for path in tmp_path.iterdir()] == ["app.py"]


def test_processes_that_were_started_are_told_with_their_memory(tmp_path):
    with ChildProcesses(tmp_path / "logs") as processes:
        child = processes.start("sleeper", ["sleep", "600"], {})
        told = {(each.name, each.labels["process"]): each.value for each in process_samples(processes)}
        assert told["mmfl_process_up", "sleeper"] == 1
        assert told["mmfl_process_resident_memory_bytes", "sleeper"] > 0
        child.kill()
        assert process_samples(processes)[0].value == 0
