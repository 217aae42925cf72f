"""Batch norm over nodes: statistics that the server averages, or that never leave the nodes."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import mmfl

pytest.importorskip("flwr", reason="flwr is not installed")
from digits import assert_same_weights
from inside import CLIENTS, deployed, transport

from conftest import refused, toy_task
from mmfl.data.dataset import ELSEWHERE
from mmfl.deployment.node_service import LocalBatchNorms
from mmfl.deployment.payload import Payload
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
    nodes = transport(pool)
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
    nodes, place = transport(pool, trouble=trouble), tmp_path / "run"
    run = deployed("full", 1, 1.0, to=nodes, tasks=without_data(pool), directory=place)
    assert run.records[0].faults == {"rejected": 1}
    assert words in (place / "events.jsonl").read_text()
    assert (run.module("a")[1].running_var >= 0).all()


def test_local_batch_norm_outlives_its_process_and_belongs_to_one_run(tmp_path):
    initial, clients = torch.zeros(2), np.array([3, 5])
    first = LocalBatchNorms(tmp_path)
    assert torch.equal(first.of("a", clients, initial, "run 1"), torch.zeros(2, 2))
    first.values["a", 5] = torch.tensor([1.0, 2.0])
    first.save()
    again = LocalBatchNorms(tmp_path)
    assert again.of("a", clients, initial, "run 1").tolist() == [[0, 0], [1, 2]]
    assert not again.of("a", clients, initial, "run 2").any()


def test_the_server_cannot_test_with_batch_norm_that_is_on_the_nodes():
    with refused("'a'", "local batch norm is on the nodes"):
        deployed("random", 1, tasks=normed("local").tasks)
