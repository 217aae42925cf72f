"""Asynchronous training: events a second, and a run beside a synchronous one with as many trainings.

python benchmarks/asynchronous.py [--device cuda] [--clients 1000000] [--rounds 20]
"""

import argparse
import time

import numpy as np

import mmfl
from mmfl.federation.durations import ShiftedExponential
from mmfl.pace.buffered import Buffered
from mmfl.pace.requests import QueueState, RequestQueue
from mmfl.pace.schedule import Schedule
from mmfl.pace.slots import SlotState


def events_a_second(clients: int, concurrency: int = 10_000, arrivals: int = 100_000) -> float:
    """Dispatches, arrivals and versions of three tasks for each second of processor time; the first requests, which
    are sent all at once, are left out."""
    mean = np.random.default_rng(0).uniform(10, 60, (clients, 3))
    state = QueueState.start(clients, 3)
    queue = RequestQueue(state, np.ones(clients, dtype=np.int64), ShiftedExponential(mean, np.float64(1 / 3)), 0)
    queue.route(np.ones((clients, 3)))
    schedule = Schedule(queue, Buffered(buffer=10).rules(SlotState(concurrency, None, [None] * 3)))
    schedule.step()
    before, begun = queue.state.serial, time.process_time()
    versions = sum(1 for step in schedule.until(arrivals) for _ in step.versions)
    return (queue.state.serial - before + arrivals + versions) / (time.process_time() - begun)


def seconds_a_round(pace: str, rounds: int, device: str) -> float:
    """Processor time of a round of 60 trainings of 30 steps of a small network for digits; on a GPU the time on the
    clock."""
    clock = time.perf_counter if device != "cpu" else time.process_time
    task = mmfl.Task("digits", mmfl.models.Perceptron, mmfl.data.digits(), lr=0.1, epochs=10, batch_size=4)
    federation = mmfl.Federation([task], 120, devices=mmfl.devices.three_speeds())
    measured = []
    options = {"pace": pace, "rate": 0.5, "device": device, "engine": "vectorised", "evaluate_every": 10**6}
    for number in (2, 2, 2 + rounds):  # the first one warms up
        begun = clock()
        mmfl.train(federation, "random", rounds=number, **options)
        measured.append(clock() - begun)
    return (measured[2] - measured[1]) / rounds


def main() -> None:
    """Prints both."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--clients", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=20)
    given = parser.parse_args()
    print(
        f"{events_a_second(given.clients):,.0f} events a second, {given.clients:,} devices, 10,000 requests in flight"
    )
    times = {pace: seconds_a_round(pace, given.rounds, given.device) for pace in ("barrier", "buffered")}
    for pace, seconds in times.items():
        print(f"{pace:9} {1000 * seconds:7.1f} ms for a round of 60 trainings")
    print(f"ratio {times['buffered'] / times['barrier']:.2f}")


if __name__ == "__main__":
    main()
