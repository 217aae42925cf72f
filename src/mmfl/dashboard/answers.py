"""What a browser can ask for: the list of runs and, of a selection, figures, table, log and configuration."""

import json
import threading
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

from mmfl.dashboard.drawing import Selection, figure_json, names_json, select, tables_json
from mmfl.dashboard.index import Index
from mmfl.errors import UserError
from mmfl.report.figure import COLUMNS
from mmfl.runs.events import read_events
from mmfl.runs.files import last_lines, previous
from mmfl.runs.layout import CONFIG, LOG, TESTED
from mmfl.runs.listing import RunSummary
from mmfl.runs.live import read_live

MAX_COMPARED_RUNS = 24  # as many as colours and dashes tell apart
_KEPT = 100  # answers about selections, a figure each
_MAX_LOG_BYTES = 1 << 18  # from the end of a file
_MAX_EVENTS = 500  # of a deployment, the latest
Query = dict[str, list[str]]


class Answers:
    """Answers as JSON. Figures and table of a selection are made anew only when its records have changed."""

    def __init__(self, folder: Path):
        self.index = Index(folder)
        self.lock = threading.Lock()
        self.kept: dict[str, str] = {}  # those that were asked for last are last
        self.selection = Selection()
        self.questions: dict[str, Callable[[Query], str]] = {
            "runs": self._runs,
            "figures": partial(self._of_selection, "figures", names_json),
            "figure": self._figure,
            "table": partial(self._of_selection, "table", tables_json),
            "log": self._log,
            "config": self._config,
            "deployment": self._deployment,
        }

    def to(self, question: str, query: Query) -> str:
        """The answer to a question."""
        if question not in self.questions:
            raise UserError(f"there is nothing at '{question}'.")
        with self.lock:
            return self.questions[question](query)

    def _runs(self, query: Query) -> str:
        runs = [
            {name: value for name, value in vars(each).items() if name != "config"} | {"deployed": is_deployed(each)}
            for each in self.index.look()
        ]
        return json.dumps({"folder": str(self.index.folder), "runs": runs, "max_compared_runs": MAX_COMPARED_RUNS})

    def _figure(self, query: Query) -> str:
        name, dark = query.get("name", [""])[0], query.get("dark") == ["1"]
        columns = {"1": 1, "2": 2}.get(query.get("columns", [""])[0], COLUMNS)  # as many as the page has room for
        make = partial(figure_json, name=name, columns=columns, dark=dark)
        return self._of_selection(f"{name} {columns} {dark}", make, query)

    def _of_selection(self, kind: str, make: Callable[[Selection], str], query: Query) -> str:
        ids, beyond = _ids(query)
        runs = [self.index.run(id) for id in ids]
        summaries, paths = [run.look() for run in runs], [run.path for run in runs]
        known = [(summary.id, summary.version, summary.damage) for summary in summaries]
        version = repr((beyond, known, [_time_of(path / TESTED) for path in paths]))
        key = f"{kind} {version}"
        if key not in self.kept and version != self.selection.version:
            self.selection = replace(select(summaries, self.index.records(ids), paths, beyond), version=version)
        self.kept[key] = answer = self.kept.pop(key, None) or make(self.selection)
        if len(self.kept) > _KEPT:
            del self.kept[next(iter(self.kept))]
        return answer

    def _log(self, query: Query) -> str:
        return json.dumps([{"id": id, "lines": log_lines(self.index.run(id).path)} for id in _ids(query)[0]])

    def _config(self, query: Query) -> str:
        texts = {id: (self.index.run(id).path / CONFIG).read_text(errors="replace") for id in _ids(query)[0]}
        return json.dumps([{"id": id, "text": text} for id, text in texts.items()])

    def _deployment(self, query: Query) -> str:
        """The live states and events of deployments; of other runs nothing."""
        found = []
        for id in _ids(query)[0]:
            run = self.index.run(id)
            live, events = read_live(run.path), read_events(run.path)[-_MAX_EVENTS:]
            if live or events:
                shown = {"live": live.to_json() if live else None, "events": [asdict(event) for event in events]}
                found.append({"id": id, "running": run.look().condition == "running", **shown})
        return json.dumps(found)


def is_deployed(run: RunSummary) -> bool:
    """Whether a run is a deployment."""
    return run.config.get("source") == "deployment"


def _time_of(path: Path) -> int:
    """When a file was last written; 0 where there is none."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def _ids(query: Query) -> tuple[list[str], int]:
    """The runs that are asked about, each once, and how many are left out because they are too many."""
    ids = list(dict.fromkeys(query.get("run", [])))
    return ids[:MAX_COMPARED_RUNS], len(ids[MAX_COMPARED_RUNS:])


def log_lines(directory: Path) -> list[str]:
    """What happened to a run and to the nodes of a deployment, a line each, with its time first."""
    return sorted(
        [*_end(previous(directory / LOG)), *_end(directory / LOG), *map(str, read_events(directory))],
        key=lambda line: line[:19],
    )


def _end(path: Path) -> list[str]:
    return [line.decode(errors="replace") for line in last_lines(path, _MAX_LOG_BYTES)[0]]
