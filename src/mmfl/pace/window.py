"""Rounds with a window, after which late updates still count."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from mmfl.aggregation import AggregationRule
from mmfl.allocation import AllocationRule
from mmfl.checks import check, is_number
from mmfl.errors import UserError
from mmfl.federation import Durations, Federation, RoundView
from mmfl.federation.sessions import AlwaysOn
from mmfl.pace.base import Ending, Numbers, Requests, RoundPace


@dataclass(frozen=True, eq=False, kw_only=True)
class Window(RoundPace):
    """A round ends after so many `seconds`, or before, once all its trainings are done. Updates that come later join
    the next aggregation, although they began at earlier weights.

    Nothing is lost, so every update counts once and the only bias is that of staleness. What takes more than `late`
    seconds beyond the window is dropped (by default nothing), and the others are divided by the probability of that.
    A client whose processors are all busy starts its next training when one is free, so one that is drawn faster than
    it trains falls further and further behind. Statistics of batch norm are not late.
    """

    name: ClassVar[str] = "window"
    keeps_late: ClassVar[bool] = True

    seconds: float
    late: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        where = f"pace '{self.name}'"
        right = self.seconds == np.inf or is_number(self.seconds, 1e-9, np.inf)
        check(right, where, "seconds", self.seconds, "a positive number of seconds")
        right = self.late is None or is_number(self.late, 0, np.inf)
        check(right, where, "late", self.late, "a number of seconds, at least 0")

    def check(
        self, method: str, allocation: AllocationRule, aggregation: AggregationRule, federation: Federation
    ) -> None:
        """Nothing may rest on the updates of everyone, and clients must stay in reach."""
        super().check(method, allocation, aggregation, federation)
        self.check_needs_everyone(method, allocation, aggregation, "late ones come in a later round")
        assert federation.devices is not None
        if not isinstance(federation.devices.sessions, AlwaysOn):
            raise UserError(
                f"method '{method}': pace '{self.name}': late updates are weighted by their clients' share of the data "
                "when they join, but clients get out of reach here; expected devices without sessions, or 'deadline'."
            )

    def begin(self, view: RoundView, durations: Durations, reachable: Numbers, state: Any) -> RoundView:
        """The probability that nothing is too late."""
        return self.with_completion(view, self.chance(durations, reachable, self._limit))

    @property
    def _limit(self) -> float:
        """After how many seconds a training is dropped."""
        return np.inf if self.late is None else self.seconds + self.late

    def end(self, requests: Requests, view: RoundView, durations: Durations, state: Any) -> Ending:
        """Who is done when the window closes is used now, others later."""
        limit = self._limit
        used = requests.finish <= limit
        completion = np.ones(len(requests))
        if np.isfinite(limit) and len(requests):
            law = durations.rows(requests.client, requests.task)
            completion = law.completion((limit - requests.start)[:, None])[:, 0]
        ending = Ending.of(requests, used, completion, "deadline", np.full(len(requests), limit))
        closed = min(self.seconds, ending.seconds)
        stop = np.where(used, np.maximum(requests.finish, closed), ending.stop)
        return Ending(closed, used, ending.completion, ending.cause, stop, used & (requests.finish > closed))
