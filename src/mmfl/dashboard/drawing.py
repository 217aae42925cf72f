"""What is shown of a selection of runs: the report's figures and the table, of those that can be compared."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mmfl.errors import UserError, first_line, nearest
from mmfl.report.figures import FIGURES
from mmfl.report.interactive import spec_of
from mmfl.report.sources import Source, combine_sources, note
from mmfl.report.tables import paired_differences, results
from mmfl.runs.directory import RunDirectory
from mmfl.runs.layout import METRICS
from mmfl.runs.listing import RunSummary
from mmfl.runs.records import Records
from mmfl.runs.results import Comparison, from_records


@dataclass(frozen=True)
class Selection:
    """Runs that can be compared, if there are any, and notes on them and on those that cannot. `version` changes with
    their records."""

    runs: Comparison | None = None
    notes: list[str] = field(default_factory=list)
    version: str = ""


def select(
    summaries: Sequence[RunSummary], records: Sequence[Records], paths: Sequence[Path], beyond: int = 0
) -> Selection:
    """The runs that have records and the same tasks as the first of them; `paths` are their directories, and `beyond`
    counts further ones that are left out because there are too many."""
    notes = [f"{len(summaries)} runs are compared at most: {beyond} more are left out."] if beyond else []
    known = []
    for summary, found, path in zip(summaries, records, paths, strict=True):
        damage, own = summary.damage or found.problem(), found.all
        if damage:
            notes.append(f"{summary.id} is left out: its {METRICS} is damaged: {damage}.")
        elif not own:
            notes.append(f"{summary.id} has no finished round yet.")
        else:
            notes += [f"{summary.id}: {note}." for note in found.notes()]
            try:
                last_tests = RunDirectory(path).last_tests()
            except UserError as error:
                last_tests = {}
                notes.append(f"{summary.id}: {first_line(error)}")
            known.append((summary, from_records(own, last_tests)))
    if not known:
        return Selection(None, notes)
    first = known[0][0]
    sources = []
    for summary, comparison in known:
        if set(summary.tasks) == set(first.tasks):
            sources.append(Source(summary.id, summary.config, comparison))
        else:
            theirs, ours = (", ".join(each.tasks) for each in (summary, first))
            notes.append(f"{summary.id} is left out: its tasks ({theirs}) are not those of {first.id} ({ours}).")
    notes += [differing] if (differing := note(sources)) else []
    return Selection(combine_sources(sources), notes)


def figure_json(selection: Selection, name: str, columns: int, dark: bool) -> str:
    """A figure as JSON, as plotly.js takes it; null where there is nothing to show."""
    if name not in FIGURES:
        raise UserError(f"there is no figure '{name}': {nearest(name, FIGURES)}")
    made = FIGURES[name](selection.runs) if selection.runs else None
    if made is None:
        return "null"
    return json.dumps({"title": made.title, "caption": made.caption, "plot": spec_of(made, dark, columns)})


def names_json(selection: Selection) -> str:
    """The notes on a selection and the names of its figures, as JSON; a new version tells the page to ask for the
    figures again."""
    names = list(FIGURES) if selection.runs else []
    return json.dumps({"notes": selection.notes, "names": names, "version": selection.version})


def tables_json(selection: Selection) -> str:
    """The tables of results as JSON, each with a title, headings and rows."""
    found = {**results(selection.runs), **paired_differences(selection.runs)} if selection.runs else {}
    tables = [
        {"title": title, "columns": list(frame.columns), "rows": frame.to_numpy().tolist()}
        for title, frame in found.items()
    ]
    return json.dumps({"notes": selection.notes, "tables": tables})
