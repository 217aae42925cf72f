"""Durations: closed forms against integrals and samples; what a training asks of a device."""

from functools import partial

import numpy as np
import pytest
from scipy import integrate

import mmfl
from conftest import refused, toy_task
from mmfl.federation.durations import Certain, LogNormal, ShiftedExponential
from mmfl.federation.sessions import Cycles, SessionTrace

EXPECTED = np.array([[3.0, 40.0], [0.5, 7.0]])
LAWS = [
    LogNormal(EXPECTED, 0.5),
    LogNormal(EXPECTED, 1.5),
    ShiftedExponential(EXPECTED, np.float64(1 / 3)),
    ShiftedExponential(EXPECTED, np.array([0.0, 0.8])),
    Certain(EXPECTED),
]


@pytest.mark.parametrize("law", LAWS)
def test_the_mean_until_a_deadline_is_the_integral_of_the_chance_to_be_late(law):
    for deadline in (0.3, 5.0, 60.0):
        for pair in np.ndindex(EXPECTED.shape):
            late = lambda t, pair=pair: 1 - law.completion(t)[pair]  # noqa: E731
            points = [t for t in (EXPECTED[pair], law.quantile(0.0)[pair]) if 0 < t < deadline]
            integral, _ = integrate.quad(late, 0, deadline, points=points or None, limit=200)
            assert law.mean_until(deadline)[pair] == pytest.approx(integral, rel=1e-6)


@pytest.mark.parametrize("law", LAWS)
def test_without_a_deadline_everything_is_completed_in_its_mean_time(law):
    np.testing.assert_allclose(law.completion(np.inf), 1)
    np.testing.assert_allclose(law.mean_until(np.inf), law.mean())
    np.testing.assert_allclose(law.mean(), EXPECTED)


@pytest.mark.parametrize("law", LAWS[:4])
def test_a_quantile_is_the_time_by_which_that_share_is_completed(law):
    for level in (0.1, 0.5, 0.9):
        np.testing.assert_allclose(law.completion(law.quantile(level)), level, rtol=1e-9)


@pytest.mark.parametrize("law", LAWS)
def test_samples_follow_the_law_within_four_standard_errors_and_belong_to_their_address(law):
    ordinal = np.arange(40_000)
    for client, task in np.ndindex(EXPECTED.shape):
        sampled = law.sample(client, task, ordinal, seed=3)
        error = 1e-9 + 4 * sampled.std() / len(sampled) ** 0.5
        assert abs(sampled.mean() - EXPECTED[client, task]) < error
        chance = law.completion(EXPECTED[client, task])[client, task]
        assert abs((sampled <= EXPECTED[client, task]).mean() - chance) < 4 * 0.5 / len(sampled) ** 0.5
        assert law.sample(client, task, 7, seed=3) == sampled[7]
    both = law.sample(np.array([0, 1]), np.array([1, 0]), 5, seed=3)
    np.testing.assert_array_equal(both, [law.sample(0, 1, 5, 3), law.sample(1, 0, 5, 3)])


def test_a_training_takes_three_passes_per_epoch_the_latency_and_the_weights_both_ways():
    given = {"milliseconds": [1000.0, 500.0], "down": 8.0, "up": 4.0, "latency": 2.0, "reference": 24.0}
    task = toy_task(epochs=5)  # 3 x 4 weights and 4 biases: 24 operations, 64 bytes
    federation = mmfl.Federation([task], 2, devices=mmfl.devices.from_arrays(**given))
    examples = federation.sizes[:, 0]
    bytes_both_ways = 8 * 64 / 8e6 + 8 * 64 / 4e6
    expected = 3 * 5 * examples * np.array([1.0, 0.5]) + 2 + bytes_both_ways
    np.testing.assert_allclose(federation.durations().mean()[:, 0], expected)


def test_operations_are_counted_once_for_each_architecture():
    built = []

    def model():
        built.append(1)
        return mmfl.models.LogisticRegression(inputs=3, classes=4)

    tasks = [toy_task(name, model=model) for name in ("a", "b", "c")]
    federation = mmfl.Federation(tasks, 4, devices=mmfl.devices.phones())
    before = len(built)
    assert federation.work.operations.tolist() == [24.0] * 3
    assert federation.work is federation.work
    assert len(built) == before


def test_a_client_without_room_for_a_model_does_not_train_it_and_somebody_must_have_room():
    small, large = toy_task("small"), toy_task("large", model=partial(mmfl.models.Perceptron, inputs=3, classes=4))
    devices = mmfl.devices.from_arrays(memory=[1e3, 1e9, 1e9])
    view = mmfl.Federation([small, large], 3, devices=devices).view(1, rate=1.0, seed=0)
    np.testing.assert_array_equal(view.able, [[True, False], [True, True], [True, True]])
    assert view.share[:, 1].sum() == pytest.approx(1)
    with refused("the model of task 'large' fits into no client's memory"):
        mmfl.Federation([small, large], 3, devices=mmfl.devices.from_arrays(memory=1e3))


def test_cycles_and_traces_say_who_can_be_reached_until_when():
    cycle = Cycles(np.array([3.0]), np.array([6.0]), np.array([1.0]))
    assert cycle.until(1.5).item() == pytest.approx(2.0)
    assert cycle.until(2.5).item() == -np.inf
    assert cycle.next_start(2.5).item() == pytest.approx(8.0)
    trace = SessionTrace([0, 0, 1], [0, 50, 20], [10, 100, 30], clients=2, period=100.0)
    np.testing.assert_allclose(trace.until(60.0), [110.0, -np.inf])  # goes on at the start of the next period
    np.testing.assert_allclose(trace.until(125.0), [-np.inf, 130.0])
    np.testing.assert_allclose(trace.next_start(60.0), [100.0, 120.0])
    ending = SessionTrace([0, 1], [0, 20], [10, 30], clients=2)
    assert ending.ends == 30
    np.testing.assert_allclose(ending.next_start(15.0), [np.inf, 20.0])


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: mmfl.devices.from_arrays(milliseconds=[-1.0, 2.0]), "milliseconds is [-1.0, 2.0]"),
        (lambda: mmfl.devices.from_arrays(down=0.0), "down is 0.0; expected positive numbers"),
        (lambda: mmfl.devices.from_arrays(latency="long"), "latency is 'long'"),
        (lambda: mmfl.devices.from_arrays(sessions={"who": [0]}), "unknown key 'who'"),
        (lambda: mmfl.devices.phones(jitter=-1), "jitter is -1"),
        (lambda: mmfl.devices.phones(sessions=(300, 0)), "sessions is 0; expected a positive number"),
        (lambda: mmfl.devices.uniform(10, 5), "high is 5; expected a number of at least 10"),
        (lambda: mmfl.devices.three_speeds([0.1, 0.0]), "mean is [0.1, 0.0]; expected positive numbers"),
        (lambda: mmfl.devices.shifted_exponential([1, 2], [1, 2, 3]), "2 means and 3 shifts"),
        (lambda: mmfl.devices.from_file("nothing.csv"), "'nothing.csv' cannot be read"),
        (lambda: mmfl.devices.from_file("trace.txt"), "expected .csv or .npz"),
        (lambda: SessionTrace([0], [5.0], [4.0], clients=1), "client 0 has [5, 4)"),
        (lambda: SessionTrace([3], [0.0], [4.0], clients=1), "client is"),
        (lambda: SessionTrace([0, 0], [0.0, 3.0], [4.0, 5.0], clients=1), "of client 0 overlap"),
    ],
)
def test_wrong_devices_are_refused(make, words):
    with refused(words):
        make()


def test_wrong_numbers_of_devices_and_tasks_are_refused():
    task = toy_task()
    with refused("milliseconds has 2 entries for 3 clients"):
        mmfl.Federation([task], 3, devices=mmfl.devices.from_arrays(milliseconds=[1, 2]))
    with refused("given for 2 tasks"):
        mmfl.Federation([task], 3, devices=mmfl.devices.three_speeds([0.1, 0.2])).durations()
    with refused("devices is 'phones'; expected devices, such as mmfl.devices.phones()"):
        mmfl.Federation([task], 3, devices="phones")
    with refused("it has no devices, so trainings have no duration"):
        mmfl.Federation([task], 3).durations()


def test_a_trace_file_gives_clients_the_devices_of_its_rows_and_their_sessions(tmp_path):
    (tmp_path / "devices.csv").write_text("milliseconds,down\n10,5\n20,6\n30,7\n40,8\n")
    (tmp_path / "sessions.csv").write_text("client,begin,end\n0,0,10\n1,5,20\n2,0,20\n3,0,15\n")
    make = mmfl.devices.from_file(tmp_path / "devices.csv", tmp_path / "sessions.csv", period=20, up=2.0)
    all_four = make(4, np.random.default_rng(0))
    np.testing.assert_array_equal(all_four.milliseconds, [10, 20, 30, 40])
    np.testing.assert_array_equal(all_four.sessions.until(6.0), [10, 20, np.inf, 15])
    two = make(2, np.random.default_rng(0))
    ends = dict(zip([10, 20, 30, 40], [10, 20, np.inf, 15], strict=True))
    np.testing.assert_array_equal(two.sessions.until(6.0), [ends[ms] for ms in two.milliseconds])
    np.savez(tmp_path / "devices.npz", milliseconds=np.array([1.0, 2.0]))
    assert mmfl.devices.from_file(tmp_path / "devices.npz")(2, np.random.default_rng(0)).milliseconds[1] == 2
    with refused("has 4 devices for 5 clients"):
        make(5, np.random.default_rng(0))
    (tmp_path / "other.csv").write_text("speed\n10\n")
    with refused("unknown column 'speed'"):
        mmfl.devices.from_file(tmp_path / "other.csv")
