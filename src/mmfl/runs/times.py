"""Time on the clock of runs whose clients have devices: rounds, time to a target, and what devices did meanwhile."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from mmfl.checks import check, is_number
from mmfl.errors import UserError, nearest
from mmfl.record import RoundRecord


def timings(records: Sequence[RoundRecord]) -> pd.DataFrame:
    """A row per round: `begin`, `end`, `seconds`, `utilisation`, and the device-seconds wasted by cause (`wasted_lost`
    and so on). No rows without devices."""
    known = [(record.round, record.time) for record in records if record.time is not None]
    causes = sorted({cause for _, time in known for cause in time.wasted})
    rows = {
        round: {
            "begin": time.begin,
            "end": time.end,
            "seconds": time.seconds,
            "busy": time.busy,
            "offered": time.offered,
            "utilisation": time.utilisation,
            **{f"wasted_{cause}": time.wasted.get(cause, 0.0) for cause in causes},
        }
        for round, time in known
    }
    return pd.DataFrame.from_dict(rows, orient="index", dtype=float).rename_axis("round")


def time_to(
    records: Sequence[RoundRecord], tasks: Sequence[str], target: float | Mapping[str, float], lower: Sequence[str]
) -> pd.Series:
    """When each task first reached its target in a tested round, in seconds, and `all` of them; nan where one never
    did. Of the tasks in `lower` the metric must come down to it."""
    targets = dict(target) if isinstance(target, Mapping) else dict.fromkeys(tasks, target)
    for name, value in targets.items():
        if name not in tasks:
            raise UserError(f"unknown task '{name}': {nearest(name, tasks)}")
        check(is_number(value, -np.inf, np.inf), "time_to", "target", value, "a number, or numbers by task")
    if not any(record.time is not None for record in records):
        raise UserError("this run has no clock: its clients have no devices; expected Federation(devices=...).")
    reached = {name: _first(records, name, value, name in lower) for name, value in targets.items()}
    return pd.Series({**reached, "all": max(reached.values(), key=lambda at: np.inf if np.isnan(at) else at)})


def _first(records: Sequence[RoundRecord], task: str, target: float, lower: bool) -> float:
    for record in records:
        metric = record.tasks[task].metric if task in record.tasks else None
        if metric is None or record.time is None:
            continue
        if metric <= target if lower else metric >= target:
            return record.time.end
    return np.nan
