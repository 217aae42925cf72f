"""Checks of what the rules of a method return: a mistake in your own rule is reported, not trained on.

They look at whole arrays once or at drawn rows only, so that they do not slow down a round.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mmfl.aggregation import AggregationRule
from mmfl.allocation import Allocation, AllocationRule
from mmfl.allocation.probabilities import ByKind
from mmfl.errors import UserError, nearest
from mmfl.federation import RoundView

SIGNALS = ("losses", "norms", "residuals", "updates", "expected_residuals")
"""What an allocation may ask for before it decides."""

_Complaint = Callable[[str], UserError]
_ROUNDING = 1e-9  # by which probabilities may sum to more than 1
_HUGE = 1e12  # weights and updates beyond it belong to a model that has diverged: no rule can keep them finite


def check_signals(method: str, rule: AllocationRule, asked: Any, view: RoundView) -> None:
    """Refuses signals that do not exist, and those of pairs that are not there."""
    say = _complaint(method, rule, "asks", view.round)
    if not isinstance(asked, Mapping):
        raise say(f"gave a {type(asked).__name__}; expected signals by name, each with its pairs [clients, tasks].")
    for name, pairs in asked.items():
        if name not in SIGNALS:
            raise say(f"asks for an unknown signal '{name}': {nearest(str(name), SIGNALS)}")
        if name == "expected_residuals" and name not in rule.needs:
            raise say(f"asks for {name}, which are kept from the first round on only if `needs` names them.")
        if not isinstance(pairs, np.ndarray) or pairs.dtype != bool or pairs.shape != view.sizes.shape:
            raise say(f"must mark the pairs whose {name} it wants, as booleans {list(view.sizes.shape)}.")
        if (pairs & ~view.able).any():
            client, task = np.argwhere(pairs & ~view.able)[0].tolist()
            raise say(f"wants {name} of client {client} for task number {task}, which it cannot train this round.")


def check_allocation(method: str, rule: AllocationRule, returned: Any, view: RoundView, state: Any) -> None:
    """Refuses what is not an allocation, cannot be trained or cannot be weighted; and a state that was forgotten."""
    say = _complaint(method, rule, "allocate", view.round)
    if not isinstance(returned, tuple) or len(returned) != 2 or not isinstance(returned[0], Allocation):
        raise say(f"gave {_kind(returned)}; expected a pair (mmfl.Allocation, state).")
    allocation = returned[0]
    check_state(method, rule, "allocate", view.round, state, returned[1])
    _check_probabilities(say, allocation, view)
    _check_draw(say, allocation, view)


def _check_probabilities(say: _Complaint, allocation: Allocation, view: RoundView) -> None:
    given = allocation.given_probabilities
    p = given.rows if isinstance(given, ByKind) else given
    if not isinstance(p, np.ndarray) or given.shape != view.sizes.shape:
        raise say(f"gave probabilities of shape {list(np.shape(given))}; expected {list(view.sizes.shape)}.")
    together = p.max(initial=0.0) if allocation.beyond_capacity else p @ np.ones(p.shape[1])
    if not (p.min(initial=0.0) >= 0 and np.max(together, initial=0.0) <= 1 + _ROUNDING):  # so it is with a nan
        p = allocation.probabilities
        together = p @ np.ones(p.shape[1])
        wrong = ~((p >= 0) & (p <= 1 + _ROUNDING))
        if wrong.any():
            client, task = np.argwhere(wrong)[0].tolist()
            value = p[client, task]
            raise say(f"gave client {client} the probability {value} of task number {task}; expected 0 to 1.")
        client = int(np.argmax(together))
        raise say(f"gave client {client} probabilities that sum to {together[client]:.6g}; a processor takes one task.")


def _check_draw(say: _Complaint, allocation: Allocation, view: RoundView) -> None:
    client, task, count = allocation.client, allocation.task, allocation.count
    shapes = {np.shape(each) for each in (client, task, count, allocation.probability)}
    if len(shapes) > 1 or len(next(iter(shapes))) != 1:
        raise say("gave rows of different lengths; expected client, task, count and probability of each.")
    for name, column, end in (("client", client, len(view.sizes)), ("task", task, view.sizes.shape[1])):
        if column.dtype.kind not in "iu" or (len(column) and not (column.min() >= 0 and column.max() < end)):
            raise say(f"gave {name} numbers beyond 0 to {end - 1}.")
    if count.dtype.kind not in "iu" or (count < 1).any():
        raise say(f"drew somebody {count.min() if len(count) else 0} times; expected whole numbers of at least 1.")
    pair = client * view.sizes.shape[1] + task
    if len(np.unique(pair)) < len(pair):
        raise say("drew the same client for the same task in two rows; expected one row with their count.")
    for wrong, text in (
        (view.sizes[client, task] == 0, "which it cannot train this round"),
        (~(allocation.probability > 0), "with a probability that is not above 0: weights are divided by it"),
        (
            allocation.probability != allocation.given_probabilities[client, task],
            "with another probability than its table has",
        ),
    ):
        if wrong.any():
            row = int(np.argmax(wrong))
            raise say(f"drew client {client[row]} for task number {task[row]}, {text}.")
    if not allocation.beyond_capacity:
        drawn, place = np.unique(client, return_inverse=True)
        trainings = np.bincount(place, count, minlength=len(drawn))
        if (over := trainings > view.capacity[drawn]).any():
            who, times = drawn[over][0], trainings[over][0]
            raise say(f"drew client {who} for {times:.0f} trainings; its capacity is {view.capacity[who]}.")


def check_aggregation(
    method: str, rule: AggregationRule, returned: Any, task: str, round: int, weights: Tensor, state: Any
) -> None:
    """Refuses what are not weights of the task, and a state that was forgotten; `check_finite` comes later."""
    say = _complaint(method, rule, "aggregate", round)
    if not isinstance(returned, tuple) or len(returned) != 2 or not isinstance(returned[0], Tensor):
        raise say(f"gave {_kind(returned)} for task '{task}'; expected a pair (weights, state).")
    for name in ("shape", "dtype", "device"):
        found, expected = getattr(returned[0], name), getattr(weights, name)
        if found != expected:
            raise say(f"gave weights of {name} {_plain(found)} for task '{task}'; expected {_plain(expected)}.")
    check_state(method, rule, "aggregate", round, state, returned[1])


def check_finite(
    method: str, rule: AggregationRule, task: str, round: int, weights: Tensor, before: Tensor, largest: float
) -> None:
    """Refuses weights that are not finite where what they were made of is no cause for that: the weights `before`, and
    updates of which no sum is beyond `largest`."""
    if torch.isfinite(weights).all() or max(float(before.abs().max()), largest) > _HUGE or not before.isfinite().all():
        return
    raise _complaint(method, rule, "aggregate", round)(
        f"gave weights of task '{task}' that are not finite, from weights and updates that are."
    )


def check_state(method: str, rule: Any, hook: str, round: int, before: Any, after: Any) -> None:
    """Refuses a state of another kind than the one that a rule was given: most likely it was forgotten."""
    if type(after) is not type(before):
        raise _complaint(method, rule, hook, round)(
            f"was given {_kind(before)} as its state and gave back {_kind(after)}; expected the state after the round."
        )


def _complaint(method: str, rule: Any, hook: str, round: int) -> _Complaint:
    """The error for a mistake of a rule, which names the rule and the round."""
    return lambda text: UserError(f"method '{method}': {type(rule).__name__}.{hook} in round {round} {text}")


def _kind(value: Any) -> str:
    return "None" if value is None else f"a {type(value).__name__}"


def _plain(value: Any) -> str:
    return str(list(value)) if isinstance(value, torch.Size) else str(value).removeprefix("torch.")
