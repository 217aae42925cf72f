"""A deployment within one process: the same run as a simulation, whatever goes wrong on the way."""

import dataclasses
import json
import os
import socket

import numpy as np
import pytest

import mmfl

pytest.importorskip("flwr", reason="flwr is not installed")
from digits import assert_same_weights
from inside import CLIENTS, NODES, InsideTransport, deployed, federation, trained_by, transport

from conftest import refused, toy_task
from mmfl.aggregation import AGGREGATIONS
from mmfl.data.dataset import ELSEWHERE
from mmfl.deployment.payload import Payload
from mmfl.deployment.server_app import record_outcome
from mmfl.methods import METHODS
from mmfl.runs.lock import hold

OPTIMISERS = ("momentum", "adam")
RULES = [name for name in AGGREGATIONS if name not in (*OPTIMISERS, "staleness-weighted")]  # around another rule
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


@pytest.mark.parametrize("method", EVERY, ids=str)
def test_a_deployment_gives_the_simulations_weights(method):
    real, same = deployed(method), simulated(method)
    assert_same_weights(real.weights, same.weights)
    assert [record.drawn for record in real.records] == [record.drawn for record in same.records]
    np.testing.assert_allclose(real.accuracy, same.accuracy, atol=1e-6)


@pytest.mark.parametrize("method", ["random", "mfa-rr", "mmfl-lvr"])
def test_the_priorities_of_the_servers_tasks_decide_who_trains_what_as_in_a_simulation(method):
    tasks = [dataclasses.replace(task, priority=p) for task, p in zip(federation().tasks, (1.0, 3.0), strict=True)]
    whole = mmfl.Federation(tasks, CLIENTS, lacks=federation().sizes == 0)
    real, same = deployed(method, tasks=tasks), mmfl.train(whole, method, rounds=4, rate=0.5, device="cpu")
    assert [record.drawn for record in real.records] == [record.drawn for record in same.records]
    assert [record.drawn for record in real.records] != [record.drawn for record in deployed(method).records]


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
    ("method", "exchanges"),
    [("random", 1), ("forecast", 1), ("mmfl-lvr", 2), ("mmfl-stalevr", 2), ("mmfl-gvr", 2)],
)
def test_a_node_gets_one_message_an_exchange_whatever_it_is_asked(method, exchanges):
    nodes = transport()
    deployed(method, rounds=3, rate=1.0, to=nodes)
    for node in NODES:
        assert sum(1 for to, round, _ in nodes.sent if (to, round) == (node, 2)) <= exchanges
    asked_for_losses = any("losses" in Payload.unpack(sent).fields for _, _, sent in nodes.sent)
    assert asked_for_losses == (method not in ("random", "forecast"))  # which do not need them


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


def owned(**options) -> mmfl.Federation:
    """Six clients with test examples of their own, two of whom have none."""
    rng = np.random.default_rng(0)
    x, owner = rng.normal(size=(120, 3)), np.arange(120) % 6
    y, test = np.argmax(x, axis=1), owner[:60] < 4
    data = mmfl.data.from_arrays(x[60:], y[60:], owner[60:], test=(x[:60][test], y[:60][test], owner[:60][test]))
    metrics = ["macro_f1", "confusion"]
    return mmfl.Federation([toy_task("a", classes=3, data=data, metrics=metrics, **options)])


@pytest.mark.parametrize("options", [{}, {"metric": "balanced_accuracy"}], ids=["mean", "whole"])
def test_metrics_of_nodes_add_up_to_those_of_all_test_examples_and_clients_keep_their_own(options, tmp_path):
    pool = owned(**options)
    bare = [dataclasses.replace(pool.tasks[0], data=ELSEWHERE)]
    real = deployed("full", 2, 1.0, to=transport(pool), tasks=bare, directory=tmp_path / "run")
    same = mmfl.train(pool, "full", 2, 1.0, device="cpu")
    assert real.metrics["metric"].tolist() == same.metrics["metric"].tolist()
    np.testing.assert_allclose(real.metrics["value"], same.metrics["value"], atol=1e-6)
    assert real.confusion("a").equals(same.confusion("a"))
    assert real.client_metric("a").index.tolist() == [0, 1, 2, 3]
    assert real.client_metric("a").equals(mmfl.load(tmp_path / "run").runs[0].client_metric("a"))
    np.testing.assert_allclose(real.client_metric("a"), same.client_metric("a"), atol=1e-6)
    assert not real.faults.size


@pytest.mark.parametrize("statistics", [[[1, 2]], [[1, 2], [3], [4]], [[1], [2], ["x"]], [[1e40, 1], [1] * 9, [1] * 9]])
def test_a_node_whose_statistics_cannot_be_right_is_left_out_of_the_test(statistics, tmp_path):
    pool = owned()

    def trouble(node, round, reply):
        payload = Payload.unpack(reply)
        for row in payload.fields.get("tests", []) if node == 101 else []:
            row[3] = statistics
        return payload.pack()

    nodes = transport(pool, trouble=trouble)
    real = deployed("full", 2, 1.0, to=nodes, tasks=[dataclasses.replace(pool.tasks[0], data=ELSEWHERE)])
    assert real.faults["rejected"].tolist() == [1, 1]
    assert real.confusion("a").to_numpy().sum() == 30  # of forty, those of client 1 are missing
    assert real.accuracy["a"].between(0, 1).all()


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
        second = outcome(2)
    assert (second["state"], second["run"]) == ("failed", 2)
    assert f"in use by process {os.getpid()} on {socket.gethostname()}" in second["message"]


@pytest.mark.parametrize("method", ["mmfl-lvr", "mmfl-stalevr", "scaffold", "forecast"])
def test_a_deployment_stopped_and_resumed_is_the_same_as_one_that_was_not(method, tmp_path):
    place = tmp_path / "run"

    def stop(node, round, reply):
        if round == 3:
            (place / "stop").touch()
        return reply

    with pytest.raises(KeyboardInterrupt):
        deployed(method, 6, trouble=stop, directory=place, average=0.3)
    (place / "stop").unlink()
    real = deployed(method, 6, directory=place, resume=True, average=0.3)  # with nodes that remember nothing
    assert [record.round for record in real.records] == [1, 2, 3, 4, 5, 6]
    whole = deployed(method, 6, average=0.3)
    assert_same_weights(real.weights, whole.weights)
    averages = ([each.value() for each in run.average_weights.weights] for run in (real, whole))
    assert_same_weights(*averages)


@pytest.mark.parametrize("average", [0.3, 2])
def test_a_deployment_has_the_simulations_average_and_sends_nodes_nothing_for_it(average):
    plain, nodes = transport(), transport()
    deployed(to=plain)
    real = deployed(to=nodes, average=average)
    same = mmfl.train(federation(), "mmfl-lvr", rounds=4, rate=0.5, device="cpu", average=average)
    for one, other in zip(real.average_weights.weights, same.average_weights.weights, strict=True):
        assert_same_weights([one.value()], [other.value()])
    np.testing.assert_allclose(real.average, same.average, atol=1e-6)
    assert [len(sent) for *_, sent in nodes.sent] == [len(sent) for *_, sent in plain.sent]


def test_averaged_weights_that_only_nodes_could_test_are_refused():
    bare = [mmfl.Task(t.name, t.model, lr=t.lr) for t in federation().tasks]
    with refused("task 'a'", "nodes test the current weights only"):
        deployed(tasks=bare, average=0.1)


@pytest.mark.parametrize("value", [0, 1, 1.5, -0.1, "x", True])
def test_a_deployment_refuses_what_is_no_average(value):
    with refused("deployment", "average"):
        deployed(average=value)
