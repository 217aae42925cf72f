"""How updates become weights: by hand, and on average over all draws."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from conftest import every_draw, view_of
from mmfl.aggregation import Average, SelfNormalised, Unbiased, inverse_probability
from mmfl.allocation import Allocation, LossVariance, RandomProcessors
from mmfl.training.diagnostics import loss_variance, step_size, update_variance
from mmfl.updates import Trained, Updates

VIEW = view_of([[10, 5], [30, 0], [0, 15]], [2, 1, 1], 1.7, losses=[[2.0, 0.5], [0.4, 0.0], [0.0, 1.5]])
FULL_UPDATE = torch.tensor(
    [[[1.0, -2.0, 0.5], [3.0, 1.0, 0.0]], [[0.2, 4.0, -1.0], [9.0] * 3], [[9.0] * 3, [-1.0, 1.0, 2.0]]],
    dtype=torch.float64,
)

ONCE = np.ones(2, dtype=int)


def received(task: int, allocation: Allocation) -> Updates:
    """What the drawn clients send when client i's update for task s is FULL_UPDATE[i, s]."""
    client = allocation.client[allocation.rows(task)]
    return Updates.of(task, Trained(client, FULL_UPDATE[client, task], np.ones(len(client)), client), allocation)


def moments(probabilities, task, measure):
    """Mean and variance (summed over components) of `measure(updates)` over every draw."""
    draws = [
        (chance, np.atleast_1d(measure(received(task, Allocation.of(count, probabilities)))))
        for chance, count in every_draw(probabilities, VIEW.capacity)
    ]
    mean = sum(chance * value for chance, value in draws)
    return mean, sum(chance * ((value - mean) ** 2).sum() for chance, value in draws)


@pytest.fixture(params=[0.4, 1.7, 3.5])
def budget(request):
    return request.param


@pytest.fixture(params=[(1.0, 1.0), (3.0, 0.5)], ids=["", "priorities"])
def priority(request):
    return np.array(request.param)


@pytest.fixture(params=[RandomProcessors(), LossVariance()], ids=["random", "lvr"])
def probabilities(request, budget, priority):
    return request.param.allocate(replace(VIEW, budget=budget, priority=priority), None)[0].probabilities


@pytest.mark.parametrize("task", [0, 1])
class TestOverAllDraws:
    def test_sampled_step_equals_full_step_and_varies_as_the_formula_says(self, probabilities, task):
        def step(updates):
            return -Unbiased().aggregate(torch.zeros(3, dtype=torch.float64), updates, VIEW, None)[0].numpy()

        mean, variance = moments(probabilities, task, step)
        np.testing.assert_allclose(mean, VIEW.share[:, task] @ FULL_UPDATE[:, task].numpy(), atol=1e-12)
        everyone = Allocation.of(VIEW.able.astype(np.int64), probabilities)
        assert update_variance(VIEW, everyone, received(task, everyone)) == pytest.approx(variance, rel=1e-9)

    def test_step_size_is_one_and_varies_like_the_loss_of_clients_whose_loss_is_one(self, probabilities, task):
        mean, variance = moments(probabilities, task, lambda updates: step_size(updates, VIEW))
        assert mean[0] == pytest.approx(1, rel=1e-12)
        ones = VIEW.with_signals(losses=np.ones((3, 2)))
        nobody = Allocation.of(np.zeros((3, 2), dtype=np.int64), probabilities)
        assert loss_variance(ones, nobody, task) == pytest.approx(variance, rel=1e-9)

    def test_sampled_loss_is_the_global_loss_and_varies_by_z_l(self, probabilities, task):
        def sampled(updates):
            share, B = VIEW.share[updates.client, task], VIEW.capacity[updates.client]
            return (updates.count * share * VIEW.losses[updates.client, task] / (B * updates.probability)).sum()

        mean, variance = moments(probabilities, task, sampled)
        assert mean[0] == pytest.approx(VIEW.share[:, task] @ VIEW.losses[:, task], rel=1e-12)
        nobody = Allocation.of(np.zeros((3, 2), dtype=np.int64), probabilities)
        assert loss_variance(VIEW, nobody, task) == pytest.approx(variance, rel=1e-9)


def two_rows(count=(1, 1)) -> Updates:
    flat = torch.tensor([[1.0, 2.0], [-4.0, 8.0]])
    return Updates(0, np.array([0, 1]), np.array(count), np.array([0.25, 0.5]), flat, np.zeros(2), ONCE[:2])


def test_average_is_the_mean_of_returned_weights_by_number_of_examples():
    start = torch.tensor([1.0, 1.0])
    after, _ = Average().aggregate(start, two_rows(), VIEW, None)
    returned = [np.array([0.0, -1.0]), np.array([5.0, -7.0])]
    np.testing.assert_allclose(after, (10 * returned[0] + 30 * returned[1]) / 40)


def test_unbiased_step_by_hand_with_a_client_drawn_twice():
    after, _ = Unbiased().aggregate(torch.zeros(2), two_rows(count=(2, 1)), VIEW, None)
    # d/(B p) = (10/40)/(2 * 0.25) = 1/2, twice; and (30/40)/(1 * 0.5) = 3/2.
    np.testing.assert_allclose(after, [-(2 * 0.5 * 1 + 1.5 * -4), -(2 * 0.5 * 2 + 1.5 * 8)])


def test_unweighted_average_counts_every_processor_alike():
    after, _ = Average(weighted=False).aggregate(torch.zeros(2), two_rows(count=(2, 1)), VIEW, None)
    np.testing.assert_allclose(after, [-(2 * 1 - 4) / 3, -(2 * 2 + 8) / 3])


@pytest.mark.parametrize("p", [1.0, 0.25])
def test_with_equal_data_and_everyone_drawn_the_unbiased_step_is_the_average_step_over_p(p):
    view = view_of([[7]] * 4)
    ones, flat = np.ones(4, dtype=int), torch.randn(4, 5, generator=torch.Generator().manual_seed(0))
    updates = Updates(0, np.arange(4), ones, np.full(4, p), flat, np.zeros(4), ones)
    unbiased, weighted, plain, normalised = (
        rule.aggregate(torch.zeros(5), updates, view, None)[0]
        for rule in (Unbiased(), Average(), Average(weighted=False), SelfNormalised())
    )
    torch.testing.assert_close(plain, -flat.mean(0))
    for step in (weighted, normalised, p * unbiased):
        torch.testing.assert_close(step, plain)


@given(st.lists(st.tuples(st.integers(1, 3), st.floats(0.05, 1)), min_size=2, max_size=2))
def test_self_normalised_is_unbiased_divided_by_the_step_size(drawn):
    count, p = (np.array(column) for column in zip(*drawn, strict=True))
    updates = replace(two_rows(count), probability=p)
    steps = [rule.aggregate(torch.zeros(2), updates, VIEW, None)[0] for rule in (SelfNormalised(), Unbiased())]
    torch.testing.assert_close(steps[0] * step_size(updates, VIEW), steps[1], rtol=1e-4, atol=1e-5)
    # Its weights are a mean's: they give back what all clients agree on.
    agreed = replace(updates, rows=torch.tensor([[3.0, -1.0], [3.0, -1.0]]))
    torch.testing.assert_close(
        SelfNormalised().aggregate(torch.zeros(2), agreed, VIEW, None)[0], torch.tensor([-3.0, 1.0])
    )


def test_a_client_that_was_not_drawn_has_no_weight_even_if_it_could_not_be():
    updates = replace(two_rows(count=(0, 1)), probability=np.array([0.0, 0.5]))
    assert inverse_probability(updates, VIEW).tolist() == [0.0, 1.5]


@pytest.mark.parametrize("rule", [Average(), Average(weighted=False), Unbiased(), SelfNormalised()])
def test_weights_stay_where_nobody_trained(rule):
    nobody = Updates(
        0, *[np.zeros(0, dtype=int)] * 2, np.zeros(0), torch.zeros(0, 2), np.zeros(0), np.zeros(0, dtype=int)
    )
    start = torch.tensor([3.0, -1.0])
    assert torch.equal(rule.aggregate(start, nobody, VIEW, None)[0], start)


@given(
    st.lists(st.sampled_from(["good", "nan", "inf", "opposite infinities", "nan loss"]), min_size=0, max_size=6),
    st.integers(0, 99),
)
def test_valid_updates_are_those_without_a_non_finite_number(rows, seed):
    spoilers = {"nan": [np.nan], "inf": [np.inf], "opposite infinities": [np.inf, -np.inf]}
    n, rng = len(rows), np.random.default_rng(seed)
    flat, loss = rng.normal(size=(n, 3)), rng.random(n)
    for row, kind in enumerate(rows):
        places = rng.permutation(3)[: len(spoilers.get(kind, []))]
        flat[row, places] = spoilers.get(kind, [])
        loss[row] = np.nan if kind == "nan loss" else loss[row]
    client, p = rng.permutation(n), rng.random(n)
    kept = Updates(0, client, client + 1, p, torch.from_numpy(flat), loss, client).valid()
    good = np.array([kind == "good" for kind in rows], dtype=bool)
    for mine, given_ in (
        (kept.client, client),
        (kept.count, client + 1),
        (kept.probability, p),
        (kept.flat.numpy(), flat),
        (kept.loss, loss),
    ):
        np.testing.assert_array_equal(mine, given_[good])


def test_valid_updates_keep_a_row_of_finite_numbers_whose_sum_is_too_large_for_float32():
    updates = Updates(0, np.array([0]), np.array([1]), np.array([1.0]), torch.full((1, 3), 3e38), np.zeros(1), ONCE[:1])
    assert len(updates.valid()) == 1
