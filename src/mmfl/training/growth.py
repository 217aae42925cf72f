"""A replica whose federation has got another task: what it remembers gets room for it, and nothing else changes."""

from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np
from torch import Tensor

from mmfl.engine import Engine
from mmfl.training.replica import Replica


def make_room_for_tasks(replica: Replica, engine: Engine) -> None:
    """Adds to the state what new tasks, the last of the federation, begin with.

    The rest of the state stays. So the run goes on as one whose new tasks have just arrived.
    """
    old, tasks = replica.state, len(replica.federation.tasks)
    keep_best, average = old.best is not None, None if old.average is None else old.average.setting
    start = Replica.start(replica.federation, replica.method, replica.seed, replica.rate, engine, keep_best, average)
    replica.state = carry_over(old, start.state, len(old.weights), tasks)


def carry_over(old: Any, start: Any, before: int, tasks: int) -> Any:
    """What was remembered of `before` tasks, with the beginning of what is remembered of `tasks`.

    Lists and axes of arrays as long as there were tasks grow; all else is as it was.

    >>> carry_over([np.array([3, 4]), "x"], [np.array([0, 0, 0]), "y", "z"], 2, 3)
    [array([3, 4]), 'x', 'z']
    >>> carry_over({"count": np.array([[3, 4]])}, {"count": np.zeros((1, 3), dtype=int)}, 2, 3)
    {'count': array([[3, 4, 0]])}
    """
    if isinstance(old, np.ndarray | Tensor):
        return _grown(old, start, before, tasks)
    if isinstance(old, list | tuple) and len(old) == before and len(start) == tasks:
        return type(old)([*old, *start[before:]])
    if is_dataclass(type(old)) and type(old) is type(start):
        values = {f.name: (getattr(old, f.name), getattr(start, f.name)) for f in fields(old) if f.init}
        return replace(old, **{name: carry_over(*pair, before, tasks) for name, pair in values.items()})
    if isinstance(old, dict) and isinstance(start, dict):
        return {key: carry_over(value, start.get(key), before, tasks) for key, value in old.items()}
    return old


def _grown(old: Any, start: Any, before: int, tasks: int) -> Any:
    """An array with more room where there are tasks; one of any other shape follows who is there, and stays."""
    if not isinstance(start, np.ndarray | Tensor) or old.shape == start.shape or old.ndim != start.ndim:
        return old
    if any(a != b and (a, b) != (before, tasks) for a, b in zip(old.shape, start.shape, strict=True)):
        return old
    grown = start.clone() if isinstance(start, Tensor) else start.copy()
    grown[tuple(slice(n) for n in old.shape)] = old
    return grown
