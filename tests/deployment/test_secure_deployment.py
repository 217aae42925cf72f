"""Deployments with secure aggregation: the plain result, from sums alone; whoever is lost; and what is refused."""

import json

import numpy as np
import pytest
import torch

import mmfl

pytest.importorskip("flwr", reason="flwr is not installed")
from inside import CLIENTS, InsideTransport, deployed, federation, service_of

from conftest import refused
from mmfl.data.dataset import ELSEWHERE
from mmfl.deployment.masks import Grid
from mmfl.deployment.payload import Payload
from mmfl.deployment.settings import DeploymentSettings
from mmfl.methods import METHODS, make_method
from mmfl.privacy import Privacy

SECURE = {"clip": 50.0, "threshold": 0.6}
ADMITTED = [name for name in METHODS if not make_method(name).needs_single_updates]
WRAPPED = [
    {"name": f"{outer} {inner}", "allocation": "random-processors", "aggregation": {"name": outer, "inner": inner}}
    for outer in ("momentum", "adam")
    for inner in ("average", "self-normalised")
]
HOLDS = {200: [0], 201: [1], 202: [2], 203: [3, 4], 204: [5]}
ALONE = {200 + client: [client] for client in range(CLIENTS)}


def nodes(trouble=lambda node, round, reply: reply, holds=HOLDS) -> InsideTransport:
    pool = federation()
    return InsideTransport({node: service_of(pool, held, capacity=2) for node, held in holds.items()}, trouble)


def secure(method, to=None, **others) -> mmfl.Run:
    told = {"rate": 1.0, "secure_aggregation": SECURE, "timeout": 0.3} | others
    return deployed(method, to=to or nodes(), **told)


def plain(method, to=None, **others) -> mmfl.Run:
    return deployed(method, to=to or nodes(), **({"rate": 1.0, "timeout": 0.3} | others))


def assert_close(one: mmfl.Run, other: mmfl.Run, atol: float = 2e-6) -> None:
    for mine, theirs in zip(one.weights, other.weights, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=atol)


@pytest.mark.parametrize("method", [*ADMITTED, *WRAPPED], ids=str)
def test_secure_aggregation_gives_the_plain_weights_and_decisions(method):
    real, same = (run(method, nodes(holds=ALONE), rounds=2, seed=4) for run in (secure, plain))
    assert not real.faults.size  # with this seed several nodes train each task in every round
    assert_close(real, same)
    assert [record.drawn for record in real.records] == [record.drawn for record in same.records]
    assert real.records[0].tasks["a"].training_loss is None  # nobody sent it
    assert same.records[0].tasks["a"].training_loss > 0


def test_what_is_lost_by_rounding_is_within_a_step_for_each_node():
    coarse = SECURE | {"bits": 16}
    real, same = secure("full", rounds=1, secure_aggregation=coarse), plain("full", rounds=1)
    step = Grid.covering(16, SECURE["clip"], len(HOLDS)).step  # the coefficients of full participation sum to 1
    apart = max(float((a - b).abs().max()) for a, b in zip(real.weights, same.weights, strict=True))
    assert step / 10 < apart <= len(HOLDS) * step * 1.001


def test_clients_clip_before_anything_leaves_them():
    pool = mmfl.Federation(federation().tasks, CLIENTS, capacity=[2, 2, 1, 2, 2, 2], lacks=federation().sizes == 0)
    same = mmfl.train(pool, "full", 3, 1.0, device="cpu", privacy=Privacy(clip=0.05))
    assert_close(secure("full", rounds=3, secure_aggregation={"clip": 0.05}), same)


def test_the_server_sees_no_update_loss_norm_or_number_of_steps_of_anyone():
    seen, to = [], nodes(lambda node, round, reply: seen.append(Payload.unpack(reply)) or reply)
    secure("random", to)
    assert {name for reply in seen for name in reply.vectors} == {"masked.a", "masked.b"}
    assert {name for reply in seen for name in reply.fields} - {"announced", "versions"} == {
        "clients",
        "tested",
        "secure",
    }
    masked = [table for reply in seen for table in reply.fields.get("secure", {}).get("masked", {}).values()]
    assert {frozenset(table) for table in masked} == {frozenset({"clients", "shares", "commitment"})}


def test_a_round_takes_two_messages_for_each_node_and_keys_one_more_once():
    to = nodes()
    secure("full", to, rounds=3)
    asked = [(node, round) for node, round, sent in to.sent if "announce" not in Payload.unpack(sent).fields]
    for node in HOLDS:
        assert [asked.count((node, t)) for t in (1, 2, 3)] == [3, 2, 2]


def test_a_node_that_sends_sums_only_refuses_every_other_deployment():
    to = nodes()
    for service in to.services.values():
        service.sums_only = True
    assert plain("full", to, rounds=1).records[0].faults == {"failed": len(HOLDS)}
    assert not secure("full", to, rounds=1).faults.size


NOISE = {"clip": 50.0, "noise": 1e-9}


@pytest.mark.parametrize("run", [plain, secure])
def test_the_server_adds_noise_to_sums_of_its_own_and_counts_what_it_costs(run):
    quiet, same = (run("random", rounds=2, central_noise=noise) for noise in (NOISE, None))
    assert_close(quiet, same)
    loud, again = (run("random", rounds=2, central_noise=NOISE | {"noise": 5.0}) for _ in range(2))
    apart = float((loud.weights[0] - again.weights[0]).abs().max())
    assert apart > 1  # it comes from the operating system
    assert loud.records[0].extras["epsilon"] < loud.records[1].extras["epsilon"] < 5


# --- nodes that are lost ---


def lose(when: dict[int, str], round_of_loss: int = 2):
    """Drops the replies of nodes from a stage of a round on: what they send is `masked`, `seeds` or `shares`."""
    gone = set()

    def trouble(node, round, reply):
        fields = Payload.unpack(reply).fields
        stage = when.get(node)
        if round == round_of_loss and (stage in fields.get("secure", {}) or stage in fields):
            gone.add(node)
        return None if node in gone and round == round_of_loss else reply

    return trouble


@pytest.mark.parametrize("method", ["full", "mfa-rand", WRAPPED[0]], ids=str)
def test_a_node_lost_before_it_sent_is_missing_as_in_a_plain_round(method):
    real = secure(method, nodes(lose({201: "masked"}), ALONE), rounds=2, seed=4)
    same = plain(method, nodes(lose({201: "trained"}), ALONE), rounds=2, seed=4)
    assert real.records[1].faults == same.records[1].faults == {"late": 1}
    assert_close(real, same)


def test_a_node_lost_after_it_sent_is_in_the_sum():
    real = secure("full", nodes(lose({203: "shares"})), rounds=2)
    assert real.records[1].faults == {"late": 1}
    assert_close(real, plain("full", rounds=2))


def test_nodes_lost_at_every_stage_are_survived_and_a_late_vector_stays_masked():
    real = secure("full", nodes(lose({200: "masked", 201: "seeds"}), ALONE), rounds=2)
    same = plain("full", nodes(lose({200: "trained", 201: "trained"}), ALONE), rounds=2)
    assert real.records[1].faults == {"late": 2}
    assert_close(real, same)


@pytest.mark.parametrize("stage", ["masked", "seeds", "shares"])
def test_with_too_few_nodes_left_nothing_is_unmasked_and_tasks_keep_their_weights(stage, tmp_path):
    when = {200: "masked", 201: "masked"} if stage == "masked" else {200: "masked", 201: stage}
    real = secure(
        "full", nodes(lose(when)), rounds=2, directory=tmp_path / "run", secure_aggregation=SECURE | {"threshold": 0.8}
    )
    assert real.records[1].faults == {"late": 2, "unsummed": 2}
    assert_close(real, secure("full", rounds=1))
    with pytest.raises(AssertionError):
        assert_close(real, secure("full", rounds=2))
    events = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    details = {event["detail"].partition(":")[0] for event in events if event["kind"] == "unsummed"}
    assert details == {"task 'a' keeps its weights", "task 'b' keeps its weights"}


def test_a_task_that_a_single_node_would_train_keeps_its_weights():
    real = secure("random", rounds=6, rate=0.12)
    drawn = [[len(record.drawn_clients(task)) for task in "ab"] for record in real.records]
    alone = sum(count == 1 for each in drawn for count in each)
    assert alone > 0
    assert sum(record.faults.get("unsummed", 0) for record in real.records) == alone
    assert all(record.tasks[task].active != 1 for record in real.records for task in "ab")
    many = secure("full", rounds=1, secure_aggregation=SECURE | {"least": 6})
    assert many.records[0].faults == {"unsummed": 2}


def test_a_node_that_was_restarted_has_a_new_key_and_takes_part_in_the_next_round():
    def restart(node, round, reply):
        if node == 201 and round == 2:
            to.services[node] = service_of(federation(), HOLDS[node], 2)
        return reply

    to = nodes(restart)
    real = secure("full", to, rounds=4)
    assert [record.tasks["a"].active for record in real.records] == [6, 6, 5, 6]


def test_an_update_that_is_not_finite_is_left_out_of_the_sum_by_its_node():
    pool = federation()
    to = nodes()
    broken = to.services[201].federation
    broken.tasks[0].data.x[:] = float("nan")
    real = secure("mfa-rand", to, rounds=2)
    lost = [(record.tasks["a"].rejected, record.faults.get("rejected", 0)) for record in real.records]
    assert sum(faults for _, faults in lost) > 0
    assert all(torch.isfinite(weights).all() for weights in real.weights)
    assert len(pool.tasks) == 2


@pytest.mark.parametrize(
    "spoil",
    [
        lambda secure: secure["masked"].pop("a"),
        lambda secure: secure["masked"]["a"].pop("shares"),
        lambda secure: secure["masked"]["a"]["clients"].append(0),
        lambda secure: secure["masked"]["a"]["clients"].append("x"),
        lambda secure: secure.update(masked=3),
        lambda secure: secure["masked"]["a"].update(commitment="wrong"),
    ],
)
def test_a_node_whose_masked_sum_cannot_be_right_is_left_out_or_nothing_is_opened(spoil):
    def trouble(node, round, reply):
        payload = Payload.unpack(reply)
        if node == 202 and "masked" in payload.fields.get("secure", {}):
            spoil(payload.fields["secure"])
        return payload.pack()

    real = secure("full", nodes(trouble), rounds=1)
    assert set(real.records[0].faults) <= {"rejected", "garbage", "unsummed"}
    assert sum(real.records[0].faults.values()) >= 1
    assert real.records[0].tasks["a"].active in (0, 5)


def test_a_run_resumed_goes_on_to_the_same_weights(tmp_path):
    place = tmp_path / "run"

    def stop(node, round, reply):
        if round == 2:
            (place / "stop").touch()
        return reply

    with pytest.raises(KeyboardInterrupt):
        secure("mmfl-lvr", nodes(stop), directory=place)
    (place / "stop").unlink()
    assert_close(secure("mmfl-lvr", directory=place, resume=True), plain("mmfl-lvr"))


# --- what is refused ---


def told(**values) -> DeploymentSettings:
    return DeploymentSettings.of({"clients": 4, "rounds": 1} | values)


@pytest.mark.parametrize("method", [name for name in METHODS if name not in ADMITTED])
def test_methods_that_need_single_updates_are_refused_with_the_reason(method):
    with refused("secure aggregation", method, "single", "random, "):
        told(method=method, secure_aggregation=SECURE)


@pytest.mark.parametrize(
    "rule", ["median", "krum", "trimmed-mean", "geometric-median", "norm-clipping", "mifa", "forecast"]
)
def test_aggregations_that_need_single_updates_are_refused(rule):
    with refused("secure aggregation", "aggregation", "single updates"):
        told(method={"name": "own", "allocation": "full", "aggregation": rule}, secure_aggregation=SECURE)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"threshold": 0.7}, ("secure_aggregation.clip", "is missing")),
        ({"clip": 0}, ("secure_aggregation.clip", "greater than 0")),
        ({"clip": float("inf")}, ("secure_aggregation.clip", "finite")),
        ({"clip": 1, "threshold": 0.5}, ("secure_aggregation.threshold", "greater than 0.5")),
        ({"clip": 1, "least": 1}, ("secure_aggregation.least", "greater than or equal to 2")),
        ({"clip": 1, "bits": 8}, ("secure_aggregation.bits", "16 or 32")),
        ({"clip": 1, "treshold": 0.7}, ("secure_aggregation.treshold", "threshold")),
        (3, ("secure_aggregation",)),
    ],
)
def test_wrong_settings_are_refused(values, words):
    with refused("deployment", *words):
        told(method="random", secure_aggregation=values)


def test_a_bound_on_single_norms_is_refused():
    with refused("norm is a bound on single updates", "secure_aggregation.clip"):
        told(method="random", secure_aggregation=SECURE, norm=10)


def test_noise_that_does_not_fit_is_refused():
    with refused("central_noise.clip is 1", "expected 50"):
        told(method="random", secure_aggregation=SECURE, central_noise={"clip": 1, "noise": 1})
    with refused("bits is 16", "expected 32"):
        told(method="random", secure_aggregation=SECURE | {"bits": 16}, central_noise=NOISE)
    with refused("central noise", "mifa", "single"):
        told(method="mifa", central_noise=NOISE)
    with refused("deployment: central noise", "noise"):
        told(method="random", central_noise={"clip": 1.0, "noise": 0.0})
    with refused("central_noise.noise", "missing"):
        told(method="random", central_noise={"clip": 1.0})


def test_shared_batch_norm_is_refused():
    def network() -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2))

    tasks = [mmfl.Task("a", network, ELSEWHERE)]
    with refused("task 'a'", "shared batch norm", "local"):
        deployed("random", tasks=tasks, secure_aggregation=SECURE)


class Peeks(mmfl.AggregationRule):
    """Says that it needs sums alone, and reads norms."""

    sums_updates = True

    def coefficients(self, updates, view):
        return np.ones(len(updates))

    def aggregate(self, weights, updates, view, state):
        return weights - updates.combine(1 / np.maximum(updates.norms(), 1)), state


class Alters(Peeks):
    """Says other coefficients than it takes."""

    def aggregate(self, weights, updates, view, state):
        return weights - updates.combine(np.arange(len(updates)) + 1.0), state


@pytest.mark.parametrize(("rule", "words"), [("Peeks", "reads their norms"), ("Alters", "had not said before")])
def test_a_rule_that_reads_more_than_it_said_is_stopped(rule, words):
    method = {"name": "own", "allocation": "full", "aggregation": f"test_secure_deployment.{rule}"}
    with refused(words, "sums_updates"):
        secure(method, rounds=1)
