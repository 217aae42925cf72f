"""Jobs that compete for phones: the simulation's accounts, its schedules, and the quick page."""

import numpy as np
import pytest
from shared import HOLDS, quick, verdicts

from mmfl.papers.venn.devices import ELIGIBLE, KINDS, CheckIns
from mmfl.papers.venn.jobs import JobList, JobSimulation
from mmfl.papers.venn.schedules import SCHEDULES

ONE_GROUP = np.ones((1, 1), dtype=bool)


def jobs(demand, rounds, group=None, arrival=None, deadline=1e9):
    number = len(demand)
    return JobList(
        np.zeros(number) if arrival is None else np.array(arrival),
        np.array(demand),
        np.array(rounds),
        np.full(number, deadline),
        np.zeros(number, dtype=np.int64) if group is None else np.array(group),
    )


def every_second(number, seconds=0.0, stay=np.inf):
    """A phone of one kind each second."""
    return CheckIns(np.arange(1.0, number + 1), np.zeros(number, int), np.full(number, seconds), np.full(number, stay))


@pytest.mark.parametrize("name", ["smallest request", "venn"])
def test_with_one_group_the_smallest_request_is_served_first(name):
    """Jobs of 3, 5 and 2 phones, one each second: after 2, 5 and 10 seconds."""
    outcome = JobSimulation(jobs([3, 5, 2], [1, 1, 1]), every_second(100), ONE_GROUP, SCHEDULES[name]).run()
    assert outcome.seconds.tolist() == [5.0, 10.0, 2.0]


def test_the_first_job_is_first_and_the_shortest_service_counts_all_rounds():
    one = jobs([3, 5], [4, 1])
    assert JobSimulation(one, every_second(100), ONE_GROUP, SCHEDULES["fifo"]).run().seconds.tolist() == [12.0, 17.0]
    assert JobSimulation(one, every_second(100), ONE_GROUP, SCHEDULES["srsf"]).run().seconds.tolist() == [17.0, 5.0]


def test_a_round_waits_for_four_fifths_of_its_results_and_fails_without_them():
    slow = JobSimulation(jobs([5], [2]), every_second(100, seconds=7.0), ONE_GROUP, SCHEDULES["fifo"]).run()
    assert (
        slow.seconds[0] == 14 + 7
    )  # the fourth phone comes after 4 s, its result after 11, when the next round begins
    late = JobSimulation(
        jobs([5], [1], deadline=2.0), every_second(100, seconds=7.0), ONE_GROUP, SCHEDULES["fifo"]
    ).run()
    assert np.isnan(late.seconds[0])
    assert late.failed[0] > 5
    lost = JobSimulation(jobs([5], [1], deadline=50.0), every_second(200, 7.0, stay=6.0), ONE_GROUP, SCHEDULES["fifo"])
    assert lost.run().failed[0] > 1


@pytest.mark.parametrize("name", SCHEDULES)
def test_jobs_get_as_many_phones_as_they_ask_for_and_none_that_they_cannot_use(name):
    competing = jobs([20, 40, 10, 30], [3, 2, 4, 3], group=[0, 1, 2, 3], arrival=[0.0, 5.0, 9.0, 9.0])
    outcome = JobSimulation(competing, CheckIns.poisson(5.0, 20_000, 0), ELIGIBLE, SCHEDULES[name]).run()
    assert outcome.ineligible == 0
    assert not np.isnan(outcome.seconds).any()
    assert (outcome.devices == competing.demand * (competing.rounds + outcome.failed)).all()


def test_groups_that_share_no_kind_take_as_long_as_alone():
    """Two groups with kinds of their own: the other group's jobs change nothing."""
    apart = np.eye(2, dtype=bool)
    check_ins = CheckIns(np.arange(1.0, 401), np.arange(400) % 2, np.zeros(400), np.full(400, np.inf))
    both = jobs([7, 9, 11, 5], [3, 3, 2, 4], group=[0, 0, 1, 1])
    together = JobSimulation(both, check_ins, apart, SCHEDULES["venn"]).run().seconds
    for group, rows in ((0, [0, 1]), (1, [2, 3])):
        alone = jobs(both.demand[rows], both.rounds[rows], group=[group] * 2)
        np.testing.assert_array_equal(
            JobSimulation(alone, check_ins, apart, SCHEDULES["venn"]).run().seconds, together[rows]
        )


def test_phones_are_of_the_kinds_and_as_fast_as_published():
    check_ins = CheckIns.poisson(4.0, 200_000, 0)
    assert 200_000 / check_ins.time[-1] == pytest.approx(4.0, rel=0.01)
    shares = np.bincount(check_ins.kind) / 200_000
    np.testing.assert_allclose(shares, np.array(list(KINDS.values())) / 959, atol=0.005)
    assert not ELIGIBLE[:, list(KINDS).index("none")].any()


def test_the_quick_page_has_every_schedule_and_no_ineligible_assignment(tmp_path_factory):
    _, found = quick(tmp_path_factory, "venn-ratios")
    assert list(found["venn-ratios"].table["schedule"]) == list(SCHEDULES)
    assert verdicts(found["venn-ratios"], "not eligible") == [HOLDS]
