"""What a training costs: one training, its device-seconds, its bytes, or your own numbers."""

from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mmfl.errors import UserError, nearest
from mmfl.federation import RoundView

NamedCost = Literal["trainings", "seconds", "bytes"]
Cost = NamedCost | ArrayLike
"""A name, or a number for each task [tasks] or for each client and task [clients, tasks]."""


def check_cost(cost: Cost) -> Cost:
    """Refuses an unknown name and numbers that are not positive."""
    if isinstance(cost, str):
        if cost not in get_args(NamedCost):
            raise UserError(f"allocation: unknown cost '{cost}': {nearest(cost, get_args(NamedCost))}")
        return cost
    try:
        numbers = np.asarray(cost, dtype=np.float64)
    except (TypeError, ValueError):
        numbers = np.full(1, np.nan)
    if numbers.ndim not in (1, 2) or not (np.isfinite(numbers) & (numbers > 0)).all():
        raise UserError(
            f"allocation: cost is {cost!r}; expected 'seconds', 'bytes', or positive numbers, one for each task or a "
            "table [clients, tasks]."
        )
    return numbers


def cost_of(cost: Cost, view: RoundView) -> NDArray[np.float64] | None:
    """The cost of each client's training of each task, [clients, tasks]; None where every training counts one."""
    if isinstance(cost, str):
        if cost == "trainings":
            return None
        if cost == "bytes":
            return np.broadcast_to(view.model_bytes, view.sizes.shape)
        if view.seconds is None:
            raise UserError(
                "allocation: cost is 'seconds', but the federation has no devices, so that trainings take no time; "
                "expected devices=mmfl.devices.phones(), for example."
            )
        return view.seconds
    numbers = np.asarray(cost, dtype=np.float64)
    if numbers.shape not in (view.sizes.shape, view.sizes.shape[1:]):
        raise UserError(
            f"allocation: cost has shape {numbers.shape} for {view.sizes.shape[0]} clients and {view.sizes.shape[1]} "
            "tasks; expected a number for each task, or a table [clients, tasks]."
        )
    return np.broadcast_to(numbers, view.sizes.shape)


def budget_at_cost(cost: NDArray[np.float64], view: RoundView) -> float:
    """What the budget's trainings cost on average if all processors are alike and take one of their client's tasks at
    random, so that methods with the same rate spend as much as `random` does."""
    able = view.able
    mean = (cost * able).sum(1) / np.maximum(able.sum(1), 1)
    return min(1.0, view.budget / max(view.processors, 1)) * float(view.capacity @ mean)
