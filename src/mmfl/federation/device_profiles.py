"""Devices: what each client trains on, and how long that takes."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mmfl.errors import UserError
from mmfl.federation.durations import Certain, Durations, LogNormal, ShiftedExponential
from mmfl.federation.sessions import AlwaysOn, Sessions
from mmfl.federation.work import Work

Numbers = NDArray[np.float64]

REFERENCE = 0.6e9
"""Operations of the model that milliseconds per example are of, unless told otherwise: a forward pass of MobileNetV2 on
a picture of 224 x 224, with 300 million multiplications and as many additions (Sandler et al. 2018)."""


@dataclass(frozen=True)
class Jitter:
    """How the durations of one pair differ from training to training, around their mean.

    Log-normal with standard deviation `sigma` of the logarithm; or, where `shift` is given, exponential after a shift
    that is this share of the mean, one for all tasks or one for each. Neither: no differences.
    """

    sigma: float = 0.0
    shift: float | Sequence[float] | None = None

    def around(self, expected: Numbers) -> Durations:
        """The law with these means."""
        if self.shift is not None:
            return ShiftedExponential(expected, np.asarray(self.shift, dtype=np.float64))
        return LogNormal(expected, self.sigma) if self.sigma else Certain(expected)


@dataclass(frozen=True, eq=False)
class Devices:
    """The clients' devices, an entry for each client.

    - `milliseconds`: for a forward pass of one example of the reference model, whose operations are `reference`. A
      training step takes three times as long as a forward pass.
    - `down`, `up`: Mbit/s. `latency`: seconds. `memory`: bytes; a client cannot train a model that does not fit.
    - `sessions`: when a device can be reached.
    - `seconds` [clients, tasks]: how long trainings take on average, where that is given instead of counted from the
      model; a single column is for all tasks.
    - `jitter`: how durations differ from training to training.
    - `joules_per_second` of training and `joules_per_byte` sent or received, where they are known.
    """

    milliseconds: Numbers
    down: Numbers
    up: Numbers
    latency: Numbers
    memory: Numbers
    sessions: Sessions
    jitter: Jitter = Jitter()
    reference: float = REFERENCE
    seconds: Numbers | None = None
    joules_per_second: Numbers | None = None
    joules_per_byte: Numbers | None = None

    @classmethod
    def timed(cls, seconds: Numbers, jitter: Jitter, sessions: Sessions | None = None) -> "Devices":
        """Devices of which only the durations of trainings are known, [clients, tasks] or [clients, 1]."""
        nothing, everything = np.zeros(len(seconds)), np.full(len(seconds), np.inf)
        known = sessions or AlwaysOn(len(seconds))
        return cls(nothing, everything, everything, nothing, everything, known, jitter, seconds=seconds)

    def __len__(self) -> int:
        return len(self.milliseconds)

    def durations(self, work: Work) -> Durations:
        """T = J (3 epochs examples ms / 1000 x operations / reference + latency + 8 bytes (1 / down + 1 / up))."""
        if self.seconds is not None:
            expected = self._given(work)
        else:
            expected = 3 * work.epochs * self._pass(work) + self.latency[:, None] + self._travel(work, self.down)
            expected = expected + self._travel(work, self.up)
        return self.jitter.around(np.maximum(expected, 1e-9))

    def measuring(self, work: Work) -> Numbers:
        """How long it takes on average to receive the weights and pass once over a client's examples, [clients, tasks]:
        a third of the operations of an epoch."""
        if self.seconds is not None:
            return self._given(work) / (3 * work.epochs)
        return self._pass(work) + self.latency[:, None] + self._travel(work, self.down)

    def fits(self, work: Work) -> NDArray[np.bool_]:
        """Which models fit into the memory of which clients, [clients, tasks]."""
        fits: NDArray[np.bool_] = work.memory <= self.memory[:, None]
        return fits

    def _pass(self, work: Work) -> Numbers:
        """Seconds of a forward pass over a client's examples."""
        relative = work.examples * (work.operations / self.reference)
        return relative * (self.milliseconds[:, None] / 1000)

    def _travel(self, work: Work, rate: Numbers) -> Numbers:
        """Seconds that the weights travel one way."""
        seconds: Numbers = 8 * work.bytes / (1e6 * rate[:, None])
        return seconds

    def _given(self, work: Work) -> Numbers:
        assert self.seconds is not None
        shape = work.examples.shape
        if self.seconds.shape[1] not in (1, shape[1]):
            raise UserError(
                f"devices: durations are given for {self.seconds.shape[1]} tasks; expected one for each of "
                f"the federation's {shape[1]}, or one for all."
            )
        return np.broadcast_to(self.seconds, shape).astype(np.float64)
