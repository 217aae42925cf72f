"""Intersection resource scheduling: which kinds of devices serve which requests."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mmfl.allocation.irs import intersection_resource_schedule as schedule


@st.composite
def markets(draw):
    """Requests of some groups, which kinds each group can use, and the supply of each kind."""
    groups, kinds, requests = draw(st.integers(1, 4)), draw(st.integers(1, 6)), draw(st.integers(1, 12))
    row = st.lists(st.booleans(), min_size=kinds, max_size=kinds)
    eligible = np.array(draw(st.lists(row, min_size=groups, max_size=groups)))
    demand = np.array(draw(st.lists(st.integers(0, 50), min_size=requests, max_size=requests)))
    group = np.array(draw(st.lists(st.integers(0, groups - 1), min_size=requests, max_size=requests)))
    supply = np.array(draw(st.lists(st.integers(0, 1000), min_size=kinds, max_size=kinds)), dtype=float)
    return demand, group, eligible, supply


@given(markets())
def test_a_device_serves_only_requests_that_it_is_eligible_for_and_that_need_one(market):
    demand, group, eligible, _ = market
    request = schedule(*market)
    served = request >= 0
    assert eligible[group[request[served]], np.flatnonzero(served)].all()
    assert (demand[request[served]] > 0).all()


@given(markets())
def test_within_a_group_the_smallest_request_is_first(market):
    demand, group, _, _ = market
    for request in schedule(*market):
        if request >= 0:
            own = demand[(group == group[request]) & (demand > 0)]
            assert demand[request] == own.min()


@given(markets())
def test_no_useful_device_is_idle_while_everybody_waits_for_the_same(market):
    """With one group it is smallest-demand-first: every eligible kind serves the smallest request."""
    demand, _, eligible, supply = market
    request = schedule(demand, np.zeros_like(demand), eligible[:1], supply)
    if (demand > 0).any():
        smallest = int(np.flatnonzero(demand > 0)[demand[demand > 0].argmin()])
        assert (request == np.where(eligible[0], smallest, -1)).all()
    else:
        assert (request == -1).all()


@given(st.lists(st.integers(1, 50), min_size=1, max_size=5), st.lists(st.integers(1, 50), min_size=1, max_size=5),
       st.lists(st.integers(0, 500), min_size=4, max_size=4))  # fmt: skip
def test_groups_that_share_no_kind_never_exchange_devices(one, other, supply):
    eligible = np.array([[True, True, False, False], [False, False, True, True]])
    group = np.repeat([0, 1], [len(one), len(other)])
    request = schedule(np.array(one + other), group, eligible, np.array(supply, dtype=float))
    assert (group[request] == [0, 0, 1, 1]).all()


def test_scarce_devices_are_kept_for_those_who_can_use_nothing_else():
    """A small job that can use any device does not get the few that a large one needs."""
    eligible, supply = np.array([[True, True], [False, True]]), np.array([800.0, 200.0])
    assert schedule(np.array([5, 100]), np.array([0, 1]), eligible, supply).tolist() == [0, 1]


def test_a_group_with_many_waiting_requests_for_each_of_its_devices_takes_over_a_scarcer_one():
    eligible, supply = np.array([[True, True], [False, True]]), np.array([100.0, 900.0])
    demand, group = np.array([5] * 9 + [4000]), np.array([0] * 9 + [1])
    assert schedule(demand, group, eligible, supply).tolist() == [0, 0]


def test_without_a_scarcer_request_its_devices_serve_the_others():
    eligible, supply = np.array([[True, True], [False, True]]), np.array([800.0, 200.0])
    assert schedule(np.array([5, 0]), np.array([0, 1]), eligible, supply).tolist() == [0, 0]
