"""A deployment within one process: the same run as a simulation, whatever goes wrong on the way."""

import json
import os
import socket

import numpy as np
import pytest
import torch

import mmfl
from conftest import toy_task

pytest.importorskip("flwr", reason="flwr is not installed")
from inside import InsideTransport, module_of, service_of

from mmfl.aggregation import AGGREGATIONS
from mmfl.deployment.payload import Payload
from mmfl.deployment.server_app import record_outcome, run
from mmfl.deployment.settings import DeploymentSettings
from mmfl.deployment.transport import Reply
from mmfl.deployment.user_module import UserModule
from mmfl.methods import METHODS
from mmfl.runs.lock import hold

CLIENTS = 6
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


def federation(capacity: int = 1) -> mmfl.Federation:
    tasks = [toy_task("a", epochs=2, batch_size=4), toy_task("b", classes=3, lr=0.3)]
    lacks = np.zeros((CLIENTS, 2), dtype=bool)
    lacks[2, 1] = True
    return mmfl.Federation(tasks, CLIENTS, lacks=lacks, capacity=capacity)


def transport_to(simulated: mmfl.Federation, nodes: list[list[int]], capacity: int = 1) -> InsideTransport:
    return InsideTransport({100 + n: service_of(simulated, clients, capacity) for n, clients in enumerate(nodes)})


NODES = [[0, 3], [1], [2, 4], [5]]


def deployed(method="mmfl-lvr", rounds=4, rate=0.5, transport=None, directory=None, resume=False, **options):
    simulated = federation()
    transport = transport or transport_to(simulated, NODES)
    told = {"clients": CLIENTS, "method": method, "rounds": rounds, "rate": rate, "gather": 0.2}
    settings = DeploymentSettings.of(told | options)
    return run(transport, module_of(simulated), settings, directory, resume).runs[0], transport


@pytest.mark.parametrize("method", EVERY, ids=str)
def test_a_deployment_gives_the_simulations_weights(method):
    real, _ = deployed(method)
    simulated = mmfl.train(federation(), method, rounds=4, rate=0.5, device="cpu")
    for mine, theirs in zip(real.weights, simulated.weights, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)
    drawn = [[record.drawn for record in each.records] for each in (real, simulated)]
    assert drawn[0] == drawn[1]
    np.testing.assert_allclose(real.accuracy, simulated.accuracy, atol=1e-6)


# --- what travels ---


def updates_sent(transport: InsideTransport, method: str, rounds: int = 4) -> tuple[int, int, mmfl.Run]:
    """How many updates travelled, how many were drawn."""
    sent = []

    def count(node, round, reply):
        sent.extend(name for name in Payload.unpack(reply).vectors if name.startswith("update."))
        return reply

    transport.trouble = count
    real, _ = deployed(method, rounds, transport=transport)
    drawn = sum(len(clients) for record in real.records for clients, _ in record.drawn.values())
    return len(sent), drawn, real


@pytest.mark.parametrize("method", ["mmfl-gvr", "mmfl-gvr-star", "mmfl-stalevr", "stalevr-opt", "roundrobin-gvr"])
def test_where_everyone_trains_only_drawn_updates_travel(method):
    sent, drawn, _ = updates_sent(transport_to(federation(), NODES), method)
    assert sent == drawn > 0


@pytest.mark.parametrize(
    ("method", "exchanges"), [("random", 1), ("mmfl-lvr", 2), ("mmfl-stalevr", 2), ("mmfl-gvr", 2)]
)
def test_a_node_gets_one_message_an_exchange_whatever_it_is_asked(method, exchanges):
    _, transport = deployed(method, rounds=3, rate=1.0)
    for node in transport.services:
        assert sum(1 for to, round, _ in transport.sent if (to, round) == (node, 2)) <= exchanges


def test_who_trains_in_any_case_tells_its_loss_with_it_and_is_asked_again_only_if_drawn():
    real, transport = deployed("mmfl-stalevr", rounds=3)
    for t, record in enumerate(real.records, 1):
        asked = [(node, Payload.unpack(sent).fields) for node, round, sent in transport.sent if round == t]
        asked = [(node, fields) for node, fields in asked if "announce" not in fields]
        first, second = asked[: len(NODES)], asked[len(NODES) :]
        assert all({"train", "losses"} <= set(fields) for _, fields in first)
        drawn = {i for clients, _ in record.drawn.values() for i in clients}
        assert {node for node, _ in second} == {100 + n for n, clients in enumerate(NODES) if drawn & set(clients)}
        assert all(set(fields) == {"collect"} for _, fields in second)


def test_losses_are_asked_for_only_where_the_method_needs_them():
    for method, asked in (("random", False), ("mmfl-lvr", True)):
        _, transport = deployed(method, rounds=2)
        assert any("losses" in Payload.unpack(sent).fields for _, _, sent in transport.sent) == asked


def test_a_node_that_forgot_its_last_update_sends_the_new_one_whole():
    simulated = federation()
    transport = transport_to(simulated, NODES)
    sent = []

    def forget(node, round, reply):
        sent.extend(name for name in Payload.unpack(reply).vectors if name.startswith("update."))
        if round == 3:
            transport.services[node].sent.clear()
        return reply

    transport.trouble = forget
    real, _ = deployed("mmfl-stalevr", 6, transport=transport)
    same = mmfl.train(federation(), "mmfl-stalevr", rounds=6, rate=0.5, device="cpu")
    for mine, theirs in zip(real.weights, same.weights, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)
    assert len(sent) > sum(len(clients) for record in real.records for clients, _ in record.drawn.values())


def test_nodes_test_where_the_server_has_no_data_and_tell_losses_at_once():
    simulated = federation()
    transport = transport_to(simulated, NODES)
    bare = [mmfl.Task(t.name, t.model, lr=t.lr, epochs=t.epochs, batch_size=t.batch_size) for t in simulated.tasks]
    settings = DeploymentSettings.of({"clients": CLIENTS, "method": "mmfl-lvr", "rounds": 3, "rate": 0.5})
    real = run(transport, UserModule(bare, lambda task, client: None), settings).runs[0]
    same = mmfl.train(federation(), "mmfl-lvr", rounds=3, rate=0.5, device="cpu")
    np.testing.assert_allclose(real.accuracy, same.accuracy, atol=1e-6)
    for mine, theirs in zip(real.weights, same.weights, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)
    asked = [(round, Payload.unpack(sent).fields) for _, round, sent in transport.sent]
    assert not any("losses" in fields and "test" not in fields for round, fields in asked if round > 1)


# --- what goes wrong ---


def spoil(part: str):
    """A change to a reply with updates: what a broken or hostile node may send."""

    def change(reply: bytes) -> bytes:
        payload = Payload.unpack(reply)
        vectors, fields = dict(payload.vectors), dict(payload.fields)
        if not vectors:
            return reply
        first = sorted(vectors)[0]
        length = len(vectors[first])
        if part == "nan":
            vectors[first][1] = float("nan")
        elif part == "shape":
            vectors[first] = torch.zeros(length + 1)
        elif part == "dtype":
            vectors[first] = vectors[first].double()
        elif part == "norm":
            vectors[first] *= 1e9
        elif part == "task":
            vectors["update.nowhere.0"] = vectors.pop(first)
        elif part == "client":
            vectors[first.rsplit(".", 1)[0] + ".77"] = vectors.pop(first)
        elif part == "loss":
            fields["trained"] = [[*row[:2], float("inf"), *row[3:]] for row in fields["trained"]]
        elif part == "columns":
            fields["trained"] = [row[:3] for row in fields["trained"]]
        elif part == "kinds":
            fields["trained"] = [[row[0], "0", *row[2:]] for row in fields["trained"]]
        elif part == "bytes":
            return b"\x00garbage" * 9
        elif part == "nothing":
            return b""
        return Payload(fields, vectors).pack()

    return change


KINDS = {
    **dict.fromkeys(("nan", "shape", "dtype", "norm", "loss"), "rejected"),
    **dict.fromkeys(("task", "client", "columns", "kinds", "bytes", "nothing"), "garbage"),
}


@pytest.mark.parametrize("part", KINDS)
def test_what_cannot_be_right_is_refused_and_the_round_goes_on(part, tmp_path):
    transport = transport_to(federation(), NODES)
    change = spoil(part)
    transport.trouble = lambda node, round, reply: change(reply) if node == 100 and round == 2 else reply
    real, _ = deployed("full", 3, 1.0, transport=transport, directory=tmp_path / "run")
    assert all(torch.isfinite(weights).all() for weights in real.weights)
    events = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    bad = [event for event in events if event["kind"] == KINDS[part]]
    assert bad
    assert {event["round"] for event in bad} == {2}
    assert real.records[1].faults == {KINDS[part]: len(bad)}
    assert not real.records[2].faults


def test_weights_of_those_who_answered_are_what_the_draw_says():
    """Who is asked and fails is missing from the sum, and nobody else's weight changes."""
    transport = transport_to(federation(), NODES)
    transport.trouble = lambda node, round, reply: b"" if node == 101 and b"trained" in reply else reply
    real, _ = deployed("full", 1, 1.0, transport=transport)
    whole = federation()
    engine = mmfl.engine.Simulation("cpu")
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
    transport = transport_to(federation(), NODES)
    transport.trouble = lambda node, round, reply: None if node == 100 and round == 2 else reply
    real, _ = deployed("mmfl-lvr", 4, 1.0, transport=transport, timeout=0.2)
    assert real.records[1].faults == {"late": 1}
    present = [{i for clients, _ in record.drawn.values() for i in clients} for record in real.records]
    assert {0, 3} <= present[0]
    for t in (1, 2, 3):
        assert not {0, 3} & present[t]


def test_a_late_answer_is_not_used_but_the_node_is_there_again():
    transport = transport_to(federation(), NODES)
    held = {}

    def late(node, round, reply):
        if node == 100 and round == 2 and Payload.unpack(reply).fields.get("trained"):
            held["reply"] = reply
            return None
        if round == 3 and "reply" in held:
            name = next(name for name, waiting in transport._waiting.items() if waiting is None)
            transport._waiting[name] = held.pop("reply")
        return reply

    transport.trouble = late
    real, _ = deployed("random", 5, 1.0, transport=transport, timeout=0.2)
    present = [{i for clients, _ in record.drawn.values() for i in clients} for record in real.records]
    assert not {0, 3} & present[2]
    assert {0, 3} <= present[3]


def test_nodes_join_and_leave_between_rounds():
    simulated = federation()
    transport = transport_to(simulated, NODES[:3])
    gone = {}

    def change(node, round, reply):
        if round == 2 and 103 not in transport.services:
            transport.services[103] = service_of(simulated, NODES[3])
        if round == 4:
            gone.update({100: transport.services.pop(100)} if 100 in transport.services else {})
        return reply

    transport.trouble = change
    real, _ = deployed("full", 6, 1.0, transport=transport)
    present = [{i for clients, _ in record.drawn.values() for i in clients} for record in real.records]
    assert present[1] == {0, 1, 2, 3, 4}
    assert present[2] == set(range(6))
    assert present[5] == {1, 2, 4, 5}
    assert real.records[4].faults.get("left") == 1


def test_a_client_belongs_to_one_node_at_a_time():
    simulated = federation()
    transport = transport_to(simulated, NODES)
    transport.services[200] = service_of(simulated, [0, 1])
    transport.trouble = lambda node, round, reply: (
        (transport.services.pop(100, None) and None) or reply if round == 2 else reply
    )
    real, _ = deployed("full", 4, 1.0, transport=transport)
    assert real.records[0].faults["refused"] == 1
    present = [{i for clients, _ in record.drawn.values() for i in clients} for record in real.records]
    assert present[2] == {0, 1, 2, 4, 5}  # 3 went with its node, 0 is spoken for by the other


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
    simulated = federation()
    transport = transport_to(simulated, NODES)

    class Liar:
        def answer(self, payload):
            return Payload(announcement).pack()

    transport.services[50] = Liar()
    real, _ = deployed("full", 1, 1.0, transport=transport)
    assert real.records[0].faults["garbage"] == 1
    assert real.records[0].clients_seen == CLIENTS


def test_a_client_number_beyond_those_that_may_take_part_is_refused():
    simulated = federation()
    transport = transport_to(simulated, NODES)
    settings = DeploymentSettings.of({"clients": 5, "method": "full", "rounds": 1, "rate": 1.0, "gather": 0})
    real = run(transport, module_of(simulated), settings).runs[0]
    assert real.records[0].faults == {"refused": 1}
    assert real.records[0].clients_seen == 5


def test_a_round_waits_for_clients_and_says_when_they_do_not_come():
    with pytest.raises(mmfl.UserError, match=r"0 clients are there after [\d.]+ s; expected at least 1"):
        deployed(transport=InsideTransport({}), patience=0.1)


def test_a_node_whose_message_came_back_must_say_again_who_it_is():
    transport = transport_to(federation(), NODES)
    lost = []

    def trouble(node, round, reply):
        if node == 100 and round == 2 and not lost:
            lost.append(node)
            return None
        return reply

    receive = transport.receive

    def returned(messages):
        replies = receive(messages)
        late = [name for name in messages if transport._waiting.get(name, b"") is None]
        if transport.sent[-1][1] == 3 and late:
            transport._waiting.pop(late[0])
            replies.append(Reply(late[0], None, "code 5"))
        return replies

    transport.trouble, transport.receive = trouble, returned
    real, _ = deployed("random", 6, 1.0, transport=transport, timeout=0.2)
    assert any(record.faults.get("lost") for record in real.records)
    present = [{i for clients, _ in record.drawn.values() for i in clients} for record in real.records]
    assert not {0, 3} & present[2]
    assert {0, 3} <= present[5]


HUGE = 10**400


def announced(change):
    def apply(fields, vectors):
        if "clients" in fields:
            change(fields)

    return apply


def told(part: str, column: int, value):
    """Every row of a part of the answers has this in a column."""

    def apply(fields, vectors):
        for row in fields.get(part, []):
            row[column] = value

    return apply


HOSTILE = {
    "a size beyond all floats": ("mmfl-lvr", announced(lambda fields: fields["clients"][0][2].update(a=HUGE))),
    "sizes that overflow": (
        "mmfl-lvr",
        announced(lambda table: [row[2].update(a=2**62) for row in table["clients"]]),
    ),
    "a capacity beyond all": ("mmfl-lvr", announced(lambda fields: fields["clients"][0].__setitem__(1, HUGE))),
    "a long name": ("mmfl-lvr", announced(lambda fields: fields["clients"][0][2].update({"x" * 10**6: 1}))),
    "a loss beyond all floats": ("mmfl-lvr", told("losses", 2, HUGE)),
    "a loss that is none": ("mmfl-lvr", told("losses", 2, float("nan"))),
    "an absurd loss": ("mmfl-group", told("losses", 2, 1e308)),
    "no losses": ("mmfl-lvr", lambda fields, vectors: fields.pop("losses", None)),
    "an absurd training loss": ("pareto-multi-ucb", told("trained", 2, 1e308)),
    "a training loss beyond all": ("mmfl-lvr", told("trained", 2, HUGE)),
    "steps beyond all": ("scaffold", told("trained", 3, HUGE)),
    "a norm beyond all": ("mmfl-gvr", told("trained", 4, HUGE)),
    "a negative norm": ("mmfl-gvr", told("trained", 4, -1.0)),
    "a norm that is none": ("mmfl-gvr", told("trained", 4, float("nan"))),
    "a product that is none": ("mmfl-stalevr", told("trained", 5, float("nan"))),
    "a product that cannot be": ("mmfl-stalevr", told("trained", 5, 1e300)),
    "a product that cannot be, for residuals": ("stalevr-opt", told("trained", 5, -1e9)),
    "no trainings": ("mmfl-lvr", lambda fields, vectors: (fields.pop("trained", None), vectors.clear())),
    "no updates": ("mmfl-stalevre", lambda fields, vectors: vectors.clear()),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_whatever_a_node_tells_the_run_goes_on_and_says_so(case, tmp_path):
    method, change = HOSTILE[case]
    transport = transport_to(federation(), NODES)

    def lie(node, round, reply):
        if node != 100:
            return reply
        payload = Payload.unpack(reply)
        fields, vectors = json.loads(json.dumps(payload.fields)), dict(payload.vectors)
        change(fields, vectors)
        return Payload(fields, vectors).pack()

    transport.trouble = lie
    real, _ = deployed(method, 5, 1.0, transport=transport, directory=tmp_path / "run")
    assert all(torch.isfinite(weights).all() for weights in real.weights)
    assert real.loss.max().max() < 10
    assert real.faults.sum().sum() > 0
    assert (tmp_path / "run" / "events.jsonl").stat().st_size < 20_000
    assert real.records[-1].clients_seen >= 4


def test_who_does_not_tell_its_loss_is_not_drawn():
    transport = transport_to(federation(), NODES)
    transport.trouble = lambda node, round, reply: b"" if node == 100 and b"losses" in reply else reply
    real, _ = deployed("mmfl-lvr", 4, 1.0, transport=transport)
    for record in real.records:
        assert not {0, 3} & {i for clients, _ in record.drawn.values() for i in clients}
        assert record.faults["garbage"] == 1


def test_many_strangers_are_one_event(tmp_path):
    transport = transport_to(federation(), NODES)
    service = transport.services[103]
    many = [[1000 + n, 1, {"a": 1}] for n in range(5000)]

    class Crowd:
        def answer(self, packed):
            payload = Payload.unpack(service.answer(packed))
            more = many if "clients" in payload.fields else []
            return Payload(
                payload.fields | ({"clients": payload.fields["clients"] + more} if more else {}), payload.vectors
            ).pack()

    transport.services[103] = Crowd()
    real, _ = deployed("full", 1, 1.0, transport=transport)
    assert real.records[0].faults == {"refused": 1}
    assert real.records[0].clients_seen == CLIENTS


def test_a_message_that_is_not_taken_loses_its_node_alone():
    transport = transport_to(federation(), NODES)
    send = transport.send

    def refuses(payloads, round, seconds):
        return send({node: p for node, p in payloads.items() if round != 2 or node != 100}, round, seconds)

    transport.send = refuses
    real, _ = deployed("full", 3, 1.0, transport=transport)
    assert real.records[1].faults == {"lost": 1}
    assert real.records[2].clients_seen == CLIENTS


def test_waiting_for_clients_can_be_stopped(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.toml").touch()
    (tmp_path / "run" / "stop").touch()
    with pytest.raises(KeyboardInterrupt):
        deployed(transport=InsideTransport({}), patience=60, directory=tmp_path / "run")


def test_an_answer_larger_than_the_server_takes_fails_its_node_alone_and_says_so(tmp_path):
    transport = transport_to(federation(), NODES)
    transport.max_reply_bytes = 600  # enough for one client
    real, _ = deployed("full", 2, 1.0, transport=transport, directory=tmp_path / "run")
    events = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    failed = [event for event in events if event["kind"] != "joined"]
    assert [(event["round"], event["kind"], event["node"]) for event in failed] == [
        (t, "failed", node) for t in (1, 2) for node in ("100", "102")
    ]
    assert "MB; the server takes" in failed[0]["detail"]
    assert [task.active for record in real.records for task in record.tasks.values()] == [2] * 4


# --- stopping and going on ---


def test_one_server_at_a_time_works_in_a_run_directory(tmp_path):
    def told():
        return json.loads((tmp_path / "run" / "ended.json").read_text())

    with hold(tmp_path / "run"):  # by a server that waits for its nodes, or trains
        record_outcome(tmp_path / "run", lambda: deployed("full", 2, 1.0, directory=tmp_path / "run")[0], run=2)
    assert (told()["state"], told()["run"]) == ("failed", 2)
    assert f"in use by process {os.getpid()} on {socket.gethostname()}" in told()["message"]
    (tmp_path / "run" / "ended.json").unlink()
    record_outcome(tmp_path / "run", lambda: deployed("full", 2, 1.0, directory=tmp_path / "run")[0], run=1)
    assert told() == {"state": "finished", "message": "", "run": 1}


@pytest.mark.parametrize("method", ["mmfl-lvr", "mmfl-stalevr", "scaffold"])
def test_a_deployment_stopped_and_resumed_is_the_same_as_one_that_was_not(method, tmp_path):
    place = tmp_path / "run"
    transport = transport_to(federation(), NODES)

    def stop(node, round, reply):
        if round == 3:
            (place / "stop").touch()
        return reply

    transport.trouble = stop
    with pytest.raises(KeyboardInterrupt):
        deployed(method, 6, transport=transport, directory=place)
    (place / "stop").unlink()
    again = transport_to(federation(), NODES)  # nodes that remember nothing
    real, _ = deployed(method, 6, transport=again, directory=place, resume=True)
    same, _ = deployed(method, 6)
    assert [record.round for record in real.records] == [1, 2, 3, 4, 5, 6]
    for mine, theirs in zip(real.weights, same.weights, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


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
        ({"gather": -1}, "gather is -1"),
        ({"least": 7}, "least is 7; expected at most the 6 clients"),
        ({"rounds": 0}, "rounds is 0"),
        ({"rate": 2}, "rate is 2"),
        ({"method": "mmfl-lrv"}, "mmfl-lvr"),
    ],
)
def test_bad_settings_are_named(change, words):
    with pytest.raises(mmfl.UserError, match=words):
        run(
            transport_to(federation(), NODES),
            module_of(federation()),
            DeploymentSettings.of({"clients": CLIENTS} | change),
        )


def test_settings_need_the_number_of_clients():
    with pytest.raises(mmfl.UserError, match="'clients' is missing"):
        DeploymentSettings.of({})
