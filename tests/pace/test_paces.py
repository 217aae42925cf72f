"""Paces against closed forms, against each other, and against chance."""

import json
import logging
from itertools import pairwise

import numpy as np
import pytest
import torch

import mmfl
from conftest import refused, toy_task
from mmfl.aggregation import inverse_probability
from mmfl.allocation.sampling import independent
from mmfl.federation.durations import LogNormal, ShiftedExponential
from mmfl.pace import Barrier, Deadline, First, Requests
from mmfl.pace.deadline import Intervals
from mmfl.pace.first import chance_among_first
from mmfl.record import RoundRecord
from mmfl.report import tables
from mmfl.report.figures import figures
from mmfl.runs.config import read
from mmfl.updates import Updates

INF = np.inf
EXPONENTIAL = mmfl.devices.shifted_exponential(20.0, 10.0)


def federation(clients=10, devices=EXPONENTIAL, tasks=1, **options):
    return mmfl.Federation([toy_task(f"toy-{s}", epochs=2) for s in range(tasks)], clients, devices=devices, **options)


def train(method="random", pace=None, of=None, rounds=4, rate=0.5, **options):
    return mmfl.train(of or federation(), method, rounds, rate, pace=pace, **{"engine": "vectorised", **options})


def same_bits(one, other) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.weights, other.weights, strict=True))


def requests_of(law, ordinal, seed=0):
    """A request of every client of a law [clients, 1]."""
    client, task = np.arange(len(law.mean())), np.zeros(len(law.mean()), dtype=np.int64)
    seconds = law.sample(client, task, ordinal, seed)
    return Requests(client, task, np.zeros(len(client)), seconds, np.full(len(client), INF))


def view_of(sizes, law, deadline=INF, least=0.01):
    """The view of a round with these examples [clients, 1], as the pace gives it."""
    tables = np.asarray(sizes, dtype=np.int64)[:, None]
    share = tables / tables.sum(0)
    view = mmfl.RoundView(1, 0, tables, share, np.ones(len(sizes), dtype=np.int64), 1.0)
    timed = view.timed(0.0, law.mean(), np.ones_like(law.mean()))
    return Deadline(seconds=deadline, least=least).begin(timed, law, np.full(len(sizes), INF), None)


# --- closed forms (exponential durations a + Exp(mu), equal clients) ---


def endings(pace, law, rounds):
    view = view_of([1] * len(law.mean()), law)
    requests = [requests_of(law, t) for t in range(rounds)]
    return [(each, pace.end(each, view, law, None)) for each in requests]


def near(values, expected):
    """Whether a mean is what it should be, within four standard errors."""
    values = np.asarray(values)
    return abs(values.mean() - expected) < 4 * values.std() / len(values) ** 0.5


def test_a_barrier_lasts_as_long_as_the_slowest_and_wastes_what_the_others_wait():
    n, a, mu = 12, 10.0, 20.0
    law = ShiftedExponential(np.full((n, 1), a + mu), np.float64(a / (a + mu)))
    harmonic = (1 / np.arange(1, n + 1)).sum()
    found = endings(Barrier(), law, 4000)
    assert near([ending.seconds for _, ending in found], a + mu * harmonic)
    busy, offered = (sum(x) for x in zip(*((e.busy(r).sum(), n * e.seconds) for r, e in found), strict=True))
    assert busy / offered == pytest.approx((a + mu) / (a + mu * harmonic), rel=0.01)


def test_the_first_k_of_n_arrive_when_order_statistics_say():
    n, k, a, mu = 12, 5, 10.0, 20.0
    law = ShiftedExponential(np.full((n, 1), a + mu), np.float64(a / (a + mu)))
    left = (1 / np.arange(1, n + 1)).sum() - (1 / np.arange(1, n - k + 1)).sum()
    found = endings(First(k=k), law, 4000)
    assert near([ending.seconds for _, ending in found], a + mu * left)
    assert all(ending.used.sum() == k for _, ending in found)
    np.testing.assert_allclose(found[0][1].completion[found[0][1].used], k / n, rtol=1e-9)


def test_a_deadline_uses_devices_and_wastes_their_work_as_the_law_says():
    law, deadline, mu = ShiftedExponential(np.full((30, 1), 20.0), np.float64(0)), 25.0, 20.0
    found = endings(Deadline(seconds=deadline), law, 2000)
    until = mu * (1 - np.exp(-deadline / mu))
    busy = np.array([ending.busy(requests).sum() for requests, ending in found])
    late = np.array([ending.busy(requests)[ending.cause == "deadline"].sum() for requests, ending in found])
    assert near(busy / (30 * deadline), until / deadline)
    assert late.sum() / busy.sum() == pytest.approx(deadline * np.exp(-deadline / mu) / until, rel=0.02)


# --- limits ---


@pytest.mark.parametrize("engine", ["vectorised", "sequential"])
@pytest.mark.parametrize("method", ["random", "mmfl-lvr", "forecast", "scaffold"])
def test_without_a_deadline_and_with_all_of_n_the_weights_are_those_of_untimed_rounds(method, engine):
    options = {"method": method, "engine": engine, "rounds": 3}
    untimed = train(of=federation(devices=None, tasks=2), **options)
    for pace in (None, "barrier", {"name": "deadline", "seconds": INF}, {"name": "first", "k": 10}):
        timed = train(of=federation(tasks=2), pace=pace, **options)
        assert same_bits(untimed, timed)
        assert timed.records[-1].time.end > 0
    assert untimed.records[-1].time is None


def test_rules_that_need_everyone_wait_for_everyone_at_a_barrier():
    of = federation(tasks=2)
    untimed = train("mmfl-stalevr", of=federation(devices=None, tasks=2))
    timed = train("mmfl-stalevr", "barrier", of)
    assert same_bits(untimed, timed)
    drawn = train("random", "barrier", of)
    assert timed.records[0].time.seconds > drawn.records[0].time.seconds
    clients, tasks = np.indices((10, 2)).reshape(2, -1)
    slowest = np.zeros(10)
    np.add.at(slowest, clients, of.durations().sample(clients, tasks, 1, 0))  # capacity 1: one after another
    assert timed.records[0].time.offered > 20 * slowest.max() - 1


# --- unbiasedness ---


@pytest.mark.parametrize("corrected", [True, False])
def test_weights_under_a_deadline_average_to_the_full_step_with_the_stated_variance(corrected):
    law = LogNormal(np.array([[5.0], [10.0], [20.0], [40.0]]), 0.6)
    view = view_of([1, 2, 3, 4], law, deadline=20.0)
    share, q, p = view.share[:, 0], law.completion(20.0)[:, 0], np.array([0.3, 0.5, 0.6, 0.9])
    declared = Deadline(seconds=20.0, completion="exact" if corrected else 1.0)
    view = declared.begin(view, law, np.full(4, INF), None)
    total = []
    for t in range(6000):
        drawn = independent(p[:, None], view.at(t, 7, 1.0))[:, 0] > 0
        requests = requests_of(law, t, seed=7)
        ending = declared.end(requests, view, law, None)
        rows = np.flatnonzero(drawn & ending.used)
        columns = rows, np.ones(len(rows), dtype=np.int64), p[rows], torch.eye(4)[rows]
        nothing = np.zeros(len(rows))
        updates = Updates(0, *columns, nothing, nothing.astype(int), completion=ending.completion[rows])
        weights = np.zeros(4)
        weights[rows] = inverse_probability(updates, view)
        total.append(weights)
    for i, weights in enumerate(np.array(total).T):
        assert near(weights, share[i] if corrected else q[i] * share[i])
        if corrected:
            assert weights.var() == pytest.approx(share[i] ** 2 * (1 / (p[i] * q[i]) - 1), rel=0.1)


def test_the_chance_to_be_among_the_first_agrees_with_simulation_and_sums_to_k():
    law = LogNormal(np.array([[1.0], [2.0], [3.0], [5.0], [1.0]]), 0.5)
    chance = chance_among_first(law, np.full(5, INF), 2)
    times = np.stack([law.sample(i, 0, np.arange(40_000), 0) for i in range(5)])
    found = (times.argsort(0).argsort(0) < 2).mean(1)
    np.testing.assert_allclose(chance, found, atol=4 * 0.5 / 200)
    assert chance.sum() == pytest.approx(2, abs=1e-3)
    reachable = np.array([0.8, 9.0, 2.0, 9.0, 9.0])
    within = np.where(times <= reachable[:, None], times, INF)
    found = ((within.argsort(0).argsort(0) < 2) & np.isfinite(within)).mean(1)
    np.testing.assert_allclose(chance_among_first(law, reachable, 2), found, atol=4 * 0.5 / 200)


def test_many_requests_are_counted_almost_as_exactly_as_few(monkeypatch):
    law = LogNormal(np.random.default_rng(0).uniform(1, 4, (150, 1)), 0.5)
    exact = chance_among_first(law, np.full(150, INF), 40)
    monkeypatch.setattr("mmfl.pace.first._MANY", 10)
    np.testing.assert_allclose(chance_among_first(law, np.full(150, INF), 40), exact, atol=2e-3)


def test_intervals_between_updates_estimate_the_completion_probability():
    rng, q = np.random.default_rng(0), np.array([0.9, 0.5, 0.2])
    client, task = np.arange(3), np.zeros(3, dtype=np.int64)
    state = Intervals(*(np.zeros((3, 1), dtype=np.int64) for _ in range(3)))
    np.testing.assert_array_equal(state.completion(), 1)
    for _ in range(8000):
        state = state.after(client, task, rng.random(3) < q)
    np.testing.assert_allclose(state.completion()[:, 0], q, rtol=0.05)
    never = Intervals(*(np.zeros((1, 1), dtype=np.int64) for _ in range(3)))
    for _ in range(120):
        never = never.after(np.array([0]), np.array([0]), np.array([False]))
    assert never.completion().item() == 1 / 50


# --- late updates ---


def test_every_update_joins_one_aggregation_in_the_first_round_after_it_is_done():
    of = federation(12, mmfl.devices.shifted_exponential(20, 10, factors=[1, 4]), tasks=2)
    run = train("random", {"name": "window", "seconds": 25}, of, rounds=30)
    begun = [(s.end, s.client, s.task) for r in run.records for s in r.time.spans]
    active = sum(task.active for r in run.records for task in r.tasks.values())
    last = run.records[-1].time
    assert active + last.extras["waiting"] == len(begun) == sum(r.cost.trainings for r in run.records)
    assert sum(r.time.extras["late"] for r in run.records) > 20
    assert all(end > last.end or last.extras["waiting"] for end, *_ in begun)
    assert not any(r.time.dropped for r in run.records)
    assert max(r.time.seconds for r in run.records) == pytest.approx(25)
    for client in range(12):  # one processor: a training begins when the one before is done
        own = sorted((s.begin, s.end) for r in run.records for s in r.time.spans if s.client == client)
        assert all(after[0] >= before[1] - 1e-3 for before, after in pairwise(own))


@pytest.mark.parametrize("method", ["random", "forecast", "mifa"])
def test_a_window_that_never_closes_is_a_barrier_and_a_run_with_late_updates_goes_on_to_the_same_bits(method, tmp_path):
    assert same_bits(train(method, {"name": "window", "seconds": INF}), train(method, "barrier"))
    options = {"method": method, "pace": {"name": "window", "seconds": 20}, "of": federation(tasks=2)}
    whole = train(rounds=8, **options)
    train(rounds=4, directory=tmp_path / "run", **options)
    resumed = train(rounds=8, directory=tmp_path / "run", resume=True, **options)
    assert same_bits(whole, resumed)
    assert [r.time for r in resumed.records] == [r.time for r in whole.records]
    assert sum(r.time.extras["late"] for r in whole.records) > 0


def test_late_updates_keep_the_expected_step_and_what_is_too_late_is_divided_by_its_chance():
    of = federation(12, mmfl.devices.shifted_exponential(20, 10, factors=[1, 4]))
    for options in ({}, {"late": 30}):
        run = train("random", {"name": "window", "seconds": 25, **options}, of, rounds=150, rate=0.08)
        sizes = run.step_size["toy-0"]
        assert abs(sizes.mean() - 1) < 4 * sizes.std() / len(sizes) ** 0.5 + 0.05  # a few are still under way
    assert any(r.time.dropped for r in run.records)


# --- records ---


def test_seconds_and_trainings_are_conserved_and_time_goes_on():
    of = federation(20, mmfl.devices.shifted_exponential(20, 10, sessions=(60, 40)), tasks=2, capacity=[1, 2])
    paces = ["barrier", {"name": "deadline", "seconds": 25, "over": 1.5}, {"name": "first", "k": 2}]
    for pace in paces:
        run, before = train("random", pace, of, rounds=12), 0.0
        for record in run.records:
            time = record.time
            arrived = sum(len(drawn.clients) for drawn in record.drawn.values())
            assert record.cost.trainings == arrived + sum(time.dropped.values())
            used = sum(span.end - span.begin for span in time.spans if not span.cause)
            assert time.busy == pytest.approx(used + sum(time.wasted.values()), abs=0.01)
            assert time.busy <= time.offered + 0.01
            assert time.begin >= before
            assert time.end >= time.begin
            for client in {span.client for span in time.spans}:
                own = [(s.begin, s.end) for s in time.spans if s.client == client]
                assert max(sum(b <= t < e for b, e in own) for t, _ in own) <= of.capacity[client]
            before = time.end
            assert RoundRecord.from_json(json.loads(json.dumps(record.to_json()))) == record
        causes = {cause for record in run.records for cause in record.time.dropped}
        assert causes <= {"lost", "deadline", "surplus"}
        assert "lost" in causes


def test_a_client_trains_as_many_tasks_at_a_time_as_it_has_processors():
    client, task = np.array([0, 0, 0, 1]), np.array([0, 1, 2, 1])
    seconds, capacity = np.array([4.0, 6.0, 3.0, 2.0]), np.array([2, 1])
    np.testing.assert_array_equal(Barrier().queue(client, task, seconds, capacity), [0, 0, 4, 0])
    np.testing.assert_array_equal(Barrier(serial=True).queue(client, task, seconds, capacity), [0, 4, 10, 0])


def test_energy_is_that_of_training_and_of_what_was_sent():
    devices = mmfl.devices.from_arrays(seconds=[10.0, 20.0], joules_per_second=2.0, joules_per_byte=0.01)
    record = train("full", "barrier", federation(2, devices), rounds=1).records[0]
    assert record.time.joules == pytest.approx(2 * 30 + 2 * 2 * 64 * 0.01)


@pytest.mark.parametrize("pace", ["barrier", {"name": "deadline", "seconds": 30, "completion": "estimated"}])
def test_a_run_goes_on_to_the_same_bits(pace, tmp_path):
    of = federation(20, mmfl.devices.shifted_exponential(20, 10, sessions=(60, 40)), tasks=2)
    whole = train("forecast", pace, of, rounds=6)
    train("forecast", pace, of, rounds=3, directory=tmp_path / "run")
    resumed = train("forecast", pace, of, rounds=6, directory=tmp_path / "run", resume=True)
    assert same_bits(whole, resumed)
    assert [r.time for r in resumed.records] == [r.time for r in whole.records]


def test_methods_in_lockstep_see_the_same_durations():
    of = federation(20, tasks=2)
    found = mmfl.compare(of, ["random", "full"], 3, 0.5, pace="barrier")
    alone = train("random", "barrier", of, rounds=3, rate=0.5)
    assert [r.time for r in found["random"].records] == [r.time for r in alone.records]
    spans = {(s.client, s.task): s.end - s.begin for s in found["full"].records[0].time.spans}
    for span in found["random"].records[0].time.spans:
        assert spans[span.client, span.task] == pytest.approx(span.end - span.begin, abs=1e-3)


def test_when_nobody_can_be_reached_the_clock_goes_on_to_the_next_session():
    sessions = {"client": [0, 1, 2], "begin": [500, 500, 600], "end": [590, 595, 690], "period": 700}
    run = train("full", "barrier", federation(3, mmfl.devices.from_arrays(seconds=50.0, sessions=sessions)), rounds=3)
    assert [record.time.begin for record in run.records] == [500, 600, 1200]
    assert run.records[1].drawn_clients("toy-0") == [2]


# --- what makes no sense ---


def test_a_trace_that_ends_is_an_error_when_nobody_will_come_back():
    sessions = {"client": [0, 1], "begin": [0, 0], "end": [120, 120]}
    of = federation(2, mmfl.devices.from_arrays(seconds=50.0, sessions=sessions))
    with refused("after 100 s nobody can be reached long enough to train, in round 3"):
        train("full", "barrier", of, rounds=3)


def test_who_can_never_be_in_time_is_named_with_the_share_of_the_data(caplog):
    of = federation(4, mmfl.devices.from_arrays(seconds=[10.0, 20.0, 80.0, 90.0]))
    with caplog.at_level(logging.WARNING, logger="mmfl"):
        run = train("random", {"name": "deadline", "seconds": 40}, of)
    assert "2 of 4 clients (2, 3) never train task 'toy-0'; 50.0% of its data is uncovered" in caplog.text
    assert run.records[0].time.uncovered == {"toy-0": 0.5}
    with refused("no client can train task 'toy-0' within 5 s; the fastest usually takes 10 s"):
        train("random", {"name": "deadline", "seconds": 5}, of)


@pytest.mark.parametrize(
    ("method", "pace", "words"),
    [
        ("mmfl-stalevr", {"name": "deadline", "seconds": 60}, "StaleVR needs the update of every client"),
        ("mmfl-gvr", {"name": "first", "k": 3}, "UpdateVariance needs the update of every client"),
        ("full", {"name": "deadline", "seconds": 60}, "more tasks at a time than they have processors"),
        ("full", {"name": "first", "k": 3}, "more tasks at a time than they have processors"),
        ("random", {"name": "deadline"}, "needs the option 'seconds'"),
        ("random", {"name": "deadline", "seconds": 0}, "seconds is 0; expected a positive number"),
        ("random", {"name": "deadline", "seconds": 60, "over": 0.5}, "over is 0.5"),
        ("random", {"name": "deadline", "seconds": 60, "completion": "exakt"}, "did you mean 'exact'?"),
        ("random", {"name": "deadline", "seconds": 60, "completion": [0.5, 0.0]}, "probabilities in (0, 1]"),
        ("random", {"name": "deadline", "seconds": 60, "completion": [0.5, 0.5]}, "completion has shape [2, 1]"),
        ("random", {"name": "first", "k": 0}, "k is 0"),
        ("random", {"name": "first", "k": 3, "n": 2}, "n is 2; expected a whole number of at least k, 3"),
        ("random", {"name": "barrier", "least": 2}, "least is 2"),
        ("mmfl-stalevr", {"name": "window", "seconds": 60}, "late ones come in a later round"),
        ("random", {"name": "window", "seconds": -2}, "seconds is -2"),
        ("random", {"name": "window", "seconds": 20, "late": -1}, "late is -1"),
        ("random", "barier", "did you mean 'barrier'?"),
        ("random", 3, "pace 3 gives a int"),
    ],
)
def test_combinations_that_make_no_sense_are_refused(method, pace, words):
    with refused(words):
        train(method, pace, federation(tasks=2))


def test_paces_need_devices_and_the_first_k_need_chance():
    with refused("pace 'barrier' needs devices, and the federation has none"):
        train("random", "barrier", federation(devices=None))
    with refused("durations are certain"):
        train("random", {"name": "first", "k": 2}, federation(devices=mmfl.devices.uniform(10, 60)))
    both = federation(tasks=2, capacity=2)
    with refused("expected no serial=True"):
        train("random", {"name": "first", "k": 2, "serial": True}, both)
    with refused("completion='estimated'"):
        train("random", {"name": "deadline", "seconds": 60, "serial": True}, both)
    train("random", {"name": "deadline", "seconds": 60, "serial": True, "completion": "estimated"}, both, rounds=2)
    sometimes = federation(devices=mmfl.devices.shifted_exponential(sessions=(60, 60)))
    with refused("clients can be lost before their session ends"):
        train("mmfl-stalevr", "barrier", sometimes)
    with refused("clients get out of reach here"):
        train("random", {"name": "window", "seconds": 20}, sometimes)


def test_methods_with_a_pace_of_their_own_keep_it():
    of = federation()
    found = mmfl.compare(
        of, ["random", {"method": "random", "pace": {"name": "deadline", "seconds": 20}}], 2, pace="barrier"
    )
    assert found.methods == ["random", "random(pace=deadline(seconds=20))"]
    assert found.runs[1].records[0].time.seconds == 20 or not found.runs[1].records[0].time.dropped


# --- results ---


def test_a_run_knows_when_it_reached_a_target_and_how_busy_devices_were():
    run = train("full", "barrier", federation(tasks=2), rounds=6)
    metric = run.accuracy["toy-1"]
    found = run.time_to({"toy-1": metric.max(), "toy-0": 2.0})
    assert found["toy-1"] == run.times["end"][metric.idxmax()]
    assert np.isnan(found["toy-0"])
    assert np.isnan(found["all"])
    assert run.time_to(0.0).to_dict() == dict.fromkeys(("toy-0", "toy-1", "all"), run.times["end"][1])
    assert (run.times["utilisation"] <= 1).all()
    assert list(run.times["begin"][1:]) == list(run.times["end"][:-1])
    with refused("unknown task 'toy-2'"):
        run.time_to({"toy-2": 0.5})
    with refused("this run has no clock"):
        train(of=federation(devices=None), rounds=1).time_to(0.5)


def test_a_report_shows_the_clock_where_there_is_one(tmp_path):
    deadline = {"method": "random", "name": "deadline", "pace": {"name": "deadline", "seconds": 25}}
    result = mmfl.compare(federation(tasks=2), ["random", deadline], 5, 0.5, directory=tmp_path / "run")
    made = {figure.name: figure for figure in figures(mmfl.load(tmp_path / "run"))}
    assert [panel.title for panel in made["seconds"].panels] == ["toy-0", "toy-1", "mean of the tasks", "worst task"]
    assert made["timeline"].table["cause"].eq("deadline").any()
    wasted = made["utilisation"].table.set_index("method")["wasted"]
    assert wasted["deadline"] > wasted["random"] == 0
    table = tables.results(result)["on the devices' clock"].set_index("method")
    assert float(table.loc["deadline", "seconds a round"]) < float(table.loc["random", "seconds a round"])
    untimed = {figure.name for figure in figures(mmfl.compare(federation(devices=None), ["random"], 2, 0.5))}
    assert not {"seconds", "timeline", "utilisation"} & untimed


def test_a_configuration_names_devices_and_paces(tmp_path):
    settings = [
        "federation.devices.name=uniform",
        "federation.devices.high=30",
        "pace.name=deadline",
        "pace.seconds=20",
    ]
    experiment = read("demo", settings).experiment()
    assert experiment.federation_of(0).durations().mean().max() <= 30
    assert all(method.pace.seconds == 20 for method in experiment.methods)
    with refused("devices 'uniform': unknown option 'hihg': did you mean 'high'?"):
        read("demo", ["federation.devices.name=uniform", "federation.devices.hihg=30"]).experiment().federation_of(0)
