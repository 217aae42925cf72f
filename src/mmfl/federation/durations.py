"""Durations: how long local trainings take, as laws that can be sampled and integrated in closed form."""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmfl.randomness import Purpose, bits, normal, uniform

Numbers = NDArray[np.float64]
Index = int | NDArray[np.int64]
Seconds = float | Numbers


class Durations(Protocol):
    """How long local trainings take, [clients, tasks]: a law that can be sampled and integrated in closed form.

    Deadlines are seconds, one for all or an array that broadcasts to [clients, tasks]. A sample is addressed by
    (seed, client, task, ordinal of that client's request for the task), so all methods see the same durations.
    """

    def sample(self, client: Index, task: Index, ordinal: Index, seed: int) -> Numbers:
        """How long some requests take, in seconds."""
        ...

    def mean(self) -> Numbers:
        """E[T], [clients, tasks]."""
        ...

    def completion(self, deadline: Seconds) -> Numbers:
        """P(T <= D), [clients, tasks]."""
        ...

    def mean_until(self, deadline: Seconds) -> Numbers:
        """E[min(T, D)], [clients, tasks]."""
        ...

    def quantile(self, level: Seconds) -> Numbers:
        """The time within which trainings end with this probability, [clients, tasks]."""
        ...

    def rows(self, client: NDArray[np.int64], task: NDArray[np.int64]) -> "Durations":
        """The law of some pairs alone, [pairs, 1]."""
        ...


@dataclass(frozen=True, eq=False)
class LogNormal:
    """T = J E[T], with J log-normal of mean 1: ln J has standard deviation `sigma`.

    >>> law = LogNormal(np.array([[60.0]]), 0.5)
    >>> law.completion(60.0).round(3), law.mean_until(60.0).round(1)
    (array([[0.599]]), array([[48.2]]))
    """

    expected: Numbers
    sigma: float

    def sample(self, client: Index, task: Index, ordinal: Index, seed: int) -> Numbers:
        """exp(sigma z - sigma^2 / 2) E[T], z standard normal."""
        z = normal(bits(*_address(seed, client, task, ordinal))).numpy()
        jitter: Numbers = np.exp(self.sigma * z - self.sigma**2 / 2)
        return np.asarray(self.expected[client, task] * jitter)

    def mean(self) -> Numbers:
        """E[T]."""
        return self.expected

    def completion(self, deadline: Seconds) -> Numbers:
        """Phi((ln(D / E[T]) + sigma^2 / 2) / sigma)."""
        return normal_cdf(self._standard(deadline) + self.sigma / 2)

    def mean_until(self, deadline: Seconds) -> Numbers:
        """E[T] Phi((ln(D / E[T]) - sigma^2 / 2) / sigma) + D P(T > D)."""
        below = self.expected * normal_cdf(self._standard(deadline) - self.sigma / 2)
        return below + _beyond(deadline, 1 - self.completion(deadline))

    def quantile(self, level: Seconds) -> Numbers:
        """E[T] exp(sigma Phi^-1(level) - sigma^2 / 2)."""
        z = torch.special.ndtri(torch.as_tensor(np.asarray(level, dtype=np.float64))).numpy()
        return np.asarray(self.expected * np.exp(self.sigma * z - self.sigma**2 / 2))

    def rows(self, client: NDArray[np.int64], task: NDArray[np.int64]) -> "LogNormal":
        """The same with fewer means."""
        return LogNormal(self.expected[client, task][:, None], self.sigma)

    def _standard(self, deadline: Seconds) -> Numbers:
        with np.errstate(divide="ignore"):
            distance: Numbers = np.log(np.maximum(deadline, 0.0)) - np.log(self.expected)
        return distance / self.sigma


@dataclass(frozen=True, eq=False)
class ShiftedExponential:
    """T = a + Exp(mu), where the shift a is a `share` of E[T] = a + mu, one for all tasks or one for each.

    >>> law = ShiftedExponential(np.array([[3.0]]), np.float64(1 / 3))
    >>> law.completion(1.0), law.completion(3.0).round(3)
    (array([[0.]]), array([[0.632]]))
    """

    expected: Numbers
    share: Numbers | np.float64

    @property
    def shift(self) -> Numbers:
        """a."""
        return self.share * self.expected

    @property
    def scale(self) -> Numbers:
        """mu."""
        return (1 - self.share) * self.expected

    def sample(self, client: Index, task: Index, ordinal: Index, seed: int) -> Numbers:
        """a - mu ln(1 - u), u uniform in [0, 1)."""
        u = uniform(*_address(seed, client, task, ordinal)).numpy()
        share = np.broadcast_to(self.share, self.expected.shape)[client, task]
        return np.asarray(self.expected[client, task] * (share - (1 - share) * np.log1p(-u)))

    def mean(self) -> Numbers:
        """a + mu."""
        return self.expected

    def completion(self, deadline: Seconds) -> Numbers:
        """1 - exp(-(D - a) / mu) after the shift."""
        completed: Numbers = -np.expm1(-np.maximum(deadline - self.shift, 0.0) / self.scale)
        return completed

    def mean_until(self, deadline: Seconds) -> Numbers:
        """min(a, D) + mu P(T <= D)."""
        return np.minimum(self.shift, deadline) + self.scale * self.completion(deadline)

    def quantile(self, level: Seconds) -> Numbers:
        """a - mu ln(1 - level)."""
        quantile: Numbers = self.shift - self.scale * np.log1p(-np.asarray(level, dtype=np.float64))
        return quantile

    def rows(self, client: NDArray[np.int64], task: NDArray[np.int64]) -> "ShiftedExponential":
        """The same with fewer means."""
        share = np.broadcast_to(self.share, self.expected.shape)[client, task][:, None]
        return ShiftedExponential(self.expected[client, task][:, None], share)


@dataclass(frozen=True, eq=False)
class Certain:
    """Every training of a pair takes the same time."""

    expected: Numbers

    def sample(self, client: Index, task: Index, ordinal: Index, seed: int) -> Numbers:
        """E[T]."""
        shape = np.broadcast_shapes(np.shape(client), np.shape(task), np.shape(ordinal))
        return np.broadcast_to(self.expected[client, task], shape)

    def mean(self) -> Numbers:
        """E[T]."""
        return self.expected

    def completion(self, deadline: Seconds) -> Numbers:
        """1 up to the deadline, 0 beyond."""
        return (self.expected <= np.asarray(deadline)).astype(np.float64)

    def mean_until(self, deadline: Seconds) -> Numbers:
        """min(T, D)."""
        return np.minimum(self.expected, deadline)

    def quantile(self, level: Seconds) -> Numbers:
        """E[T], whatever the level."""
        return self.expected + 0 * np.asarray(level, dtype=np.float64)

    def rows(self, client: NDArray[np.int64], task: NDArray[np.int64]) -> "Certain":
        """The same with fewer times."""
        return Certain(self.expected[client, task][:, None])


def _address(seed: int, *numbers: Index) -> list[int | Tensor]:
    tensors: list[Any] = [torch.from_numpy(np.asarray(each, dtype=np.int64)) for each in numbers]
    return [seed, Purpose.DURATION, *tensors]


def normal_cdf(at: Numbers) -> Numbers:
    """The probability that a standard normal number is at most this."""
    found: Numbers = torch.special.ndtr(torch.from_numpy(np.asarray(at))).numpy()
    return found


def _beyond(deadline: Seconds, chance: Numbers) -> Numbers:
    """D P(T > D), which is 0 where there is no deadline."""
    finite = np.where(np.isfinite(deadline), deadline, 0.0)
    return np.asarray(finite * chance)
