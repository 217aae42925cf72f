"""What is shown of a selection of runs: the report's figures and the table, of those that can be compared."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from mmfl.dashboard.glance import Glance
from mmfl.report.figures import figures
from mmfl.report.interactive import plotly_of
from mmfl.run import Comparison, Run, from_records
from mmfl.training import Record


@dataclass(frozen=True)
class Selection:
    """Runs that can be compared, and what is to be said about those that cannot."""

    runs: list[Run] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def select(glances: Sequence[Glance], records: Sequence[Sequence[Record]]) -> Selection:
    """Those of the runs that have something to show and the tasks of the first of them.

    A method that occurs in several runs is named with its run, unless these are one run in several pieces: with the
    same configuration, and seeds of their own.
    """
    notes = [
        f"{glance.id} has no finished round yet." for glance, known in zip(glances, records, strict=True) if not known
    ]
    known = [(glance, from_records(mine)) for glance, mine in zip(glances, records, strict=True) if mine]
    if not known:
        return Selection([], notes)
    first = known[0][0]
    for glance, _ in known:
        if set(glance.tasks) != set(first.tasks):
            notes.append(
                f"{glance.id} is left out: its tasks ({', '.join(glance.tasks)}) are not those of {first.id} "
                f"({', '.join(first.tasks)})."
            )
    return Selection(_side_by_side([each for each in known if set(each[0].tasks) == set(first.tasks)]), notes)


def _side_by_side(known: Sequence[tuple[Glance, Comparison]]) -> list[Run]:
    tasks = list(dict.fromkeys(task for _, comparison in known for task in comparison.tasks))
    held: dict[str, list[tuple[Glance, int]]] = {}
    for glance, comparison in known:
        for run in comparison:
            held.setdefault(run.method, []).append((glance, run.seed))
    whole = {method for method, holders in held.items() if _is_one_run(holders)}
    return [
        Run(
            run.records,
            run.method if run.method in whole else f"{run.method} ({glance.id})",
            run.seed,
            tasks,
            run.clients,
        )
        for glance, comparison in known
        for run in comparison
    ]


def _is_one_run(holders: Sequence[tuple[Glance, int]]) -> bool:
    """Whether the seeds of a method are of one run, or of runs that differ in nothing else."""
    if len({glance.id for glance, _ in holders}) == 1:
        return True
    seeds = [seed for _, seed in holders]
    return len({glance.settings.alike for glance, _ in holders}) == 1 and len(set(seeds)) == len(seeds)


def drawn(selection: Selection, columns: int, dark: bool) -> str:
    """The figures as JSON, as plotly.js takes them."""
    made = [
        f'{{"name": {json.dumps(each.name)}, "title": {json.dumps(each.title)}, "caption": {json.dumps(each.caption)}, '
        f'"plot": {plotly_of(each, dark, columns).to_json(validate=False)}}}'
        for each in (figures(Comparison(selection.runs)) if selection.runs else [])
    ]
    return f'{{"notes": {json.dumps(selection.notes)}, "figures": [{", ".join(made)}]}}'


def tabled(selection: Selection) -> str:
    """The table of results as JSON: headings, and rows of numbers."""
    frame = Comparison(selection.runs).table() if selection.runs else pd.DataFrame()
    frame = frame.dropna(axis=1, how="all")
    rows: list[list[Any]] = [
        [name, *map(_number, row)] for name, row in zip(frame.index, frame.to_numpy(), strict=True)
    ]
    return json.dumps({"notes": selection.notes, "columns": list(frame.columns), "rows": rows})


def _number(value: float) -> float | None:
    return None if pd.isna(value) else float(value)
