"""A deployment within one process: the same run as a simulation, whatever goes wrong on the way."""

import json
import os
import socket
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import mmfl

pytest.importorskip("flwr", reason="flwr is not installed")
from digits import assert_same_weights, events
from inside import CLIENTS, NODES, InsideTransport, deployed, federation, service_of, transport

from mmfl.aggregation import AGGREGATIONS
from mmfl.deployment.exchange import Reply
from mmfl.deployment.payload import Payload
from mmfl.deployment.server_app import record_outcome
from mmfl.deployment.settings import DeploymentSettings
from mmfl.methods import METHODS
from mmfl.runs.lock import hold

OPTIMISERS = ("momentum", "adam")
RULES = [name for name in AGGREGATIONS if name not in OPTIMISERS]
EVERY = [
    *METHODS,
    {"name": "own", "allocation": "random-processors", "aggregation": "inside.MedianOfAll"},
    {"name": "near", "allocation": "full", "aggregation": "average", "local": {"name": "prox", "mu": 0.3}},
    *({"name": rule, "allocation": "random-processors", "aggregation": rule} for rule in RULES),
    *(
        {"name": rule, "allocation": "residual-variance", "aggregation": {"name": optimiser, "inner": rule}}
        for optimiser in OPTIMISERS
        for rule in RULES
    ),
]


def simulated(method, rounds: int = 4) -> mmfl.Run:
    return mmfl.train(federation(), method, rounds=rounds, rate=0.5, device="cpu")


def trained_by(run: mmfl.Run) -> list[set[int]]:
    """The clients that were drawn, by round."""
    return [{i for clients, _ in record.drawn.values() for i in clients} for record in run.records]


@pytest.mark.parametrize("method", EVERY, ids=str)
def test_a_deployment_gives_the_simulations_weights(method):
    real, same = deployed(method), simulated(method)
    assert_same_weights(real.weights, same.weights)
    assert [record.drawn for record in real.records] == [record.drawn for record in same.records]
    np.testing.assert_allclose(real.accuracy, same.accuracy, atol=1e-6)


# --- what travels ---


def updates_in(reply: bytes) -> list[str]:
    return [name for name in Payload.unpack(reply).vectors if name.startswith("update.")]


def count_drawn(run: mmfl.Run) -> int:
    return sum(len(clients) for record in run.records for clients, _ in record.drawn.values())


@pytest.mark.parametrize("method", ["mmfl-gvr", "mmfl-gvr-star", "mmfl-stalevr", "stalevr-opt", "roundrobin-gvr"])
def test_where_everyone_trains_only_drawn_updates_travel(method):
    sent = []
    real = deployed(method, trouble=lambda node, round, reply: sent.extend(updates_in(reply)) or reply)
    assert len(sent) == count_drawn(real) > 0


@pytest.mark.parametrize(
    ("method", "exchanges"), [("random", 1), ("mmfl-lvr", 2), ("mmfl-stalevr", 2), ("mmfl-gvr", 2)]
)
def test_a_node_gets_one_message_an_exchange_whatever_it_is_asked(method, exchanges):
    nodes = transport()
    deployed(method, rounds=3, rate=1.0, to=nodes)
    for node in NODES:
        assert sum(1 for to, round, _ in nodes.sent if (to, round) == (node, 2)) <= exchanges
    asked_for_losses = any("losses" in Payload.unpack(sent).fields for _, _, sent in nodes.sent)
    assert asked_for_losses == (method != "random")  # which does not need them


def test_who_trains_in_any_case_tells_its_loss_with_it_and_is_asked_again_only_if_drawn():
    nodes = transport()
    real = deployed("mmfl-stalevr", rounds=3, to=nodes)
    for t, drawn in enumerate(trained_by(real), 1):
        asked = [(node, Payload.unpack(sent).fields) for node, round, sent in nodes.sent if round == t]
        asked = [(node, fields) for node, fields in asked if "announce" not in fields]
        first, second = asked[: len(NODES)], asked[len(NODES) :]
        assert all({"train", "losses"} <= set(fields) for _, fields in first)
        assert {node for node, _ in second} == {node for node, clients in NODES.items() if drawn & set(clients)}
        assert all(set(fields) == {"collect"} for _, fields in second)


def test_a_node_that_forgot_its_last_update_sends_the_new_one_whole():
    nodes, sent = transport(), []

    def forget(node, round, reply):
        sent.extend(updates_in(reply))
        if round == 3:
            nodes.services[node].sent.clear()
        return reply

    nodes.trouble = forget
    real = deployed("mmfl-stalevr", 6, to=nodes)
    assert_same_weights(real.weights, simulated("mmfl-stalevr", 6).weights)
    assert len(sent) > count_drawn(real)


def test_nodes_test_where_the_server_has_no_data_and_tell_losses_at_once():
    nodes, same = transport(), simulated("mmfl-lvr", 3)
    bare = [mmfl.Task(t.name, t.model, lr=t.lr, epochs=t.epochs, batch_size=t.batch_size) for t in federation().tasks]
    real = deployed("mmfl-lvr", 3, to=nodes, tasks=bare)
    np.testing.assert_allclose(real.accuracy, same.accuracy, atol=1e-6)
    assert_same_weights(real.weights, same.weights)
    asked = [(round, Payload.unpack(sent).fields) for _, round, sent in nodes.sent]
    assert not any("losses" in fields and "test" not in fields for round, fields in asked if round > 1)


# --- what nodes say ---

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


def cut_rows(fields, vectors):
    fields["trained"] = [row[:3] for row in fields["trained"]]


def replied(change):
    """A trouble: what node 100 replies is changed, or is other bytes."""

    def reply_with(reply: bytes) -> bytes:
        if isinstance(change, bytes):
            return change
        payload = Payload.unpack(reply)
        change(payload.fields, payload.vectors)
        return payload.pack()

    return lambda node, round, reply: reply_with(reply) if node == 100 else reply


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
        pytest.param("garbage", cut_rows, id="columns"),
        pytest.param("garbage", told("trained", 1, "0"), id="kinds"),
        pytest.param("garbage", b"\x00garbage" * 9, id="bytes"),
        pytest.param("garbage", b"", id="nothing"),
    ],
)
def test_what_cannot_be_right_is_refused_and_the_round_goes_on(kind, change, tmp_path):
    spoil = replied(change)
    real = deployed(
        "full",
        3,
        1.0,
        trouble=lambda node, round, reply: spoil(node, round, reply) if round == 2 else reply,
        directory=tmp_path / "run",
    )
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
        {"clients": [[0, 1, {"elsewhere": 5}]]},
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


# --- who is there ---


def test_weights_of_those_who_answered_are_what_the_draw_says():
    """Who is asked and fails is missing from the sum, and nobody else's weight changes."""
    real = deployed(
        "full", 1, 1.0, trouble=lambda node, _, reply: b"" if node == 101 and b"trained" in reply else reply
    )
    whole, engine = federation(), mmfl.engine.Simulation("cpu")
    for s in range(2):
        start = engine.initial(whole, s, 0)
        clients = np.flatnonzero(whole.sizes[:, s])
        training = mmfl.engine.Training(whole, s, start, clients, 1, 0, mmfl.local.SGD())
        (trained,) = engine.train([training])
        share = whole.sizes[:, s] / whole.sizes[:, s].sum()
        share[1] = 0
        expected = start - torch.from_numpy(share[trained.client]).float() @ trained.flat
        torch.testing.assert_close(real.weights[s], expected, rtol=1e-4, atol=1e-5)


def test_a_silent_node_is_absent_until_it_answers():
    real = deployed(
        "mmfl-lvr",
        4,
        1.0,
        trouble=lambda node, round, reply: None if node == 100 and round == 2 else reply,
        timeout=0.2,
    )
    assert real.records[1].faults == {"late": 1}
    first, *later = trained_by(real)
    assert {0, 3} <= first
    assert not {0, 3} & set.union(*later)


def test_a_late_answer_is_not_used_but_the_node_is_there_again():
    nodes, held = transport(), {}

    def late(node, round, reply):
        if node == 100 and round == 2 and Payload.unpack(reply).fields.get("trained"):
            held["reply"] = reply
            return None
        if round == 3 and "reply" in held:
            name = next(name for name, waiting in nodes.waiting.items() if waiting is None)
            nodes.waiting[name] = held.pop("reply")
        return reply

    nodes.trouble = late
    present = trained_by(deployed("random", 5, 1.0, to=nodes, timeout=0.2))
    assert not {0, 3} & present[2]
    assert {0, 3} <= present[3]


def test_a_node_whose_message_came_back_must_say_again_who_it_is():
    nodes, lost = transport(), []

    def trouble(node, round, reply):
        if node == 100 and round == 2 and not lost:
            lost.append(node)
            return None
        return reply

    receive = nodes.receive

    def returned(messages):
        replies = receive(messages)
        late = [name for name in messages if nodes.waiting.get(name, b"") is None]
        if nodes.sent[-1][1] == 3 and late:
            nodes.waiting.pop(late[0])
            replies.append(Reply(late[0], None, "code 5"))
        return replies

    nodes.trouble, nodes.receive = trouble, returned
    real = deployed("random", 6, 1.0, to=nodes, timeout=0.2)
    assert any(record.faults.get("lost") for record in real.records)
    present = trained_by(real)
    assert not {0, 3} & present[2]
    assert {0, 3} <= present[5]


def test_a_message_that_is_not_taken_loses_its_node_alone():
    nodes = transport()
    send = nodes.send

    def refuses(payloads, round, seconds):
        return send({node: p for node, p in payloads.items() if round != 2 or node != 100}, round, seconds)

    nodes.send = refuses
    real = deployed("full", 3, 1.0, to=nodes)
    assert real.records[1].faults == {"lost": 1}
    assert real.records[2].clients_seen == CLIENTS


def test_nodes_join_and_leave_between_rounds():
    nodes = transport()
    later = nodes.services.pop(103)

    def change(node, round, reply):
        if round == 2:
            nodes.services[103] = later
        if round == 4:
            nodes.services.pop(100, None)
        return reply

    nodes.trouble = change
    real = deployed("full", 6, 1.0, to=nodes)
    present = trained_by(real)
    assert present[1] == {0, 1, 2, 3, 4}
    assert present[2] == set(range(6))
    assert present[5] == {1, 2, 4, 5}
    assert real.records[4].faults.get("left") == 1


def test_a_client_belongs_to_one_node_at_a_time():
    nodes = transport()
    nodes.services[200] = service_of(federation(), [0, 1])

    def leave(node, round, reply):
        if round == 2:
            nodes.services.pop(100, None)
        return reply

    nodes.trouble = leave
    real = deployed("full", 4, 1.0, to=nodes)
    assert real.records[0].faults["refused"] == 1
    assert trained_by(real)[2] == {0, 1, 2, 4, 5}  # 3 went with its node, 0 is spoken for by the other


def test_a_round_waits_for_clients_and_says_when_they_do_not_come():
    with pytest.raises(mmfl.UserError, match=r"0 clients are there after [\d.]+ s; expected at least 1"):
        deployed(to=InsideTransport({}), patience=0.1)


# --- stopping and going on ---


def test_waiting_for_clients_can_be_stopped(tmp_path):
    (tmp_path / "stop").touch()
    (tmp_path / "config.toml").touch()
    with pytest.raises(KeyboardInterrupt):
        deployed(to=InsideTransport({}), patience=60, directory=tmp_path)


def test_one_server_at_a_time_works_in_a_run_directory(tmp_path):
    def outcome(run: int) -> dict:
        record_outcome(tmp_path / "run", lambda: deployed("full", 2, 1.0, directory=tmp_path / "run"), run)
        return json.loads((tmp_path / "run" / "ended.json").read_text())

    assert outcome(1) == {"state": "finished", "message": "", "run": 1}
    with hold(tmp_path / "run"):  # by a server that waits for its nodes, or trains
        refused = outcome(2)
    assert (refused["state"], refused["run"]) == ("failed", 2)
    assert f"in use by process {os.getpid()} on {socket.gethostname()}" in refused["message"]


@pytest.mark.parametrize("method", ["mmfl-lvr", "mmfl-stalevr", "scaffold"])
def test_a_deployment_stopped_and_resumed_is_the_same_as_one_that_was_not(method, tmp_path):
    place = tmp_path / "run"

    def stop(node, round, reply):
        if round == 3:
            (place / "stop").touch()
        return reply

    with pytest.raises(KeyboardInterrupt):
        deployed(method, 6, trouble=stop, directory=place)
    (place / "stop").unlink()
    real = deployed(method, 6, directory=place, resume=True)  # with nodes that remember nothing
    assert [record.round for record in real.records] == [1, 2, 3, 4, 5, 6]
    assert_same_weights(real.weights, deployed(method, 6).weights)


# --- settings ---


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"clents": 3}, "unknown setting 'clents'"),
        ({"clients": "many"}, "'clients' is 'many'"),
        ({"clients": 0}, "clients is 0; expected at least 1"),
        ({"timeout": 0}, "timeout is 0"),
        ({"patience": 0}, "patience is 0"),
        ({"least": 0}, "least is 0"),
        ({"norm": 0}, "norm is 0"),
        ({"gather": -1}, "gather is -1"),
        ({"least": 7}, "least is 7; expected at most the 6 clients"),
        ({"rounds": 0}, "rounds is 0"),
        ({"rate": 2}, "rate is 2"),
        ({"method": "mmfl-lrv"}, "mmfl-lvr"),
    ],
)
def test_bad_settings_are_named(change, words):
    with pytest.raises(mmfl.UserError, match=words):
        deployed(**change)


def test_settings_need_the_number_of_clients():
    with pytest.raises(mmfl.UserError, match="'clients' is missing"):
        DeploymentSettings.of({})
