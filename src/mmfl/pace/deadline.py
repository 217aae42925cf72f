"""Rounds with a deadline."""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mmfl.aggregation import AggregationRule
from mmfl.allocation import AllocationRule
from mmfl.checks import check, check_at_least, is_number
from mmfl.errors import UserError, nearest
from mmfl.federation import Durations, Federation, RoundView
from mmfl.pace.base import Ending, Numbers, Requests, RoundPace, row_completion, warn_of_excluded

_WORDS = ("exact", "estimated")
_CUTOFF = 50  # requests after which an interval is taken as ended, so that no estimate of 1/q is beyond it (FedAU)


@dataclass
class Intervals:
    """How many requests pass from one update of a pair that is in time to its next, [clients, tasks]: the requests
    `since` the last one, and the number and the sum of all such intervals.

    Their mean estimates 1/q without bias as they grow in number, where 1/(estimated q) would not (FedAU, Wang & Ji
    2024).
    """

    since: NDArray[np.int64]
    number: NDArray[np.int64]
    total: NDArray[np.int64]

    def completion(self) -> Numbers:
        """1 / mean interval; 1 before there is any."""
        return np.where(self.number > 0, self.number / np.maximum(self.total, 1), 1.0)

    def after(self, client: NDArray[np.int64], task: NDArray[np.int64], used: NDArray[np.bool_]) -> "Intervals":
        """With the requests of a round, and which of them were in time."""
        since, number, total = self.since.copy(), self.number.copy(), self.total.copy()
        since[client, task] += 1
        ended = used | (since[client, task] >= _CUTOFF)
        pair = client[ended], task[ended]
        number[pair] += 1
        total[pair] += since[pair]
        since[pair] = 0
        return Intervals(since, number, total)


@dataclass(frozen=True, eq=False, kw_only=True)
class Deadline(RoundPace):
    """A round ends after so many `seconds`, or before, once all its trainings are done; what is not done is dropped.

    `over` times as many trainings are drawn as the rate says, since some will be dropped (FedScale: 1.3). Updates are
    divided by their `completion` probability, with which the step is that of full participation on average: "exact",
    from the law of the durations; "estimated" from the intervals between a client's updates; or declared, one number
    or an array [clients] or [clients, tasks]. Declared as 1, it is ignored that slow clients are missing.
    """

    name: ClassVar[str] = "deadline"

    seconds: float
    over: float = 1.0
    completion: str | ArrayLike = "exact"

    def __post_init__(self) -> None:
        super().__post_init__()
        where = f"pace '{self.name}'"
        right = self.seconds == np.inf or is_number(self.seconds, 1e-9, np.inf)
        check(right, where, "seconds", self.seconds, "a positive number of seconds")
        check_at_least(where, "over", self.over, 1)
        if isinstance(self.completion, str):
            if self.completion not in _WORDS:
                raise UserError(f"{where}: completion '{self.completion}': {nearest(self.completion, _WORDS)}")
            return
        declared = _numbers(self.completion)
        valid = declared.ndim <= 2 and bool(((declared > 0) & (declared <= 1)).all())
        check(valid, where, "completion", self.completion, "'exact', 'estimated' or probabilities in (0, 1]")

    def start(self, clients: int, tasks: int) -> Intervals | None:
        """No interval yet, where they are needed."""
        nothing = np.zeros((clients, tasks), dtype=np.int64)
        return Intervals(nothing, nothing, nothing) if self._estimated else None

    def check(
        self, method: str, allocation: AllocationRule, aggregation: AggregationRule, federation: Federation
    ) -> None:
        """Somebody must be able to train each task in time, and nothing must rest on the updates of everyone."""
        super().check(method, allocation, aggregation, federation)
        self.check_needs_everyone(method, allocation, aggregation, "slow clients are dropped")
        if self.serial and self._exact and federation.capacity.max() > 1:
            raise UserError(
                f"method '{method}': pace '{self.name}': where clients train one task after another, the probability "
                "to be in time depends on what else they train; expected completion='estimated', or no serial=True."
            )
        self._table(federation.sizes.shape)
        if self._estimated:
            return
        law = federation.durations()
        never = (federation.trainable_sizes == 0) | (law.completion(self.seconds) < self.least)
        for s, task in enumerate(federation.tasks):
            if never[:, s].all():
                usual = law.quantile(0.5)[federation.trainable_sizes[:, s] > 0, s].min()
                raise UserError(
                    f"method '{method}': pace '{self.name}': no client can train task '{task.name}' within "
                    f"{self.seconds:g} s; the fastest usually takes {usual:,.3g} s."
                )
        warn_of_excluded(method, self.name, federation, never)

    def begin(self, view: RoundView, durations: Durations, reachable: Numbers, state: Intervals | None) -> RoundView:
        """Completion probabilities, and the budget for those who will be dropped."""
        more = replace(view, budget=min(self.over * view.budget, float(view.processors)))
        known = self._table(view.sizes.shape) if state is None else state.completion()
        if self._exact:
            known = self.chance(durations, reachable, self.seconds)
        kept = durations.mean_until(np.minimum(reachable, self.seconds)[:, None])
        return self.with_completion(more, known, kept)

    def end(self, requests: Requests, view: RoundView, durations: Durations, state: Intervals | None) -> Ending:
        """Who is done in time is used."""
        if self._exact and (requests.start > 0).any():
            raise UserError(
                f"pace '{self.name}': clients train more tasks at a time than they have processors, so the probability "
                "to be in time depends on what else they train; expected completion='estimated', or pace 'barrier'."
            )
        used = requests.finish <= np.minimum(requests.reachable, self.seconds)
        stop = np.full(len(requests), self.seconds)
        return Ending.of(requests, used, row_completion(requests, view), "deadline", stop)

    def observe(self, requests: Requests, ending: Ending, state: Intervals | None) -> Intervals | None:
        """Counts the round in the intervals."""
        return None if state is None else state.after(requests.client, requests.task, ending.used)

    @property
    def _exact(self) -> bool:
        return isinstance(self.completion, str) and self.completion == "exact"

    @property
    def _estimated(self) -> bool:
        return isinstance(self.completion, str) and self.completion == "estimated"

    def _table(self, shape: tuple[int, ...]) -> Numbers:
        """What was declared, [clients, tasks]; ones where nothing was."""
        declared = np.ones(()) if isinstance(self.completion, str) else _numbers(self.completion)
        declared = declared[:, None] if declared.ndim == 1 else declared
        try:
            return np.broadcast_to(declared, shape)
        except ValueError:
            expected = f"[clients] or [clients, tasks], {list(shape)}"
            raise UserError(
                f"pace '{self.name}': completion has shape {list(declared.shape)}; expected {expected}."
            ) from None


def _numbers(values: ArrayLike) -> NDArray[np.float64]:
    try:
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        return np.zeros(1)
