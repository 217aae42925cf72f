"""A deployment within one process whose nodes reply with what cannot be right."""

from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("flwr", reason="flwr is not installed")
from digits import events
from inside import CLIENTS, deployed, trained_by, transport

from mmfl.deployment.payload import Payload
from mmfl.report.figures import FIGURES
from mmfl.report.page import write
from mmfl.report.sources import combine_sources, load_sources

HUGE = 10**400
NAN = float("nan")


def told(part: str, column: int, value):
    """Every row of a part of the answers has this in a column."""

    def change(fields, vectors):
        for row in fields.get(part, []):
            row[column] = value

    return change


def announced(**sizes):
    """The first client is announced with these sizes."""

    def change(fields, vectors):
        for row in fields.get("clients", [])[:1]:
            row[2].update(sizes)

    return change


def update(make):
    """The first update is another vector."""

    def change(fields, vectors):
        vectors[min(vectors)] = make(vectors[min(vectors)])

    return change


def update_of(task: str, client: int):
    """The first update has the name of another one."""
    return lambda fields, vectors: vectors.update({f"update.{task}.{client}": vectors.pop(min(vectors))})


def twice(part: str):
    """A part of the answers has its first row a second time, with another number."""
    return lambda fields, vectors: fields[part].append([*fields[part][0][:2], 0.5, *fields[part][0][3:]])


def cut_rows(fields, vectors):
    fields["trained"] = [row[:3] for row in fields["trained"]]


def replied(change, in_round=None):
    """A trouble: what node 100 replies, in one round or in all of them, is changed, or is other bytes."""

    def trouble(node, round, reply):
        if node != 100 or in_round not in (None, round):
            return reply
        if isinstance(change, bytes):
            return change
        payload = Payload.unpack(reply)
        change(payload.fields, payload.vectors)
        return payload.pack()

    return trouble


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        pytest.param("rejected", update(lambda v: torch.where(torch.arange(len(v)) == 1, NAN, v)), id="nan"),
        pytest.param("rejected", update(lambda v: torch.zeros(len(v) + 1)), id="shape"),
        pytest.param("rejected", update(lambda v: v.double()), id="dtype"),
        pytest.param("rejected", update(lambda v: v * 1e9), id="norm"),
        pytest.param("rejected", told("trained", 2, float("inf")), id="loss"),
        pytest.param("garbage", update_of("nowhere", 0), id="task"),
        pytest.param("garbage", update_of("a", 77), id="client"),
        pytest.param("garbage", twice("trained"), id="twice"),
        pytest.param("garbage", cut_rows, id="columns"),
        pytest.param("garbage", told("trained", 1, "0"), id="kinds"),
        pytest.param("garbage", b"\x00garbage" * 9, id="bytes"),
        pytest.param("garbage", b"", id="nothing"),
    ],
)
def test_what_cannot_be_right_is_refused_and_the_round_goes_on(kind, change, tmp_path):
    real = deployed("full", 3, 1.0, trouble=replied(change, in_round=2), directory=tmp_path / "run")
    assert all(torch.isfinite(weights).all() for weights in real.weights)
    bad = [event for event in events(tmp_path / "run") if event["kind"] == kind]
    assert bad
    assert {event["round"] for event in bad} == {2}
    assert real.records[1].faults == {kind: len(bad)}
    assert not real.records[2].faults


HOSTILE = {
    "a size beyond all floats": ("mmfl-lvr", announced(a=HUGE)),
    "sizes that overflow": ("mmfl-lvr", announced(a=2**62)),
    "a capacity beyond all": ("mmfl-lvr", told("clients", 1, HUGE)),
    "a long name": ("mmfl-lvr", announced(**{"x" * 10**6: 1})),
    "a loss beyond all floats": ("mmfl-lvr", told("losses", 2, HUGE)),
    "a loss that is none": ("mmfl-lvr", told("losses", 2, NAN)),
    "an absurd loss": ("mmfl-group", told("losses", 2, 1e308)),
    "a loss twice": ("mmfl-lvr", lambda fields, vectors: "losses" in fields and twice("losses")(fields, vectors)),
    "no losses": ("mmfl-lvr", lambda fields, vectors: fields.pop("losses", None)),
    "an absurd training loss": ("pareto-multi-ucb", told("trained", 2, 1e308)),
    "a training loss beyond all": ("mmfl-lvr", told("trained", 2, HUGE)),
    "steps beyond all": ("scaffold", told("trained", 3, HUGE)),
    "a norm beyond all": ("mmfl-gvr", told("trained", 4, HUGE)),
    "a negative norm": ("mmfl-gvr", told("trained", 4, -1.0)),
    "a norm that is none": ("mmfl-gvr", told("trained", 4, NAN)),
    "a product that is none": ("mmfl-stalevr", told("trained", 5, NAN)),
    "a product that cannot be": ("mmfl-stalevr", told("trained", 5, 1e300)),
    "a product that cannot be, for residuals": ("stalevr-opt", told("trained", 5, -1e9)),
    "no trainings": ("mmfl-lvr", lambda fields, vectors: (fields.pop("trained", None), vectors.clear())),
    "no updates": ("mmfl-stalevre", lambda fields, vectors: vectors.clear()),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_whatever_a_node_tells_the_run_goes_on_and_says_so(case, tmp_path):
    method, change = HOSTILE[case]
    real = deployed(method, 5, 1.0, trouble=replied(change), directory=tmp_path / "run")
    assert all(torch.isfinite(weights).all() for weights in real.weights)
    assert real.loss.max().max() < 10
    assert real.faults.sum().sum() > 0
    assert (tmp_path / "run" / "events.jsonl").stat().st_size < 20_000
    assert real.records[-1].clients_seen >= 4


@pytest.mark.parametrize(
    "announcement",
    [
        {"clients": [[0, 1, {"a": -1}]]},
        {"clients": [[0, 0, {"a": 5}]]},
        {"clients": [[0, 1, {"a": 5}], [0, 1, {"a": 9}]]},
        {"clients": [[0, 1, {"x" * 1000: 5}]]},
        {"clients": [[0, 1, {"a": "many"}]]},
        {"clients": "everyone"},
        {"clients": [[0, 1, {"a": 5}]], "tested": [1]},
    ],
    ids=str,
)
def test_a_node_that_introduces_itself_badly_is_not_counted(announcement):
    nodes = transport()
    nodes.services[50] = SimpleNamespace(answer=lambda packed: Payload(announcement).pack())
    real = deployed("full", 1, 1.0, to=nodes)
    assert real.records[0].faults["garbage"] == 1
    assert real.records[0].clients_seen == CLIENTS


def test_a_client_without_any_task_of_the_run_is_refused_and_takes_nobodys_place():
    nodes = transport()
    nodes.services = {50: SimpleNamespace(answer=lambda packed: Payload(elsewhere).pack()), **nodes.services}
    elsewhere = {"clients": [[0, 1, {"elsewhere": 5}]]}
    real = deployed("full", 1, 1.0, to=nodes)
    assert real.records[0].faults == {"refused": 1}
    assert real.records[0].clients_seen == CLIENTS


def test_clients_beyond_those_that_may_take_part_are_refused_in_one_event():
    strangers = [[CLIENTS + n, 1, {"a": 1}] for n in range(5000)]

    def add(fields, vectors):
        if "clients" in fields:
            fields["clients"] += strangers

    real = deployed("full", 1, 1.0, trouble=replied(add))
    assert real.records[0].faults == {"refused": 1}
    assert real.records[0].clients_seen == CLIENTS


def test_who_does_not_tell_its_loss_is_not_drawn():
    real = deployed(
        "mmfl-lvr", 4, 1.0, trouble=lambda node, _, reply: b"" if node == 100 and b"losses" in reply else reply
    )
    assert not {0, 3} & set.union(*trained_by(real))
    assert [record.faults["garbage"] for record in real.records] == [1] * 4


def test_an_answer_larger_than_the_server_takes_fails_its_node_alone_and_says_so(tmp_path):
    nodes = transport()
    nodes.max_reply_bytes = 600  # enough for one client
    real = deployed("full", 2, 1.0, to=nodes, directory=tmp_path / "run")
    failed = [event for event in events(tmp_path / "run") if event["kind"] != "joined"]
    assert [(event["round"], event["kind"], event["node"]) for event in failed] == [
        (t, "failed", node) for t in (1, 2) for node in ("100", "102")
    ]
    assert "MB; the server takes" in failed[0]["detail"]
    assert [task.active for record in real.records for task in record.tasks.values()] == [2] * 4


def test_faults_are_counted_by_kind_in_figure_and_table(tmp_path):
    deployed("full", 4, 1.0, trouble=replied(b"nonsense", in_round=2), directory=tmp_path / "run")
    sources = load_sources([tmp_path / "run"])
    comparison = combine_sources(sources)
    figure = FIGURES["faults"](comparison)
    assert figure.table[["round", "events"]].to_numpy().tolist() == [[2, 1]]
    (line,) = figure.panels[0].marks
    assert (line.name, line.y.tolist()) == ("garbage", [0, 1, 1, 1])
    text = write(comparison, tmp_path / "report.html", sources).read_text()
    assert "what went wrong with nodes, in all rounds" in text
