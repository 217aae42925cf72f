"""Asynchronous training: its limits, its determinism, and what it refuses."""

from functools import partial

import numpy as np
import pytest
import torch

import mmfl
from conftest import refused, toy_task
from mmfl.engine import Simulation
from mmfl.methods import make_method
from mmfl.training import Replica
from mmfl.training.asynchronous import asynchronous_rounds

POOL = {"clients": 12, "partition": mmfl.partition.dirichlet(1.0)}


def pool(devices=None, *, tasks=2, clients=12, batch_size=None, **options) -> mmfl.Federation:
    """Toy tasks over clients with devices; by default batches are all of a client's examples."""
    made = [toy_task(f"task{s}", lr=0.3, epochs=2, batch_size=batch_size) for s in range(tasks)]
    return mmfl.Federation(
        made,
        clients,
        partition=mmfl.partition.dirichlet(1.0),
        devices=devices or mmfl.devices.three_speeds(),
        **options,
    )


def method(aggregation="unbiased", *, allocation="random-processors", name="here", **pace):
    return {
        "name": name,
        "allocation": allocation,
        "aggregation": aggregation,
        "pace": {"name": "buffered", "buffer": 3, **pace},
    }


def weights_of(run: mmfl.Run) -> torch.Tensor:
    return torch.cat([w.cpu() for w in run.weights])


class Repeats(mmfl.allocation.AllocationRule):
    """Draws those who trained in a recorded run."""

    def __init__(self, records):
        self.records = records

    def allocate(self, view, state):
        count = np.zeros(view.sizes.shape, dtype=np.int64)
        for s, drawn in enumerate(self.records[view.round - 1].drawn.values()):
            count[drawn.clients, s] = drawn.counts
        return mmfl.allocation.Allocation.of(count, np.where(view.able, 0.3, 0.0)), state


@pytest.mark.parametrize("aggregation", ["average", {"name": "fedbuff", "staleness": 0.5}])
def test_equal_durations_and_a_buffer_of_all_requests_are_synchronous_training_bit_for_bit(aggregation):
    equal = pool(mmfl.devices.uniform(10.0, 10.0), tasks=1)
    run = mmfl.train(equal, method(aggregation, concurrency=4, buffer=4), rounds=6, rate=4 / 12)
    assert [record.time.end for record in run.records] == [10.0 * t for t in range(1, 7)]
    assert {record.tasks["task0"].extras["staleness_max"] for record in run.records} == {0.0}
    again = mmfl.Method("again", Repeats(run.records), make_method(method(aggregation)).aggregation)
    synchronous = mmfl.train(pool(tasks=1), again, rounds=6, rate=4 / 12)
    assert torch.equal(weights_of(run), weights_of(synchronous))


def test_one_request_at_a_time_is_sequential_training():
    federation = pool(tasks=1)
    run = mmfl.train(federation, method({"name": "fedbuff"}, concurrency=1, buffer=1), rounds=8, rate=1 / 12)
    assert all(record.tasks["task0"].extras["staleness_max"] == 0 for record in run.records)
    engine = Simulation()
    weights = engine.initial(federation, 0, 0)
    for serial, record in enumerate(run.records, 1):
        client = np.array(record.drawn["task0"].clients)
        training = mmfl.engine.Training(
            federation, 0, weights, client, serial, 0, mmfl.local.PlainSGD(), serial=np.array([serial])
        )
        weights = weights - engine.train([training])[0].flat[0]
    torch.testing.assert_close(run.weights[0], weights, rtol=1e-5, atol=1e-6)


def test_fedasync_moves_the_weights_towards_those_of_the_client():
    federation = pool(tasks=1)
    aggregation = {"name": "fedasync", "alpha": 1.0, "staleness": 0}
    run = mmfl.train(federation, method(aggregation, concurrency=3, buffer=1), rounds=5, rate=1 / 12)
    late = [record.tasks["task0"].extras["staleness_max"] for record in run.records]
    assert max(late) > 0
    start, engine = {0: Simulation().initial(federation, 0, 0)}, Simulation()
    trained = None
    for t, (record, k) in enumerate(zip(run.records, late, strict=True), 1):
        client = np.array(record.drawn["task0"].clients)
        began = start[t - 1 - int(k)]
        training = mmfl.engine.Training(federation, 0, began, client, 1, 0, mmfl.local.PlainSGD())
        start[t] = trained = began - engine.train([training])[0].flat[0]  # with alpha = 1: the client's own weights
    torch.testing.assert_close(run.weights[0], trained, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("aggregation", ["unbiased", "fedvarp", "fedasync"])
def test_training_requests_one_by_one_gives_the_same_weights(aggregation):
    made = make_method(method(aggregation, buffer=1 if aggregation == "fedasync" else 3))
    found = []
    for most in (1, 4, None):
        engine = Simulation(mode="sequential")
        replica = Replica.start(pool(batch_size=4), made, 0, 0.4, engine)
        list(asynchronous_rounds([replica], engine, 6, most_together=most))
        found.append(torch.cat(replica.state.weights))
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(found[0], found[2], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "given",
    [
        method("unbiased"),
        method("fedvarp", memory="sent"),
        method("fedasync", buffer=1),
        method({"name": "adam", "inner": "mifa"}, busy="wait"),
        method("forecast", allocation="expected-residual-variance"),
        method("stalevre"),
    ],
    ids=["unbiased", "fedvarp", "fedasync", "adam-mifa", "forecast", "stalevre"],
)
def test_a_run_that_goes_on_gives_the_same_bits(given, tmp_path):
    run = partial(mmfl.train, pool(batch_size=4, capacity=[1, 2]), given, rate=0.4, engine="sequential")
    whole = run(rounds=9)
    run(rounds=4, directory=tmp_path / "run", checkpoint_every=1)
    rest = run(rounds=9, directory=tmp_path / "run", resume=True)
    assert torch.equal(weights_of(whole), weights_of(rest))
    assert [r.time for r in whole.records] == [r.time for r in rest.records]
    assert [r.drawn for r in whole.records] == [r.drawn for r in rest.records]


def test_replicas_with_and_without_rounds_run_in_lockstep_as_they_do_alone():
    methods = [method(name="a"), "random", method("fedvarp", name="b")]
    together = mmfl.compare(pool(batch_size=4), methods, rounds=5, rate=0.4, seeds=2)
    assert [(run.method, run.seed) for run in together.runs][:3] == [("a", 0), ("a", 1), ("random", 0)]
    for run in together.runs:
        given = next(each for each in methods if make_method(each).name == run.method)
        alone = mmfl.train(pool(batch_size=4), given, rounds=5, rate=0.4, seed=run.seed)
        torch.testing.assert_close(weights_of(run), weights_of(alone), rtol=1e-4, atol=1e-5)
        assert [r.drawn for r in run.records] == [r.drawn for r in alone.records]


def test_a_round_has_as_many_trainings_as_a_synchronous_one():
    run = mmfl.train(pool(capacity=2), method(), rounds=4, rate=0.25)
    assert [record.cost.trainings for record in run.records] == [6] * 4


def test_learning_rates_follow_the_version_from_which_a_client_trains():
    seen = []

    def rate(round: int) -> float:
        seen.append(round)
        return 0.1

    task = toy_task("task0", lr=rate)
    federation = mmfl.Federation([task], 12, partition=mmfl.partition.iid(), devices=mmfl.devices.three_speeds())
    seen.clear()
    run = mmfl.train(federation, method(buffer=4, concurrency=4), rounds=5, rate=4 / 12)
    versions = run.records[-1].tasks["task0"].extras["version"]
    assert max(seen) <= versions + 1


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"method": "mmfl-lvr", "pace": "buffered"}, ["LossVariance", "losses"]),
        ({"method": "mmfl-gvr", "pace": "buffered"}, ["UpdateVariance", "norms"]),
        (method("stalevr"), ["StaleVR", "needs their updates"]),
        ({"method": "stalevr-opt", "pace": "buffered"}, ["residuals"]),
        ({"method": "full", "pace": "buffered"}, ["full participation", "random-processors"]),
        ({"method": "scaffold", "pace": "buffered"}, ["Scaffold", "remembers"]),
        (method("fedasync"), ["buffer is 3", "expected 1"]),
        (method("unbiased", memory="sent"), ["memory", "current"]),
        (method(buffer=0), ["buffer is 0"]),
        (method(concurrency=0), ["concurrency is 0"]),
        (method(busy="queue"), ["busy", "'queue'"]),
        (method(size=3), ["unknown option 'size'"]),
        (method({"name": "fedbuff", "staleness": -1}), ["staleness is -1"]),
        (method({"name": "fedbuff", "staleness": [10]}), ["staleness", "hinge"]),
        (method({"name": "fedasync", "alpha": 0}), ["alpha is 0"]),
        (method({"name": "staleness-weighted", "inner": "fedvarp"}), ["FedVARP", "unbiased"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_does_not_go_together_is_refused(given, words):
    with refused(*words):
        mmfl.train(pool(), given, rounds=2, rate=0.3)


def test_a_pace_without_devices_is_refused():
    federation = mmfl.Federation([toy_task()], 12, partition=mmfl.partition.iid())
    with refused("buffered", "needs devices"):
        mmfl.train(federation, method(), rounds=2)


def fedast(**pace):
    aggregation = {"name": "fedbuff", "staleness": 0}
    given = {"name": "fedast", "requests": 4, "active": None, "buffer": 2, **pace}
    return {"name": "fedast", "allocation": "random-processors", "aggregation": aggregation, "pace": given}


def test_a_task_that_reaches_its_target_ends_and_leaves_its_slots_to_the_others():
    run = mmfl.train(pool(), fedast(targets={"task0": 0.4}), rounds=12, rate=0.5)
    last = run.records[-1]
    assert list(last.time.extras) == ["ended_task0", "slots_task0", "slots_task1"]
    assert (last.time.extras["slots_task0"], last.time.extras["slots_task1"]) == (0, 8)
    ended = next(record for record in run.records if "ended_task0" in record.time.extras)
    assert ended.round < 12
    versions = [record.tasks["task0"].extras["version"] for record in run.records[ended.round - 1 :]]
    assert len(set(versions)) == 1
    assert versions[0] % 4 == 0
    assert list(last.drawn) == ["task1"]
    assert 0 < ended.time.dropped["cancelled"] <= 5
    both = mmfl.train(pool(), fedast(targets={"task0": 0.3, "task1": 0.3}), rounds=30, rate=0.5)
    assert len(both.records) == 30
    assert both.records[-1].cost.trainings == 0
    assert both.records[-1].time.seconds == 0


def test_requests_are_reallocated_and_a_run_with_reallocation_goes_on_with_the_same_bits(tmp_path):
    run = partial(mmfl.train, pool(clients=40), fedast(requests=[60, 40], root=True), rate=0.5, engine="sequential")
    whole = run(rounds=14)
    slots = [tuple(record.time.extras.values()) for record in whole.records]
    assert (slots[0], {sum(each) for each in slots}) == ((60, 40), {100})
    assert slots[-1] != (60, 40)
    run(rounds=5, directory=tmp_path / "run", checkpoint_every=1)
    rest = run(rounds=14, directory=tmp_path / "run", resume=True)
    assert torch.equal(weights_of(whole), weights_of(rest))
    assert [r.drawn for r in whole.records] == [r.drawn for r in rest.records]


def test_clients_out_of_reach_lose_requests_and_the_run_goes_on(tmp_path):
    devices = mmfl.devices.three_speeds(0.24, sessions=(30, 30))
    run = partial(mmfl.train, pool(devices, batch_size=4), method(), rate=0.4, engine="sequential")
    whole = run(rounds=8)
    assert sum(record.time.dropped.get("lost", 0) for record in whole.records) > 0
    run(rounds=3, directory=tmp_path / "run", checkpoint_every=1)
    assert torch.equal(weights_of(whole), weights_of(run(rounds=8, directory=tmp_path / "run", resume=True)))


def test_sessions_that_end_for_good_end_the_run_with_one_line():
    sessions = {"client": [0, 1], "begin": [0.0, 0.0], "end": [50.0, 60.0]}
    devices = mmfl.devices.from_arrays(seconds=8.0, sessions=sessions)
    with refused("no client can be asked to train any more"):
        mmfl.train(pool(devices), method(buffer=1), rounds=20, rate=0.4)


@pytest.mark.parametrize(
    ("pace", "words"),
    [
        ({"requests": 0}, ["requests is 0"]),
        ({"requests": [4, 4, 4]}, ["requests", "2 tasks"]),
        ({"buffer": "static"}, ["buffer 'static'", "dynamic"]),
        ({"active": 0}, ["active is 0"]),
        ({"root": "yes"}, ["root", "True or False"]),
        ({"targets": {"task9": 0.5}}, ["task9", "did you mean"]),
        ({"targets": {"task0": "good"}}, ["target of task 'task0'"]),
        ({"check_every": 0}, ["check_every is 0"]),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_settings_of_fedast_that_make_no_sense_are_refused(pace, words):
    with refused(*words):
        mmfl.train(pool(), fedast(**pace), rounds=1)
