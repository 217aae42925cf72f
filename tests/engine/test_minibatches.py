"""Which examples a client sees at each local step."""

from collections import Counter

import numpy as np
import pytest
import torch
from scipy.stats import chisquare
from small import CLASSES, SIZES, ask, federation, task
from torch import nn

from mmfl.engine import Simulation
from mmfl.engine.batches import Batches
from mmfl.engine.device_data import DeviceData
from mmfl.engine.jobs import Jobs

ROWS = torch.arange(100.0)[:, None]
Steps = list[list[int]]


def batches_of(*clients: int, sizes=SIZES, round=1, seed=0, **options) -> tuple[Jobs, Batches]:
    pool = federation(task(lambda: nn.Linear(1, 3), ROWS, CLASSES, **options), sizes=sizes)
    jobs = Jobs.of([ask(Simulation("cpu"), pool, client=clients or range(len(sizes)), round=round, seed=seed)])
    return jobs, Batches(jobs, DeviceData(torch.device("cpu")))


def steps_of(*clients: int, **options) -> dict[int, Steps]:
    """The rows that each client sees, step by step, as places among its own."""
    jobs, batches = batches_of(*clients, **options)
    (training,) = jobs.trainings
    seen = {}
    for job, client in enumerate(training.client):
        place = {row: n for n, row in enumerate(training.federation.shards[0].of(client))}
        rows = [x[:, 0].int().tolist() for x, _ in batches.of_job(job)]
        seen[int(client)] = [[place[row] for row in batch] for batch in rows]
    return seen


def buckets(jobs: Jobs, exact: bool = False) -> list[Jobs]:
    jobs, rows = jobs.in_buckets(exact)
    return [jobs.take(each) for each in rows]


def flat(steps: Steps) -> list[int]:
    return [row for batch in steps for row in batch]


@pytest.mark.parametrize("batch_size", [1, 4, 5, 12, 100, None])
def test_every_epoch_sees_each_example_once_and_keeps_the_last_small_batch(batch_size):
    for client, steps in steps_of(batch_size=batch_size).items():
        size = SIZES[client]
        lengths = [min(batch_size or size, size - begin) for begin in range(0, size, batch_size or size)]
        assert [len(batch) for batch in steps] == 3 * lengths
        for epoch in range(3):
            seen = flat(steps[epoch * len(lengths) : (epoch + 1) * len(lengths)])
            assert sorted(seen) == list(range(size))


def test_a_full_batch_keeps_the_order_of_the_data():
    for client, steps in steps_of(batch_size=9).items():
        if SIZES[client] <= 9:
            assert steps == 3 * [list(range(SIZES[client]))]


def test_the_order_differs_between_epochs_rounds_clients_and_seeds():
    sizes = (12, 12)
    orders = [steps[n : n + 3] for steps in steps_of(sizes=sizes).values() for n in (0, 3, 6)]
    orders += [steps_of(0, sizes=sizes, round=2)[0][:3], steps_of(0, sizes=sizes, seed=1)[0][:3]]
    assert len({tuple(flat(order)) for order in orders}) == 8


def test_every_order_is_equally_likely():
    seen = flat(steps_of(0, sizes=(4,), epochs=2400, batch_size=2)[0])
    orders = Counter(tuple(seen[n : n + 4]) for n in range(0, len(seen), 4))
    assert len(orders) == 24
    assert chisquare(list(orders.values())).pvalue > 0.01


@pytest.mark.parametrize("others", [(2,), (2, 4), (4, 0, 2), (5, 3, 2, 1, 0, 4)])
def test_a_clients_batches_do_not_depend_on_who_else_is_there(others):
    assert steps_of(*others, sizes=(12, 5, 9, 1, 12, 7))[2] == steps_of(sizes=(12, 5, 9, 1, 12, 7))[2]


def test_a_cohort_sees_what_its_clients_see_alone_and_weighs_nothing_else():
    whole, _ = batches_of()
    for bucket in buckets(whole):
        batches = Batches(bucket, DeviceData(torch.device("cpu")))
        alone = [list(batches.of_job(job)) for job in range(len(bucket))]
        for step, (x, y, share, length, _) in enumerate(batches.cohorts()):
            active = int((bucket.steps > step).sum())
            torch.testing.assert_close(share.sum(1), torch.ones(active))
            for job in range(active):
                alone_x, alone_y = alone[job][step]
                assert torch.equal(x[job, : length[job]], alone_x)
                assert torch.equal(y[job, : length[job]], alone_y)
                assert (share[job, : length[job]] > 0).all()
                assert (share[job, length[job] :] == 0).all()


@pytest.mark.parametrize("batch_size", [1, 4, None])
def test_no_step_is_computed_for_a_client_that_is_done(monkeypatch, batch_size):
    pool, engine = federation(task(batch_size=batch_size)), Simulation("cpu", "vectorised")
    training = ask(engine, pool)
    engine.train([training])  # finds out whether the module can be vectorised at all
    computed, cohorts = [], Batches.cohorts

    def recorded(self, keys):
        for batch in cohorts(self, keys):
            computed.append(len(batch.x))
            yield batch

    monkeypatch.setattr(Batches, "cohorts", recorded)
    engine.train([training])
    assert sum(computed) == Jobs.of([training]).steps.sum()
    assert len(computed) < sum(computed)


def test_batches_of_one_bucket_are_alike():
    jobs, _ = batches_of(sizes=(1, 2, 3, 4, 5, 6), batch_size=None)
    for bucket in buckets(jobs):
        assert bucket.batch.max() < 2 * bucket.batch.min()
        assert (np.diff(bucket.steps) <= 0).all()
    assert [len(bucket) for bucket in buckets(jobs, exact=True)] == [1] * 6
