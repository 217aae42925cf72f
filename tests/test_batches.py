"""The gradient noise scale: estimated on a quadratic of known noise, and the batch sizes that follow."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmfl.theory import NoiseScale, fastest_batch, progress_per_second, steps_of_equal_progress


@pytest.mark.parametrize("equal", [True, False])
def test_the_estimate_is_the_known_noise_scale_of_a_quadratic(equal):
    """f(w) = |w|^2 / 2 with noise of covariance C on every example: phi = tr C / |w|^2. Unequal numbers of examples
    change nothing on average; 4000 rounds know it to two percent."""
    rng, w = np.random.default_rng(0), np.array([3.0, -1.0, 0.5])
    root = np.array([2.0, 5.0, 1.0])
    examples = np.full(8, 20) if equal else np.array([5, 10, 20, 40, 5, 10, 20, 40])
    scale = NoiseScale(discount=1.0)
    for _ in range(4000):
        g = w + rng.normal(size=(8, 3)) * root / np.sqrt(examples)[:, None]
        scale = scale.observe((g**2).sum(1), float((g.mean(0) ** 2).sum()), examples)
    assert scale.examples == pytest.approx((root**2).sum() / (w**2).sum(), rel=0.02)
    assert scale.noise / 4000 == pytest.approx((root**2).sum(), rel=0.02)


def test_local_steps_of_sgd_on_a_quadratic_give_the_scale_of_its_gradients():
    """Updates of k small steps, divided by k lr, are gradients of k m examples."""
    rng, w, lr, steps, batch = np.random.default_rng(1), np.full(10, 0.7), 1e-3, 5, 4
    scale = NoiseScale(discount=1.0)
    for _ in range(3000):
        weights = np.tile(w, (6, 1))
        for _ in range(steps):
            weights -= lr * (weights + rng.normal(size=weights.shape) * 2.0 / np.sqrt(batch))
        g = (w - weights) / (steps * lr)
        scale = scale.observe((g**2).sum(1), float((g.mean(0) ** 2).sum()), np.full(6, steps * batch))
    assert scale.examples == pytest.approx(10 * 4 / (10 * 0.49), rel=0.05)


def test_a_single_client_or_a_diverged_one_says_nothing():
    known = NoiseScale(noise=3.0, signal=1.0)
    assert known.observe([4.0], 4.0, [10]) == known
    assert known.observe([4.0, np.inf], 4.0, [10, 10]) == known
    assert NoiseScale().examples == 0.0
    assert NoiseScale(noise=1.0, signal=-0.1).examples == np.inf


@given(st.floats(1, 1e3), st.integers(1, 512), st.integers(1, 512), st.floats(0, 1e5))
def test_equal_progress_is_steps_times_examples_times_their_worth(steps, batch, other, noise):
    k = float(steps_of_equal_progress(steps, batch, other, noise))

    def progress(steps, m):
        return steps * m / (noise + m)

    assert progress(k, other) == pytest.approx(progress(steps, batch), rel=1e-12)


@given(st.floats(0, 1e5), st.floats(0, 1.0), st.floats(1e-5, 1.0), st.integers(1, 300))
def test_no_other_batch_makes_more_progress_a_second(noise, per_step, per_example, largest):
    m = int(fastest_batch(noise, per_step, per_example, largest))
    every = progress_per_second(np.arange(1, largest + 1), noise, per_step, per_example)
    assert 1 <= m <= largest
    assert every[m - 1] >= every.max() * (1 - 1e-12)
