"""What clients keep over nodes: batch norm that the server averages or that stays there, and states of optimisers."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import mmfl

pytest.importorskip("flwr", reason="flwr is not installed")
from digits import assert_same_weights
from inside import CLIENTS, NODES, InsideTransport, deployed, service_of

from conftest import refused, toy_task
from mmfl.data.dataset import ELSEWHERE
from mmfl.deployment.client_states import ClientStates
from mmfl.deployment.node_service import NodeService
from mmfl.deployment.payload import Payload
from mmfl.federation.optimisers import SGD, Adam
from mmfl.federation.task import Task


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 4))


def normed(mode: str) -> mmfl.Federation:
    return mmfl.Federation([toy_task("a", model=network, batch_norm=mode, batch_size=5)], CLIENTS)


def without_data(pool: mmfl.Federation) -> list[Task]:
    return [replace(task, data=ELSEWHERE) for task in pool.tasks]


@pytest.mark.parametrize("method", ["mmfl-lvr", "mmfl-stalevr"])
@pytest.mark.parametrize("mode", ["shared", "local", "frozen"])
def test_a_deployment_gives_the_simulations_weights_and_statistics(mode, method):
    pool = normed(mode)
    nodes = InsideTransport({node: service_of(pool, clients) for node, clients in NODES.items()})
    real = deployed(method, to=nodes, tasks=without_data(pool))
    same = mmfl.train(pool, method, rounds=4, rate=0.5, device="cpu")
    assert_same_weights(real.weights, same.weights)
    assert [record.drawn for record in real.records] == [record.drawn for record in same.records]
    if mode == "shared":
        torch.testing.assert_close(real.batch_norm[0], same.batch_norm[0], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(real.loss, same.loss, rtol=1e-4)
    sent = {name for _, _, packed in nodes.sent for name in Payload.unpack(packed).vectors}
    assert ("batch_norm.a" in sent) == (mode == "shared")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda values: -values.abs() - 1, "variance is negative"),
        (lambda values: values / 0, "not finite"),
        (lambda values: values[1:], "7 statistics of batch norm, not 8"),
    ],
)
def test_statistics_that_cannot_be_right_are_rejected_with_their_update(change, words, tmp_path):
    def trouble(node: int, round: int, reply: bytes) -> bytes:
        payload = Payload.unpack(reply)
        wrong = {
            name: change(vector) if node == 101 and name.startswith("batch_norm") else vector
            for name, vector in payload.vectors.items()
        }
        return Payload(payload.fields, wrong).pack()

    pool = normed("shared")
    services = {node: service_of(pool, clients) for node, clients in NODES.items()}
    place = tmp_path / "run"
    run = deployed("full", 1, 1.0, to=InsideTransport(services, trouble), tasks=without_data(pool), directory=place)
    assert run.records[0].faults == {"rejected": 1}
    assert words in (place / "events.jsonl").read_text()
    assert (run.module("a")[1].running_var >= 0).all()


def test_what_clients_keep_outlives_its_process_and_belongs_to_one_run(tmp_path):
    initial, clients = torch.zeros(2), np.array([3, 5])
    first = ClientStates(tmp_path)
    assert torch.equal(first.of("batch_norm", "a.b", clients, initial, "run 1"), torch.zeros(2, 2))
    first.put("batch_norm", "a.b", clients[1:], torch.tensor([[1.0, 2.0]]))
    first.save()
    again = ClientStates(tmp_path)
    assert again.of("batch_norm", "a.b", clients, initial, "run 1").tolist() == [[0, 0], [1, 2]]
    assert not again.of("optimiser", "a.b", clients, initial, "run 1").any()
    assert not again.of("batch_norm", "a.b", clients, initial, "run 2").any()


def optimised(lifetime: str) -> mmfl.Federation:
    tasks = [
        toy_task("a", optimiser=Adam(), lr=0.03, epochs=2, batch_size=5, optimiser_state=lifetime),
        toy_task("b", model=network, optimiser=SGD(momentum=0.9), optimiser_state=lifetime, batch_norm="local"),
    ]
    return mmfl.Federation(tasks, CLIENTS)


@pytest.mark.parametrize("method", ["mmfl-lvr", "mmfl-stalevr", "scaffold"])
@pytest.mark.parametrize("lifetime", ["training", "client"])
def test_a_deployment_trains_with_the_simulations_optimisers(lifetime, method):
    pool, replies = optimised(lifetime), []
    services = {node: service_of(pool, clients) for node, clients in NODES.items()}
    nodes = InsideTransport(services, lambda node, round, reply: replies.append(reply) or reply)
    real = deployed(method, to=nodes, tasks=without_data(pool))
    assert_same_weights(real.weights, mmfl.train(pool, method, rounds=4, rate=0.5, device="cpu").weights)
    other = mmfl.train(optimised("client" if lifetime == "training" else "training"), method, 4, 0.5, device="cpu")
    assert (other.weights[0] - real.weights[0]).abs().max() > 1e-3
    messages = [packed for _, _, packed in nodes.sent] + replies
    kinds = {name.partition(".")[0] for packed in messages for name in Payload.unpack(packed).vectors}
    assert kinds <= {"weights", "update", "correction"}


def test_nodes_that_restart_all_the_time_go_on_with_what_their_clients_kept(tmp_path):
    def start(node: int) -> NodeService:
        folder = tmp_path / str(node)
        folder.mkdir(exist_ok=True)
        return service_of(pool, NODES[node], folder=folder)

    def restart(node: int, round: int, reply: bytes) -> bytes:
        nodes.services[node] = start(node)
        return reply

    pool = optimised("client")
    nodes = InsideTransport({node: start(node) for node in NODES}, restart)
    real = deployed("mmfl-lvr", to=nodes, tasks=without_data(pool))
    assert_same_weights(real.weights, mmfl.train(pool, "mmfl-lvr", rounds=4, rate=0.5, device="cpu").weights)


def test_a_client_whose_training_is_not_finite_keeps_what_it_had():
    pool = optimised("client")
    service, client = service_of(pool, [0]), np.array([0])
    initial = service.engine.initial_optimiser_state(pool, 0)
    kept = []
    for t, weights in enumerate((torch.zeros(16), torch.full((16,), torch.nan), torch.zeros(16)), 1):
        request = {"train": [["a", 0, True, ""]], "round": t, "seed": 0, "method": "random", "run": "1"}
        reply = Payload.unpack(service.answer(Payload(request, {"weights.a": weights}).pack()))
        assert "error" not in reply.fields
        kept.append(service.states.of("optimiser", "a", client, initial, "1"))
    assert kept[0].any()
    assert torch.equal(kept[0], kept[1])
    assert kept[2][0, -1] == 2 * kept[0][0, -1] > 0


def test_the_server_cannot_test_with_batch_norm_that_is_on_the_nodes():
    with refused("'a'", "local batch norm is on the nodes"):
        deployed("random", 1, tasks=normed("local").tasks)
