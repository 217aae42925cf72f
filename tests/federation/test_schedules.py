"""Step sizes and batch sizes that change with the round: against their formulas, and as a task uses them."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import mmfl
from conftest import refusals, refused, toy_task
from mmfl import Federation
from mmfl.federation.schedules import SCHEDULES, Decay, FrameDecay, GrowingShare
from mmfl.registry import build

ROUNDS = range(1, 60)


@given(st.floats(1e-3, 1e3), st.floats(-0.99, 1e3), st.integers(1, 10**6))
def test_decay_is_beta_over_round_plus_gamma(beta, gamma, round):
    assert Decay(beta, gamma)(round) == pytest.approx(beta / (round + gamma), rel=1e-12)


@given(st.floats(1e-3, 1e3), st.floats(-0.99, 1e3), st.integers(1, 9), st.integers(0, 1000))
def test_frame_decay_is_the_decay_of_the_frames_constant_within_each(beta, gamma, tasks, frame):
    steps = {FrameDecay(beta, gamma, tasks)(frame * tasks + place) for place in range(1, tasks + 1)}
    assert steps == {Decay(beta, gamma)(frame + 1)}


@pytest.mark.parametrize("schedule", [Decay(30, 100), Decay(1, -0.5), FrameDecay(5, 10, 3), FrameDecay(1, -0.9, 2)])
def test_step_sizes_are_positive_and_never_grow_and_vanish_in_the_end(schedule):
    steps = [schedule(t) for t in ROUNDS]
    assert all(step > 0 for step in steps)
    assert steps == sorted(steps, reverse=True)
    assert steps[-1] < steps[0]
    assert schedule(10**9) < 1e-6


@given(st.floats(0, 20), st.floats(0.01, 1.0), st.floats(0.1, 10), st.floats(-0.9, 50), st.integers(1, 5))
@example(0.0, 0.1, 1.0, 0.0, 1)
def test_a_growing_share_leaves_out_a_multiple_of_the_step_and_never_falls_below_the_least(
    scale, least, beta, gamma, tasks
):
    step = FrameDecay(beta, gamma, tasks)
    share = GrowingShare(scale, step, least)
    shares = [share(t) for t in ROUNDS]
    assert shares == [pytest.approx(max(least, 1 - scale * step(t))) for t in ROUNDS]
    assert shares == sorted(shares)
    assert all(least <= s <= 1 for s in shares)
    assert share(10**9) == pytest.approx(1, abs=1e-6)


def test_a_growing_share_follows_any_function_of_the_round():
    assert [GrowingShare(2, lambda t: 1 / 2**t)(t) for t in (1, 2, 3)] == [0.1, 0.5, 0.75]


@refusals(
    (lambda: Decay(0, 1), "Decay", "beta is 0", "more than 0"),
    (lambda: Decay(float("nan"), 1), "Decay", "beta is nan", "more than 0"),
    (lambda: Decay(1, -1), "Decay", "gamma is -1", "more than -1"),
    (lambda: FrameDecay(1, 1, 0), "FrameDecay", "tasks is 0", "at least 1"),
    (lambda: GrowingShare(-0.1, Decay(1, 1)), "GrowingShare", "scale is -0.1", "at least 0"),
    (lambda: GrowingShare(1, Decay(1, 1), 0), "GrowingShare", "least is 0", "more than 0"),
    (lambda: GrowingShare(1, Decay(1, 1), 32), "GrowingShare", "least is 32", "at most 1"),
    (lambda: GrowingShare(1, 0.5), "GrowingShare", "step is 0.5", "a schedule"),
    (lambda: build("schedule", {"name": "decay", "beta": 1}, SCHEDULES), "'decay'", "gamma"),
    (lambda: build("schedule", {"name": "decay", "beta": "1", "gamma": 1}, SCHEDULES), "Decay", "beta is '1'"),
    (lambda: build("schedule", {"name": "growing", "scale": 1, "step": 0.1}, SCHEDULES), "step is 0.1", "a schedule"),
)
def test_settings_without_meaning_are_refused(make, words):
    with refused(*words):
        make()


# --- as a task uses them -------------------------------------------------------------

SIZES = np.array([1, 2, 3, 7, 10, 55, 1000])


def test_batches_are_all_of_the_data_by_default_and_a_number_as_far_as_there_is_data():
    assert toy_task().batches(5, SIZES).tolist() == SIZES.tolist()
    assert toy_task(batch_size=8).batches(5, SIZES).tolist() == [1, 2, 3, 7, 8, 8, 8]
    assert toy_task(batch_size=1).batches(5, SIZES).tolist() == [1] * 7


@pytest.mark.parametrize(
    ("share", "expected"), [(1e-9, [1] * 7), (0.5, [1, 1, 2, 4, 5, 28, 500]), (1.0, SIZES.tolist())]
)
def test_batches_of_a_share_are_rounded_up_to_whole_examples(share, expected):
    assert toy_task(batch_size=lambda t: share).batches(1, SIZES).tolist() == expected


def step_of(value):
    """A schedule that gives 0.5, and in round 3 something else."""
    return lambda t: value if t == 3 else 0.5


@pytest.mark.parametrize("share", [0.0, -1.0, 1.5, 32, np.nan, np.inf])
def test_a_batch_schedule_that_gives_no_share_is_refused_with_its_round(share):
    task = toy_task(batch_size=step_of(share))
    assert task.batches(2, SIZES)[-1] == 500
    with refused("'toy'", "batch_size gives", str(float(share)), "in round 3", "(0, 1]"):
        task.batches(3, SIZES)


@pytest.mark.parametrize("rate", [np.nan, np.inf, -0.1])
def test_a_step_size_that_is_none_in_a_later_round_is_refused_before_the_first(rate):
    made = Federation([toy_task(lr=step_of(rate))], clients=4)
    with refused("'toy'", f"lr gives {rate}", "in round 3", "at least 0"):
        mmfl.train(made, "random", rounds=3, rate=0.5)
    mmfl.train(made, "random", rounds=2, rate=0.5)


def test_a_schedule_that_fails_or_gives_no_number_is_refused_with_its_round():
    with refused("'toy'", "lr fails in round 3", "division by zero"):
        toy_task(lr=lambda t: 1 / (3 - t)).check_schedules(9)
    with refused("'toy'", "batch_size fails in round 1", "NoneType"):
        toy_task(batch_size=lambda t: None).check_schedules(9)
    toy_task(lr=lambda t: max(0.0, 0.1 * (3 - t))).check_schedules(9)
