"""Rounds that wait for everyone."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from mmfl.federation import Durations, RoundView
from mmfl.pace.base import Ending, Requests, RoundPace, row_completion


@dataclass(frozen=True, kw_only=True)
class Barrier(RoundPace):
    """A round ends when all its trainings are done, or the sessions of those that are not are over.

    The update of a lost client is missing; the others are divided by the probability that they would be there.
    """

    name: ClassVar[str] = "barrier"

    def end(self, requests: Requests, view: RoundView, durations: Durations, state: Any) -> Ending:
        """Everyone who was not lost is used. Of trainings that wait for others it is known how long they wait."""
        completion, waits = row_completion(requests, view), requests.start > 0
        if waits.any() and requests.lost.any():
            rest = (requests.reachable - requests.start)[:, None]
            law = durations.rows(requests.client, requests.task)
            completion = np.where(waits, law.completion(rest)[:, 0], completion)
        return Ending.of(requests, ~requests.lost, completion, "lost", np.full(len(requests), np.inf))


@dataclass(frozen=True, kw_only=True)
class Rounds(Barrier):
    """Rounds without a duration; where clients have devices, those of `barrier`. The default."""

    name: ClassVar[str] = "rounds"
    needs_devices: ClassVar[bool] = False
