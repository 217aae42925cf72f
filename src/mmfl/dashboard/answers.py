"""What a browser can ask for: the list of runs and, of a selection, figures, table, log and configuration."""

import hashlib
import json
import threading
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from mmfl.dashboard import log
from mmfl.dashboard.drawing import Selection, figure_json, select, tables_json
from mmfl.dashboard.index import Index
from mmfl.errors import UserError
from mmfl.report.figures import FIGURES
from mmfl.report.interactive import COLUMNS
from mmfl.runs.layout import CONFIG

MAX_COMPARED_RUNS = 24  # as many as colours and dashes tell apart
_KEPT = 100  # answers about selections, a figure each
Query = dict[str, list[str]]
Answer = tuple[bytes | None, str]


class Answers:
    """Answers as JSON, each with a mark that changes with it; None in place of one whose mark is known already.

    Figures and table of a selection are made anew only when its records have changed.
    """

    def __init__(self, folder: Path):
        self.index = Index(folder)
        self.lock = threading.Lock()
        self.kept: OrderedDict[str, bytes] = OrderedDict()
        self.selection, self.versions = Selection(), ""
        self.questions: dict[str, Callable[[Query, str], Answer]] = {
            "runs": self._runs,
            "figures": self._figures,
            "figure": self._figure,
            "table": self._table,
            "log": self._log,
            "config": self._config,
        }

    def to(self, question: str, query: Query, known: str = "") -> Answer:
        """The answer to a question; `known` is the mark of the answer that the browser has."""
        if question not in self.questions:
            raise UserError(f"there is nothing at '{question}'.")
        with self.lock:
            return self.questions[question](query, known)

    def _runs(self, query: Query, known: str) -> Answer:
        runs = [{name: value for name, value in vars(each).items() if name != "config"} for each in self.index.look()]
        answer = {"folder": str(self.index.folder), "runs": runs, "max_compared_runs": MAX_COMPARED_RUNS}
        return _marked(answer, known)

    def _figures(self, query: Query, known: str) -> Answer:
        def named(selection: Selection) -> str:
            return json.dumps({"notes": selection.notes, "names": list(FIGURES) if selection.runs else []})

        return self._of_selection("figures", query, known, named)

    def _figure(self, query: Query, known: str) -> Answer:
        name, columns, dark = query.get("name", [""])[0], _columns(query), query.get("dark") == ["1"]
        make = partial(figure_json, name=name, columns=columns, dark=dark)
        return self._of_selection(f"{name} {columns} {dark}", query, known, make)

    def _table(self, query: Query, known: str) -> Answer:
        return self._of_selection("table", query, known, tables_json)

    def _of_selection(self, kind: str, query: Query, known: str, make: Callable[[Selection], str]) -> Answer:
        ids, beyond = _ids(query)
        summaries = [self.index.run(id).look() for id in ids]
        versions = repr((beyond, [(summary.id, summary.version, summary.damage) for summary in summaries]))
        mark = mark_of(f"{kind} {versions}".encode())
        if mark == known:
            return None, mark
        if mark not in self.kept:
            if versions != self.versions:
                self.selection, self.versions = select(summaries, self.index.records(ids), beyond), versions
            self.kept[mark] = make(self.selection).encode()
        self.kept.move_to_end(mark)
        while len(self.kept) > _KEPT:
            self.kept.popitem(last=False)
        return self.kept[mark], mark

    def _log(self, query: Query, known: str) -> Answer:
        return _marked([{"id": id, "lines": log.lines(self.index.run(id).path)} for id in _ids(query)[0]], known)

    def _config(self, query: Query, known: str) -> Answer:
        texts = {id: (self.index.run(id).path / CONFIG).read_text(errors="replace") for id in _ids(query)[0]}
        return _marked([{"id": id, "text": text} for id, text in texts.items()], known)


def mark_of(content: bytes) -> str:
    """Tells one content from another."""
    return hashlib.sha256(content).hexdigest()[:32]


def _marked(content: Any, known: str) -> Answer:
    body = json.dumps(content).encode()
    mark = mark_of(body)
    return None if mark == known else body, mark


def _ids(query: Query) -> tuple[list[str], int]:
    """The runs that are asked about, each once, and how many are left out because they are too many."""
    ids = list(dict.fromkeys(query.get("run", [])))
    return ids[:MAX_COMPARED_RUNS], len(ids[MAX_COMPARED_RUNS:])


def _columns(query: Query) -> int:
    """Panels beside each other, as the page has room for them."""
    text = query.get("columns", [""])[0]
    return int(text) if text in ("1", "2") else COLUMNS
