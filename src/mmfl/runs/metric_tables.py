"""Tables of what tests found: all metrics by round, each client's metric, confusion matrices, and final values."""

from collections.abc import Sequence

import pandas as pd

from mmfl.errors import UserError, nearest
from mmfl.record import SPREAD, LastTest, RoundRecord


def all_metrics(records: Sequence[RoundRecord]) -> pd.DataFrame:
    """A row per tested round, task and metric; the main metric of older runs has no name but `metric`."""
    rows = [
        (record.round, name, metric, value)
        for record in records
        for name, task in record.tasks.items()
        for metric, value in (task.metrics or ({} if task.metric is None else {"metric": task.metric})).items()
    ]
    return pd.DataFrame(rows, columns=["round", "task", "metric", "value"]).astype({"value": float})


def final_metrics(records: Sequence[RoundRecord], window: int) -> pd.Series:
    """All metrics, by task and name: means over those of the last so many tested rounds in which they are defined."""
    table = all_metrics(records)
    last = table[table["round"].isin(sorted(set(table["round"]))[-window:])]
    return last.groupby(["task", "metric"], sort=False)["value"].mean()


def final_spread(records: Sequence[RoundRecord], tasks: Sequence[str], window: int) -> pd.DataFrame:
    """How the main metric is distributed over clients, tasks x `SPREAD`, averaged over the last so many tested rounds;
    only tasks whose test examples belong to clients."""
    rows = {}
    for task in tasks:
        spreads = [r.tasks[task].clients for r in records if task in r.tasks and r.tasks[task].clients][-window:]
        if spreads:
            rows[task] = pd.DataFrame(spreads, columns=SPREAD).astype(float).mean()
    return pd.DataFrame.from_dict(rows, orient="index", columns=SPREAD).rename_axis("task")


def client_values(task: str, found: LastTest) -> pd.DataFrame:
    """The main metric of each client, and the number of its test examples; with the owners' names, where there are."""
    if not found.clients:
        raise UserError(f"task '{task}': its test examples belong to no clients, so there is no metric of each.")
    names = {"name": found.names} if found.names else {}
    columns = {**names, "examples": found.examples, "value": found.values}
    return pd.DataFrame(columns, index=pd.Index(found.clients, name="client")).astype({"value": float})


def table_of(task: str, metric: str, found: LastTest) -> pd.DataFrame:
    """A metric that is a table."""
    if metric not in found.tables:
        hint = nearest(metric, found.tables) if found.tables else 'expected Task(metrics=["confusion"]).'
        raise UserError(f"task '{task}' has no table '{metric}': {hint}")
    return pd.DataFrame(found.tables[metric]).rename_axis(index="target", columns="prediction")
