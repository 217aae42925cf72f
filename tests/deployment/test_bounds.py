"""What one node can do to a model at most: its key's clients, bounded numbers of examples, bounded updates."""

import json
from pathlib import Path

import numpy as np
import pytest

import mmfl

pytest.importorskip("flwr", reason="flwr is not installed")
from digits import assert_same_weights
from inside import InsideTransport, deployed, federation, service_of, trained_by, transport

from conftest import refused, toy_task
from mmfl.deployment.known_nodes import ClientNumbers, KnownNodes, NotClientsError
from mmfl.deployment.payload import Payload

CLIENTS = 12
ATTACKER = 50  # its number is the lowest, so it announces first


def known(folder: Path, allowed: dict[int, str]) -> KnownNodes:
    """What `mmfl link` writes about nodes: the key of node n is called key-n."""
    path = folder / "nodes.json"
    path.write_text(json.dumps({str(n): {"key": f"key-{n}", "clients": text} for n, text in allowed.items()}))
    return KnownNodes(path)


def events(folder: Path, kind: str) -> list[dict]:
    """The events of a kind in the run directory."""
    found = [json.loads(line) for line in (folder / "run" / "events.jsonl").read_text().splitlines()]
    return [event for event in found if event["kind"] == kind]


# --- the whole attack ---


def digits() -> mmfl.Federation:
    task = mmfl.Task("digits", mmfl.models.LogisticRegression, mmfl.data.digits(), lr=0.3, epochs=2)
    return mmfl.Federation([task], CLIENTS, partition=mmfl.partition.iid(), seed=0)


def attack(node: int, round: int, reply: bytes) -> bytes:
    """Claims all clients with 2^40 examples each, and sends updates reversed, of 90 times the norm of the weights."""
    if node != ATTACKER:
        return reply
    payload = Payload.unpack(reply)
    for row in payload.fields.get("clients", []):
        row[2] = dict.fromkeys(row[2], 2**40 - 1)
    if "clients" in payload.fields:
        payload.fields["clients"] = [[i, 1, payload.fields["clients"][0][2]] for i in range(CLIENTS)]
    for name, update in payload.vectors.items():
        payload.vectors[name] = -update * (90 * 2 / update.norm())  # the initial weights have norm 1.8
    return payload.pack()


def attacked(folder: Path, attacker: bool, method: str, known: KnownNodes | None, **options) -> mmfl.Run:
    pool = digits()
    services = {100 + i: service_of(pool, [i]) for i in range(CLIENTS - 1)}
    if attacker:
        services[ATTACKER] = service_of(pool, [CLIENTS - 1])
    to = InsideTransport(services, trouble=attack)
    everyone = {"clients": CLIENTS, "evaluate_every": 25, "seed": 1}
    return deployed(
        method, 25, 0.5, to=to, tasks=pool.tasks, directory=folder / "run", known=known, **everyone | options
    )


@pytest.mark.parametrize("method", ["forecast"])
def test_one_node_that_lies_about_everything_costs_hardly_any_accuracy(method, tmp_path):
    allowed = {ATTACKER: str(CLIENTS - 1), **{100 + i: str(i) for i in range(CLIENTS - 1)}}
    folders = [tmp_path / name for name in ("honest", "attacked")]
    for folder in folders:
        folder.mkdir()
    accuracy = [
        attacked(folder, folder.name == "attacked", method, known(folder, allowed), clip=1.0).accuracy.iloc[-1].mean()
        for folder in folders
    ]
    assert accuracy[0] > 0.87
    assert accuracy[1] > accuracy[0] - 0.03
    (refusal,) = events(folders[1], "refused")
    assert (refusal["node"], refusal["client"]) == (f"key-{ATTACKER}", "0")
    (capped,) = events(folders[1], "capped")
    assert (capped["node"], capped["client"]) == (f"key-{ATTACKER}", str(CLIENTS - 1))
    assert f"of {2**40 - 1} examples, {2 * -(-1438 // CLIENTS)} count" in capped["detail"]
    clipped = events(folders[1], "clipped")
    assert {(event["node"], event["client"]) for event in clipped} == {(f"key-{ATTACKER}", str(CLIENTS - 1))}
    assert not events(folders[0], "clipped")


def test_the_same_node_ruins_a_model_without_keys_and_bounds(tmp_path):
    run = attacked(tmp_path, True, "random", None, clip=0, max_examples=2**40)
    assert run.accuracy.iloc[-1].mean() < 0.3


# --- keys and clients ---


def test_a_node_serves_only_the_clients_of_its_key_though_it_comes_first(tmp_path):
    nodes = transport()
    nodes.services[1] = service_of(federation(), [0, 1, 3])
    allowed = {1: "1", 100: "0,3", 101: "1", 102: "2-4", 103: "any"}
    run = deployed("full", 2, 1.0, to=nodes, directory=tmp_path / "run", known=known(tmp_path, allowed))
    assert trained_by(run) == [set(range(6))] * 2
    details = {(event["node"], event.get("client"), event["detail"]) for event in events(tmp_path, "refused")}
    by_key = "its key may not serve this client, says clients.toml"
    assert details == {("key-1", "0", by_key), ("key-101", "1", "another node serves it")}
    assert {event["node"] for event in events(tmp_path, "joined")} == {f"key-{n}" for n in allowed}


def test_what_a_key_may_do_can_change_while_a_run_goes_on(tmp_path):
    allowed = {100: "0,3", 101: "1", 102: "2,4", 103: "5"}
    later = {100: "0", 102: "2,4", 103: "5"}  # node 101 was revoked

    def change(node, round, reply):
        if round == 2:
            known(tmp_path, later)
        return reply

    nodes = transport(trouble=change)
    run = deployed("full", 4, 1.0, to=nodes, directory=tmp_path / "run", known=known(tmp_path, allowed))
    assert trained_by(run)[1] == set(range(6))
    assert trained_by(run)[3] == {0, 2, 4, 5}


def test_where_the_table_of_keys_is_gone_nobody_is_let_in(tmp_path):
    with refused("0 clients are there"):
        deployed(known=KnownNodes(tmp_path / "nodes.json"), patience=0.1)


@pytest.mark.parametrize("text", ["x", "1-", "-1", "3-1", "1,1", "0-4,3", "1..2", "9999999999"])
def test_a_text_that_is_no_list_of_clients_names_its_wrong_part(text):
    with pytest.raises(NotClientsError, match=text.split(",")[-1].replace(".", "[.]")):
        ClientNumbers.parse(text)


# --- numbers of examples and norms ---


def test_clients_count_at_most_twice_the_median_of_examples_or_what_the_operator_allows():
    tasks = [toy_task("a"), toy_task("b", classes=3)]
    sizes = {0: [10, 0], 1: [12, 3], 2: [30, 0], 3: [8, 900], 4: [2**39, 4]}

    def counted(max_examples):
        from mmfl.deployment.remote_federation import ServerFederation

        server = ServerFederation(tasks, 6, lambda round: None)
        for client, numbers in sizes.items():
            server.announce(client, numbers, 1)
        return server.limit_sizes(max_examples).T.tolist()

    assert counted(None) == [[10, 12, 24, 8, 24, 0], [0, 3, 0, 8, 4, 0]]
    assert counted(11) == [[10, 11, 11, 8, 11, 0], [0, 3, 0, 11, 4, 0]]


def test_updates_are_clipped_to_the_median_of_recent_norms_and_records_count_them():
    run = deployed("full", 3, 1.0, clip=1.0)
    reports = [record.tasks["a"].to_json() for record in run.records]
    assert all(np.isfinite(report["norm_bound"]) for report in reports)
    assert [report["clipped"] for report in reports] == [3, 3, 3]  # of six


def test_a_bound_that_no_update_exceeds_changes_nothing_and_a_resumed_run_has_the_same_bound(tmp_path):
    assert_same_weights(deployed(clip=1e6).weights, deployed(clip=0).weights)
    place = tmp_path / "run"

    def stop(node, round, reply):
        if round == 2:
            (place / "stop").touch()
        return reply

    with pytest.raises(KeyboardInterrupt):
        deployed("random", 4, clip=1.0, directory=place, trouble=stop)
    (place / "stop").unlink()
    resumed = deployed("random", 4, clip=1.0, directory=place, resume=True)
    assert_same_weights(resumed.weights, deployed("random", 4, clip=1.0).weights)


def test_the_first_update_of_all_is_bounded_by_the_initial_weights():
    def far(node, round, reply):
        payload = Payload.unpack(reply)
        for name, update in payload.vectors.items():
            payload.vectors[name] = update * 50 / update.norm()
        return payload.pack()

    tasks = [toy_task("a")]
    pool = mmfl.Federation(tasks, 6)
    to = InsideTransport({100: service_of(pool, [0])}, trouble=far)
    run = deployed("full", 1, 1.0, to=to, tasks=tasks, clip=1.0)
    start = mmfl.engine.Simulation("cpu").initial(pool, 0, 0)
    assert float((run.weights[0] - start).norm()) == pytest.approx(max(1.0, float(start.norm())), rel=1e-4)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"clip": -1}, "'clip' is -1"),
        ({"clip": "median"}, "'clip' is 'median'"),
        ({"max_examples": 0}, "'max_examples' is 0"),
        ({"max_examples": 2.5}, "'max_examples' is 2.5"),
    ],
)
def test_bounds_that_make_no_sense_are_refused(options, words):
    with refused("deployment", words):
        deployed(**options)
