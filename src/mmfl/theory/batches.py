"""Batch sizes by the gradient noise scale: how much a larger batch is worth, and which one learns fastest on a device.

With B examples a gradient g of mean square |g|^2 has the noise S / B, where S is the trace of the covariance of one
example's gradient. The noise scale phi = S / |g|^2 is the batch at which noise and signal are equal (McCandlish et al.
2018). A step with m examples makes progress in proportion to 1 / (1 + phi / m): relative to a batch m0, examples are
worth (phi + m0) / (phi + m) as much (Pollux; FLAMMABLE).
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class NoiseScale:
    """An estimate of phi from the updates that clients send anyway: discounted sums of S and of |g|^2.

    An update of k steps with m examples each, divided by k times the learning rate, is about the mean gradient of k m
    examples. Updates of n clients and their mean are gradients of two batch sizes, which separates signal and noise.
    What differs between clients' data counts as noise too. Sums are divided at the end, since the mean of ratios would
    be biased.
    """

    noise: float = 0.0
    signal: float = 0.0
    discount: float = 0.9

    def observe(self, squares: ArrayLike, square_of_mean: float, examples: ArrayLike) -> "NoiseScale":
        """After a round in which clients sent gradients of these squared norms [clients], of so many `examples` each
        [clients]; `square_of_mean` is the squared norm of their plain mean. One client alone says nothing."""
        g, e = np.asarray(squares, dtype=np.float64), np.asarray(examples, dtype=np.float64)
        n = len(g)
        if n < 2 or not (np.isfinite(g).all() and np.isfinite(square_of_mean)):
            return self
        inverse = float((1 / e).mean())
        noise = (float(g.mean()) - square_of_mean) / (inverse * (1 - 1 / n))
        signal = square_of_mean - noise * inverse / n
        return replace(self, noise=self.discount * self.noise + noise, signal=self.discount * self.signal + signal)

    @property
    def examples(self) -> float:
        """phi; infinite where no signal is left, 0 before anything is known."""
        if self.noise <= 0:
            return 0.0
        return self.noise / self.signal if self.signal > 0 else float("inf")


def steps_of_equal_progress(steps: float, batch: float, other: ArrayLike, noise_scale: float) -> Numbers:
    """k = k0 (m0 / m) (phi + m) / (phi + m0): how many steps with `other` batches make the progress of these.

    >>> steps_of_equal_progress(100, 10, [10, 20, 1000], 0.0)  # without noise a step is a step
    array([100., 100., 100.])
    >>> steps_of_equal_progress(100, 10, [10, 20, 1000], 1e12).round(3)  # with noise alone an example is an example
    array([100.,  50.,   1.])
    """
    m = np.asarray(other, dtype=np.float64)
    worth = batch / (noise_scale + batch)
    return np.asarray(steps * worth * (noise_scale + m) / m)


def progress_per_second(batch: ArrayLike, noise_scale: float, per_step: ArrayLike, per_example: ArrayLike) -> Numbers:
    """1 / ((1 + phi / m) (a + b m)): steps that take a + b m seconds with m examples; [devices] or any shape."""
    m = np.asarray(batch, dtype=np.float64)
    return np.asarray(m / ((noise_scale + m) * (np.asarray(per_step) + np.asarray(per_example) * m)))


def fastest_batch(
    noise_scale: float, per_step: ArrayLike, per_example: ArrayLike, largest: ArrayLike
) -> NDArray[np.int64]:
    """The batch with the most progress a second on each device: sqrt(phi a / b), as a whole number up to `largest`.

    >>> fastest_batch(400.0, per_step=[0.01, 0.01, 0.0], per_example=[0.001, 0.01, 0.01], largest=64)
    array([63, 20,  1])
    """
    a, b = np.asarray(per_step, dtype=np.float64), np.asarray(per_example, dtype=np.float64)
    limit = np.asarray(largest, dtype=np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        best = np.clip(np.nan_to_num(np.sqrt(noise_scale * a / b), nan=1.0, posinf=np.inf), 1.0, limit)
    low = np.floor(best)
    high = np.minimum(low + 1, limit)
    better = progress_per_second(high, noise_scale, a, b) > progress_per_second(low, noise_scale, a, b)
    return np.asarray(np.where(better, high, low), dtype=np.int64)
