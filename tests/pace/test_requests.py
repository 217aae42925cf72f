"""The queue of requests: closed forms of staleness and throughput, ties, conservation, and going on from any event."""

import itertools

import numpy as np
import pytest
import torch

from mmfl.federation.devices import three_speeds
from mmfl.federation.durations import Certain, LogNormal, ShiftedExponential
from mmfl.federation.sessions import SessionTrace
from mmfl.pace.buffered import Buffered
from mmfl.pace.fedast import FedAST, FedASTState, divide_slots, spread
from mmfl.pace.reach import Reach
from mmfl.pace.requests import QueueOptions, QueueState, RequestQueue
from mmfl.pace.schedule import Schedule
from mmfl.pace.slots import SlotState, finish

LAWS = {
    "equal": lambda mean: Certain(mean),
    "log-normal": lambda mean: LogNormal(mean, 1.0),
    "exponential": lambda mean: ShiftedExponential(mean, np.float64(1 / 3)),
}


def schedule(
    clients=200, tasks=1, *, concurrency=20, buffer=3, mean=None, law="exponential", capacity=1, seed=0, **options
):
    """A schedule of equally likely clients, before its first event."""
    mean = np.ones((clients, tasks)) if mean is None else mean
    state = QueueState.start(clients, tasks)
    queue = RequestQueue(state, np.full(clients, capacity), LAWS[law](mean), seed, QueueOptions(**options))
    queue.route(np.ones((clients, tasks)))
    pace = Buffered(concurrency=concurrency, buffer=buffer)
    return Schedule(queue, pace.rules(SlotState(concurrency, None, [None] * tasks)))


def staleness(made: Schedule, arrivals: int, skip: int = 0) -> np.ndarray:
    """How many versions older each aggregated request was, without the first `skip` versions."""
    found = []
    for step in made.until(arrivals):
        for version in step.versions:
            if version.number > skip:
                found += [version.number - 1 - request.version for request in version.requests]
    return np.array(found)


@pytest.mark.parametrize("law", ["log-normal", "exponential"])
@pytest.mark.parametrize(("concurrency", "buffer"), [(20, 3), (12, 12), (7, 1)])
def test_mean_staleness_is_the_other_requests_in_flight_divided_by_the_buffer(law, concurrency, buffer):
    made = schedule(concurrency=concurrency, buffer=buffer, law=law)
    arrivals = 12_000
    found = staleness(made, arrivals, skip=100)
    # Every arrival raises the age of all other requests in flight by 1/b of a version: over n arrivals, only the edges
    # differ, by less than R ages of at most a few times (R - 1) / b.
    assert abs(found.mean() - (concurrency - 1) / buffer) < 10 * concurrency**2 / arrivals


def test_batched_ties_begin_together_and_their_staleness_follows():
    for concurrency, buffer in ((12, 3), (10, 10), (20, 5)):
        found = staleness(schedule(concurrency=concurrency, buffer=buffer, law="equal"), 60 * concurrency)
        assert found.mean() == pytest.approx((concurrency / buffer - 1) / 2)


def test_ties_that_are_sent_one_by_one_are_as_stale_as_others():
    pace = FedAST(requests=10, buffer=10, active=None, reallocate=False)
    state = FedASTState(10, [10], [None], -2, 0, [torch.empty(0, 1)], [0.0], [0])
    queue = RequestQueue(QueueState.start(10**5, 1), np.ones(10**5, dtype=int), Certain(np.ones((10**5, 1))), 0)
    queue.route(np.ones((10**5, 1)))
    found = staleness(Schedule(queue, pace.rules(state)), 2000, skip=5)
    assert found.mean() == pytest.approx(0.9)


def test_throughput_is_the_requests_in_flight_divided_by_the_mean_duration():
    mean = np.resize([0.7, 1.0, 1.0, 1.3], 4000)[:, None] * 2.0
    made = schedule(4000, concurrency=30, mean=mean)
    for _ in made.until(20_000):
        pass
    rate, error = 20_000 / made.queue.time, 1 / np.sqrt(20_000)  # of exponential parts of the durations
    assert rate == pytest.approx(30 / 2.0, rel=4 * error)


def test_a_client_arrives_as_often_as_it_is_drawn_however_slow_it_is():
    slow = np.where(np.arange(60) < 30, 5.0, 0.5)[:, None]
    made, share = schedule(60, concurrency=6, mean=slow, waits=True), []
    for step in made.until(20_000):
        share.append(step.request.client < 30)
        list(step.versions)
    assert np.mean(share) == pytest.approx(0.5, abs=4 * 0.5 / np.sqrt(20_000) + 0.002)


@pytest.mark.parametrize("options", [{}, {"waits": True}, {"one_each": True, "capacity": 2}, {"most_busy": 15}])
def test_requests_and_seconds_are_conserved_and_time_moves_forward(options):
    made = schedule(40, 3, concurrency=25, buffer=4, **options)
    queue, times, aggregated = made.queue, [0.0], 0
    for step in made.until(600):
        for version in step.versions:
            aggregated += len(version.requests)
            assert len(version.requests) == 4
        times.append(queue.time)
        tallies = queue.state.tallies
        known = aggregated + sum(map(len, queue.buffers)) + queue.in_flight
        assert sum(tallies.sent) == known == queue.state.serial
        assert sum(tallies.aggregated) == aggregated == 4 * sum(queue.state.version)
        capacity = options.get("capacity", 1)
        if "waits" not in options:
            assert np.bincount([r.client for r in queue.requests() if r.arrival > queue.time]).max() <= capacity
        if "one_each" in options:
            pairs = [(r.client, r.task) for r in queue.requests()]
            assert len(set(pairs)) == len(pairs)
        assert queue.busy_clients <= options.get("most_busy", 40)
    assert times == sorted(times)
    spent = sum(tallies.seconds_done) + queue.seconds_in_flight()
    if not options:  # every slot is in use at any time
        assert spent == pytest.approx(25 * queue.time)
    assert max(tallies.sent) - min(tallies.sent) <= 25  # tasks share the slots evenly


def test_waiting_requests_are_done_one_after_another():
    made, ends = schedule(3, concurrency=9, buffer=2, waits=True, law="equal"), {}
    for step in made.until(60):
        list(step.versions)
        request = step.request
        assert request.begun >= ends.get(request.client, 0.0)
        assert request.arrival == pytest.approx(request.begun + 1.0)
        ends[request.client] = request.arrival
    assert made.queue.time >= 20.0


def test_a_queue_goes_on_from_any_event_with_the_same_requests():
    def events(made, count):
        found = []
        for _ in range(count):
            step = made.step()
            found.append((step.request, list(step.versions)))
        return found

    whole = schedule(30, 2, concurrency=12, one_each=True)
    expected = events(whole, 80)
    for cut in (1, 13, 40):
        first = schedule(30, 2, concurrency=12, one_each=True)
        assert events(first, cut) == expected[:cut]
        saved = first.queue.saved()
        rest = schedule(30, 2, concurrency=12, one_each=True)
        queue = RequestQueue(saved, rest.queue.capacity, rest.queue.durations, 0, rest.queue.options)
        queue.route(np.ones((30, 2)))
        assert events(Schedule(queue, rest.rules), 80 - cut) == expected[cut:]


def test_another_seed_gives_another_schedule():
    first, other = ([step.request.client for step in schedule(seed=seed).until(30)] for seed in (0, 1))
    assert first != other


def test_who_leaves_before_it_is_done_loses_its_request_and_nobody_out_of_reach_is_asked():
    trace = SessionTrace([0, 1], [0.0, 5.0], [0.5, 100.0], clients=2)
    queue = RequestQueue(QueueState.start(2, 1), np.ones(2, dtype=int), Certain(np.ones((2, 1))), 0, reach=Reach(trace))
    queue.route(np.ones((2, 1)))
    made = Schedule(queue, Buffered(buffer=1).rules(SlotState(2, None, [None])))
    first = made.step().request
    assert (first.client, first.lost, first.arrival) == (0, True, 0.5)
    second = made.step().request
    assert (second.client, second.lost, second.arrival) == (1, False, 6.0)
    assert queue.state.tallies.lost == [1]
    assert queue.state.tallies.seconds_lost == [0.5]


def test_cancelled_requests_leave_their_slots_to_the_others():
    made = schedule(100, 2, concurrency=20, buffer=4)
    state = SlotState(20, [12, 8], [None, None])
    made = Schedule(made.queue, Buffered(buffer=4).rules(state))
    for _ in made.until(30):
        list(_.versions)
    queue = made.queue
    open_requests = queue.in_flight_of(0) + len(queue.buffers[0])
    finish(queue, state, 0)
    assert (state.of_task, state.ended[0]) == ([0, 20], queue.time)
    assert queue.state.tallies.cancelled == [open_requests, 0]
    tallies = queue.state.tallies
    assert sum(tallies.sent) == sum(tallies.aggregated) + open_requests + len(queue.buffers[1]) + queue.in_flight
    for step in made.until(30):
        assert step.request.task == 1
        list(step.versions)
    assert queue.in_flight_of(1) == 19  # the slot of the last arrival is filled before the next


@pytest.mark.parametrize("tasks", [1, 3, 5])
def test_reallocation_keeps_the_number_of_slots_and_gives_equal_tasks_the_same(tasks):
    equal = divide_slots(dict.fromkeys(range(tasks), 0.3), 96 * tasks)
    assert set(equal.values()) == {96}
    wide = divide_slots({s: 1e9 if s == 0 else 1.0 for s in range(tasks)}, 96 * tasks)
    assert sum(wide.values()) == 96 * tasks
    assert all(wide[s] == 32 for s in range(1, tasks))
    for parts in itertools.product([0.1, 1.0, 3.0], repeat=tasks):
        assert sum(divide_slots(dict(enumerate(parts)), 96 * tasks).values()) == 96 * tasks


def test_the_spread_of_updates_is_taken_with_or_without_a_root():
    updates = torch.tensor([[1.0, 0.0], [3.0, 0.0]])
    assert spread(updates, 0.5, 2, 1.0, root=False) == pytest.approx(1.0 / (0.5 * 4) / 4 / 2)
    assert spread(updates, 0.5, 2, 1.0, root=True) == pytest.approx(np.sqrt(1.0 / (0.5 * 4) / 4))


def test_a_dynamic_buffer_is_a_thirty_second_of_the_requests_in_flight():
    pace = FedAST(requests=96, active=None, reallocate=False)
    state = FedASTState(96, [96], [None], -2, 0, [torch.empty(0, 1)], [0.0], [0])
    queue = RequestQueue(QueueState.start(10**5, 1), np.ones(10**5, dtype=int), LogNormal(np.ones((10**5, 1)), 0.5), 0)
    queue.route(np.ones((10**5, 1)))
    sizes = [len(v.requests) for step in Schedule(queue, pace.rules(state)).until(600) for v in step.versions]
    assert set(sizes) == {3}


DEMO = [0.148, 0.24, 0.228, 0.555]  # mean delays of FedAST's demo: MNIST, Fashion-MNIST, CIFAR-10, Shakespeare


def demo(active: int | None, seed: int) -> Schedule:
    """FedAST's demo without reallocation: four tasks with 96 requests each, a thousand clients of three speeds."""
    devices = three_speeds(DEMO)(1000, np.random.default_rng(seed))
    durations = devices.jitter.around(devices.seconds)
    pace = FedAST(active=active, reallocate=False)
    state = FedASTState(4 * 96, [96] * 4, [None] * 4, -2, 0, [torch.empty(0, 1)] * 4, [0.0] * 4, [0] * 4)
    queue = RequestQueue(QueueState.start(1000, 4), np.ones(1000, dtype=int), durations, seed, pace.options(False))
    queue.route(np.ones((1000, 4)))
    return Schedule(queue, pace.rules(state))


def test_the_first_requests_of_fedasts_demo_touch_as_many_clients_as_draws_with_replacement_do():
    made = [demo(None, seed) for seed in range(20)]
    for each in made:
        each.rules.fill(each.queue)
    touched = [each.queue.busy_clients for each in made]
    deviation = np.sqrt(1000 * (0.999**384 - 0.999**768))  # at most, as draws exclude each other
    assert np.mean(touched) == pytest.approx(1000 * (1 - 0.999**384), abs=4 * deviation / np.sqrt(20))  # 319
    capped = demo(300, 0)
    capped.rules.fill(capped.queue)
    assert capped.queue.busy_clients == 300
    assert capped.queue.in_flight < 384


def test_requests_of_fedasts_demo_train_in_cohorts_of_more_than_seventy():
    made, trained, flushes, sizes = demo(300, 0), set(), [], []
    for step in made.until(4000):
        for version in step.versions:
            sizes.append(len(version.requests))
            if any(request.serial not in trained for request in version.requests):
                pending = {request.serial for request in [*version.requests, *made.queue.requests()]} - trained
                trained |= pending
                flushes.append(len(pending))
    assert np.mean(sizes) == pytest.approx(3.0, abs=0.05)
    assert 70 < np.mean(flushes[5:]) < 84
