"""A deployment within one process whose nodes are silent or late, join, leave and fail."""

import numpy as np
import pytest
import torch

import mmfl

pytest.importorskip("flwr", reason="flwr is not installed")
from inside import CLIENTS, InsideTransport, deployed, federation, service_of, trained_by, transport

from mmfl.deployment.exchange import Reply


def test_weights_of_those_who_answered_are_what_the_draw_says():
    """Who is asked and fails is missing from the sum, and nobody else's weight changes."""
    real = deployed(
        "full", 1, 1.0, trouble=lambda node, _, reply: b"" if node == 101 and b"trained" in reply else reply
    )
    whole, engine = federation(), mmfl.engine.Simulation("cpu")
    for s in range(2):
        start = engine.initial(whole, s, 0)
        clients = np.flatnonzero(whole.sizes[:, s])
        training = mmfl.engine.Training(whole, s, start, clients, 1, 0, mmfl.local.PlainSGD())
        (trained,) = engine.train([training])
        share = whole.sizes[:, s] / whole.sizes[:, s].sum()
        share[1] = 0
        expected = start - torch.from_numpy(share[trained.client]).float() @ trained.flat
        torch.testing.assert_close(real.weights[s], expected, rtol=1e-4, atol=1e-5)


def test_a_silent_node_is_absent_until_it_answers():
    def silent(node, round, reply):
        return None if node == 100 and round == 2 else reply

    real = deployed("mmfl-lvr", 4, 1.0, trouble=silent, timeout=0.2)
    assert real.records[1].faults == {"late": 1}
    first, *later = trained_by(real)
    assert {0, 3} <= first
    assert not {0, 3} & set.union(*later)


@pytest.mark.parametrize("error", ["", "code 5"])
def test_a_node_whose_answer_comes_late_or_never_is_there_again_afterwards(error):
    """A late answer is not used; where the message came back, the node must say again who it is."""
    nodes, late = transport(), {}
    receive = nodes.receive

    def hold(node, round, reply):
        if node == 100 and round == 2 and not late:
            late["reply"] = reply
            return None
        return reply

    def receive_late(messages):
        held = [name for name in messages if nodes.waiting.get(name, b"") is None]
        replies = receive(messages)
        if nodes.sent[-1][1] == 3 and held:
            nodes.waiting.pop(held[0])
            replies.append(Reply(held[0], None if error else late["reply"], error))
        return replies

    nodes.trouble, nodes.receive = hold, receive_late
    real = deployed("random", 6, 1.0, to=nodes, timeout=0.2)
    assert real.records[1].faults == {"late": 1}
    assert sum(record.faults.get("lost", 0) for record in real.records) == bool(error)
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
