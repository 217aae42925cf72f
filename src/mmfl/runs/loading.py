"""Runs read back from their directories."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from mmfl.errors import UserError
from mmfl.record import LastTest, RoundRecord
from mmfl.runs.directory import Pair, RunDirectory
from mmfl.runs.results import Comparison, Run


def load(path: str | Path) -> Comparison:
    """The runs in a directory, from their records.

    >>> load("runs/nothing-here")
    Traceback (most recent call last):
    ...
    mmfl.errors.UserError: 'runs/nothing-here' is not a run directory: it has no config.toml.
    """
    directory = RunDirectory.open(path)
    records = directory.records()
    if not records:
        raise UserError(f"run '{path}' has no finished round yet.")
    return from_records(records, directory.details())


def from_records(
    records: Sequence[RoundRecord], details: Mapping[Pair, Mapping[str, LastTest]] | None = None
) -> Comparison:
    """The runs that records are of, by method and seed, with the details of their last tests."""
    tasks = list(dict.fromkeys(name for record in records for name in record.tasks))
    by_replica: dict[Pair, list[RoundRecord]] = {}
    for record in records:
        by_replica.setdefault((record.method, record.seed), []).append(record)
    tested = details or {}
    return Comparison(
        [Run(known, *pair, tasks, known[0].clients, tested=tested.get(pair, {})) for pair, known in by_replica.items()]
    )
