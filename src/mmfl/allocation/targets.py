"""Towards targets: more trainings for the tasks that are predicted to need the most to become good."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmfl.allocation.base import Allocation, AllocationRule, AllocationWrapper
from mmfl.checks import check, is_number, is_positive
from mmfl.errors import UserError, nearest
from mmfl.federation import RoundView

_LOSSES = ("training", "measured")
_DISCOUNT = 0.97
_LEAST_ROUNDS = 4
_SLOPES = (0.05, 3.0)
_MOST = 20.0  # times as many trainings as so far, at most, are predicted


@dataclass
class LossCurves:
    """What is known of each task's progress: its `trainings` so far, [tasks], and discounted sums of 1, x, y, x^2 and
    x y over rounds, [5, tasks], for x the logarithm of trainings and y that of the loss."""

    trainings: NDArray[np.float64]
    sums: NDArray[np.float64]

    def remaining(self, targets: NDArray[np.float64]) -> NDArray[np.float64]:
        """How many more trainings until the fitted loss a n^-b meets the target, [tasks]; nan where little is known."""
        number, x, y, xx, xy = self.sums
        with np.errstate(divide="ignore", invalid="ignore"):
            slope = -(number * xy - x * y) / (number * xx - x * x)
            slope = np.clip(np.nan_to_num(slope, nan=_SLOPES[0]), *_SLOPES)
            now = np.log(self.trainings)
            loss = y / number - slope * (now - x / number)
            times = np.expm1(np.clip((loss - np.log(targets)) / slope, 0.0, np.log1p(_MOST)))
            return np.where(number >= _LEAST_ROUNDS, self.trainings * times, np.nan)

    def after(self, losses: NDArray[np.float64], known: NDArray[np.bool_], view: RoundView) -> "LossCurves":
        """With the mean of the known losses [clients, tasks], weighted by examples, at the present number of
        trainings."""
        examples = np.where(known, view.sizes, 0)
        mean = (np.where(known, losses, 0.0) * examples).sum(0) / np.maximum(examples.sum(0), 1)
        valid = (self.trainings > 0) & (mean > 0) & np.isfinite(mean)
        x, y = np.log(np.maximum(self.trainings, 1)), np.log(np.where(valid, mean, 1.0))
        new = np.stack([np.ones_like(x), x, y, x * x, x * y])
        return LossCurves(self.trainings, np.where(valid, _DISCOUNT * self.sums + new, self.sums))


class EqualFinish(AllocationWrapper):
    """Divides the budget so that all tasks are predicted to meet their targets at the same time.

    `targets` are losses, one for each task. A power law of the number of trainings is fitted to the losses so far, and
    a task's priority is multiplied by the trainings that it predicts to be missing; no task gets less than `floor`
    times the mean. If progress is in proportion to trainings, that is the division with which the last task is done
    first: what a training costs cancels, since a task that costs more seconds needs more of them, too. `inner` divides
    trainings by priority and chooses clients, for example by variance per second.

    Losses are "training" losses, which come back anyway, but are those of clients that have begun to fit their own
    data; or "measured" ones of the weights themselves, for which every client evaluates before every round.
    """

    name = "equal-finish"

    def __init__(self, inner: AllocationRule, targets: Sequence[float], floor: float = 0.2, losses: str = "training"):
        super().__init__(inner)
        where = f"allocation '{self.name}'"
        valid = isinstance(targets, Sequence) and len(targets) > 0 and all(is_positive(each) for each in targets)
        check(valid, where, "targets", targets, "positive losses, one for each task")
        check(is_number(floor, 0, 1) and floor > 0, where, "floor", floor, "a number in (0, 1]")
        if losses not in _LOSSES:
            raise UserError(f"{where}: unknown losses '{losses}': {nearest(str(losses), _LOSSES)}")
        self.targets, self.floor, self.measured = np.array(targets, dtype=np.float64), floor, losses == "measured"

    @property
    def needs(self) -> frozenset[str]:  # type: ignore[override]
        """What the inner rule needs, and losses if they are to be measured."""
        return self.inner.needs | {"losses"} if self.measured else self.inner.needs

    def start(self, clients: int, tasks: int) -> LossCurves:
        """Nothing known. The inner rule must not have a memory of its own."""
        if len(self.targets) != tasks:
            raise UserError(f"allocation '{self.name}': {len(self.targets)} targets for {tasks} tasks.")
        if self.inner.start(clients, tasks) is not None:
            inner = type(self.inner).__name__
            raise UserError(f"allocation '{self.name}': {inner} has a memory of its own; expected a rule without one.")
        return LossCurves(np.zeros(tasks), np.zeros((5, tasks)))

    def allocate(self, view: RoundView, state: LossCurves) -> tuple[Allocation, LossCurves]:
        """The inner allocation with priorities by what is missing."""
        if self.measured:
            state = state.after(view.losses, view.able, view)
        allocation, _ = self.inner.allocate(self._urgent(view, state), None)
        return allocation, state

    def asks(self, view: RoundView, state: LossCurves) -> Mapping[str, NDArray[np.bool_]]:
        """What the inner rule asks for, and losses if they are to be measured."""
        inner = self.inner.asks(view, None)
        return {**inner, "losses": view.able} if self.measured else inner

    def report(self, view: RoundView, state: LossCurves) -> Mapping[str, Any]:
        """What the inner rule reports."""
        return self.inner.report(view, None)

    def _urgent(self, view: RoundView, state: LossCurves) -> RoundView:
        """The view with priorities multiplied by the trainings that are missing, where they are known for all."""
        missing = state.remaining(self.targets)
        trains = view.trainable
        if not np.isfinite(missing[trains]).all() or not missing[trains].any():
            return view
        mean = missing[trains].mean()
        factor = np.where(trains, np.maximum(missing / mean, self.floor), 1.0)
        return view.with_priority(view.priority * factor)

    def observe(self, losses: NDArray[np.float64], view: RoundView, state: LossCurves) -> LossCurves:
        """Counts trainings and, unless losses are measured, adds the round to the curves of the tasks that trained."""
        trained = np.isfinite(losses)
        state = LossCurves(state.trainings + trained.sum(0), state.sums)
        return state if self.measured else state.after(losses, trained, view)
