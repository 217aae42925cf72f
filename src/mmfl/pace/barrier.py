"""Rounds that wait for everyone."""

from typing import Any, ClassVar

import numpy as np

from mmfl.federation import RoundView
from mmfl.federation.durations import Durations
from mmfl.pace.base import Ending, Requests, RoundPace, causes


class Barrier(RoundPace):
    """A round ends when all its trainings are done, or the sessions of those that are not are over.

    The update of a lost client is missing; the others are divided by the probability that they would be there.
    """

    name: ClassVar[str] = "barrier"

    def end(self, requests: Requests, view: RoundView, durations: Durations, state: Any) -> Ending:
        """Everyone who was not lost is used."""
        used = requests.finish <= requests.reachable
        assert view.completion is not None
        completion = view.completion[requests.client, requests.task]
        return Ending(requests.last(), used, np.where(used, completion, 1.0), causes(requests, used, "lost"))


class Rounds(Barrier):
    """Rounds without a duration; where clients have devices, those of `barrier`. The default."""

    name: ClassVar[str] = "rounds"
    needs_devices: ClassVar[bool] = False
