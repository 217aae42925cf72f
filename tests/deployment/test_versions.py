"""Nodes and servers of different versions: what is accepted, what is refused, and that both ends say so."""

import logging

import pytest

pytest.importorskip("flwr", reason="flwr is not installed")
from digits import events
from inside import CLIENTS, NODES, deployed, federation, service_of, trained_by

from mmfl.deployment import versions
from mmfl.deployment.payload import Payload
from mmfl.deployment.versions import Versions
from mmfl.runs.directory import RunDirectory


@pytest.fixture
def place(tmp_path):
    RunDirectory.create(tmp_path / "run", {"source": "deployment"})
    return tmp_path / "run"


def run_with(place, told):
    """A run of two rounds, in which node 100 tells other versions than it has."""

    def trouble(node, round, reply):
        payload = Payload.unpack(reply)
        if node == 100 and "clients" in payload.fields:
            payload.fields["versions"] = told(payload.fields["versions"])
        return payload.pack()

    return deployed("full", 2, trouble=trouble, directory=place), events(place)


def drawn(run) -> set[int]:
    return set().union(*trained_by(run))


def test_a_node_of_an_older_protocol_is_refused_once_and_the_others_train(place):
    run, told = run_with(place, lambda here: here | {"protocol": 0, "oldest": 0, "mmfl": "0.0.9"})
    assert drawn(run) == set(range(CLIENTS)) - set(NODES[100])
    (refused,) = [event for event in told if event["kind"] == "refused"]
    assert refused["detail"].startswith("node: mmfl 0.0.9, protocol 0; server: mmfl ")
    assert refused["detail"].endswith("upgrade the node")


def test_a_node_that_no_longer_understands_the_server_is_refused(place):
    run, told = run_with(place, lambda here: here | {"protocol": 9, "oldest": 8, "mmfl": "9.0.0"})
    assert not drawn(run) & set(NODES[100])
    assert any(event.get("detail", "").endswith("upgrade the server, or downgrade the node") for event in told)


def test_other_releases_of_the_same_protocol_are_accepted_and_said(place):
    run, told = run_with(place, lambda here: here | {"protocol": 5, "oldest": 1, "mmfl": "0.2.0", "torch": "9.9"})
    assert drawn(run) == set(range(CLIENTS))
    (version,) = [event for event in told if event["kind"] == "version"]
    assert version["detail"].startswith("the node has mmfl 0.2.0, the server ")
    assert "version" not in run.faults


@pytest.mark.parametrize("told", [None, 3, [], {}, {"protocol": "x", "mmfl": 5}, {"protocol": 1.5}])
def test_a_node_that_tells_no_versions_is_of_the_first_protocol(place, told):
    assert drawn(run_with(place, lambda here: told)[0]) == set(range(CLIENTS))


def test_what_a_node_tells_is_cut_short():
    assert len(Versions.read({"mmfl": "9" * 1000}).mmfl) == 40


def test_the_node_says_it_too_once(caplog):
    service = service_of(federation(), [1])
    server = Versions.here().to_json() | {"protocol": 3, "oldest": 2, "mmfl": "0.3.0"}
    with caplog.at_level(logging.ERROR):
        for _ in range(2):
            service.answer(Payload({"announce": True, "versions": server}).pack())
    (told,) = caplog.messages
    assert "server: mmfl 0.3.0, protocol 3; upgrade the node" in told


def test_builds_of_one_release_are_no_difference():
    here = Versions.here()
    release = here.torch.partition("+")[0]
    assert Versions(1, 1, here.mmfl, f"{release}+cu999").differences(here) == ""
    assert versions.OLDEST_PROTOCOL <= versions.PROTOCOL
