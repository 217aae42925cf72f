"""Weighted round robin: how many slots a priority is, and in which order they come."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmfl.allocation.slots import MAX_SLOTS, count_slots, slots_of

PRIORITIES = st.lists(st.integers(1, 7) | st.floats(1e-6, 1e6), max_size=6).map(lambda values: np.array(values, float))


def everything(priority):
    return np.ones(len(priority), dtype=bool)


@pytest.mark.parametrize(
    ("priority", "slots"),
    [
        ([2, 1, 1], [2, 1, 1]),
        ([4, 2, 2], [2, 1, 1]),
        ([0.1, 0.2, 0.3], [1, 2, 3]),
        ([1.5, 1], [3, 2]),
        ([1, 0.7], [10, 7]),
        ([np.pi, 1], [22, 7]),
        ([1.02, 1], [1, 1]),  # 51 to 50 would need a frame of 101 rounds
        ([1e6, 1e-6], [MAX_SLOTS, 1]),
        ([400, 100, 1], [MAX_SLOTS, 25, 1]),
        ([], []),
    ],
)
def test_priorities_as_whole_numbers_of_slots(priority, slots):
    assert count_slots(np.array(priority, dtype=float)).tolist() == slots


@given(PRIORITIES)
def test_slots_are_the_nearest_multiples_of_the_smallest_priority_and_higher_ones_have_no_fewer(priority):
    slots = count_slots(priority)
    assert ((slots >= 1) & (slots <= MAX_SLOTS)).all()
    order = np.argsort(priority, kind="stable")
    assert (np.diff(slots[order]) >= 0).all()
    if len(priority):
        smallest, ratio = slots.min(), priority / priority.min()
        assert smallest <= 10
        few = ratio.max() <= MAX_SLOTS
        exact = np.minimum(smallest * ratio, MAX_SLOTS) if few else np.maximum(MAX_SLOTS * ratio / ratio.max(), 1)
        assert (np.abs(slots - exact) <= 0.5 + 1e-9).all()


@given(PRIORITIES)
def test_every_stretch_from_the_start_of_a_frame_has_each_tasks_share_rounded_down_or_up(priority):
    order, slots = slots_of(priority, everything(priority)), count_slots(priority)
    assert len(order) == slots.sum()
    turns = np.cumsum(order[:, None] == np.arange(len(slots)), axis=0)
    share = np.arange(1, len(order) + 1)[:, None] * slots / max(len(order), 1)
    assert (np.floor(share + 1e-9) <= turns).all()
    assert (turns <= np.ceil(share - 1e-9)).all()


@given(st.floats(1e-6, 1e6), st.lists(st.booleans(), max_size=6))
def test_tasks_of_equal_priority_have_one_slot_each_in_order_and_absent_ones_none(priority, there):
    order = slots_of(np.full(len(there), priority), np.array(there, dtype=bool))
    assert order.tolist() == np.flatnonzero(there).tolist()


def test_only_tasks_that_are_there_count():
    there = np.array([True, False, True, True])
    assert slots_of(np.array([2.0, 0.001, 1.0, 1.0]), there).tolist() == [0, 2, 0, 3]
