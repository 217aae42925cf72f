"""The runs below a folder, and the records of those that are shown."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from mmfl.errors import UserError, nearest
from mmfl.runs.files import TailReader
from mmfl.runs.layout import CONFIG, METRICS, STATE
from mmfl.runs.listing import RunSummary, WatchedRun
from mmfl.runs.records import Records

_DEPTH = 5  # folders below the one that is served
_MAX_KEPT_BYTES = 100 << 20  # bytes of records that are kept read


class Index:
    """The runs below a folder by their paths in it. Only those that were found there can be reached."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.runs: dict[str, WatchedRun] = {}
        self.read: dict[str, tuple[TailReader, Records]] = {}  # those that were asked for last are last

    def look(self) -> list[RunSummary]:
        """All runs that are there now, the latest first."""
        found = dict(_find(self.folder, "", _DEPTH))
        self.runs = {id: self.runs.get(id) or WatchedRun(id, path) for id, path in found.items()}
        return sorted((run.look() for run in self.runs.values()), key=lambda summary: (-summary.began, summary.id))

    def run(self, id: str) -> WatchedRun:
        """One of the runs that were found."""
        if id not in self.runs:
            self.look()
        if id not in self.runs:
            raise UserError(f"no run '{id}' below {self.folder}: {nearest(id, self.runs)}")
        return self.runs[id]

    def records(self, ids: Sequence[str]) -> list[Records]:
        """The records of some runs; only new lines are read. Those of other runs are kept in memory, up to a limit."""
        for id in ids:
            file, records = self.read.pop(id, (TailReader(self.run(id).path / METRICS), Records()))
            lines, rewritten = file.new_lines()
            records = Records() if rewritten else records
            records.add(lines)
            self.read[id] = file, records
        while len(self.read) > len(ids) and sum(file.offset for file, _ in self.read.values()) > _MAX_KEPT_BYTES:
            del self.read[next(iter(self.read))]
        return [self.read[id][1] for id in ids]


def _find(folder: Path, name: str, depth: int) -> Iterator[tuple[str, Path]]:
    """Names and paths of the runs in a folder and below; a run is not searched for others."""
    try:
        with os.scandir(folder) as entries:
            inside = {entry.name: entry for entry in entries}
    except OSError:
        return
    if CONFIG in inside and (STATE in inside or METRICS in inside):
        yield name or folder.resolve().name, folder
    elif depth:
        for entry in inside.values():
            if entry.is_dir() and not entry.name.startswith("."):
                shown = os.fsencode(entry.name).decode(errors="replace")
                yield from _find(Path(entry.path), f"{name}/{shown}" if name else shown, depth - 1)
