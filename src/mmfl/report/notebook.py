"""What a notebook shows of a federation, a run or a comparison: a small table in HTML.

The tables have no colours of their own and load nothing, so they are readable in light and dark notebooks, offline.
"""

from collections.abc import Iterable, Sequence
from functools import partial
from html import escape

import numpy as np

from mmfl.federation import Federation
from mmfl.federation.task import Task
from mmfl.report import sweep_page
from mmfl.report.tables import cell, final_rounds, final_title, in_words
from mmfl.runs.results import Comparison, Run
from mmfl.runs.sweep_results import Sweep


def federation(shown: Federation) -> str:
    """A row per task: its model and data, and how much of it the clients hold. Below, the clients' capacities."""
    headings = ["task", "model", "data", "examples", "clients", "least", "median", "most a client holds"]
    rows = []
    for task, sizes in zip(shown.tasks, shown.sizes.T, strict=True):
        held = sizes[sizes > 0]
        volumes = [held.min(), np.median(held), held.max()] if len(held) else []
        numbers = [f"{number:,.0f}" for number in (sizes.sum(), len(held), *volumes)]
        rows.append([task.name, _model(task), task.data.name, *numbers])
    capacities, counts = np.unique(shown.capacity, return_counts=True)
    below = ", ".join(f"{capacity} ({count:,} clients)" for capacity, count in zip(capacities, counts, strict=True))
    return _table(f"Federation of {shown.clients:,} clients", headings, rows, f"Capacity, in tasks a round: {below}")


def run(shown: Run) -> str:
    """A row per task: how good it is in the end, and who trained it. Below, the mean, the worst and the costs."""
    final, loss, participation = shown.final(), shown.loss, shown.participation
    rows = [
        [
            task,
            cell("metric", final[task]),
            cell("loss", loss[task].iloc[-1] if len(loss) else np.nan),
            f"{participation[task].sum():,}",
            f"{(participation[task] > 0).sum():,} of {shown.clients:,}",
        ]
        for task in shown.tasks
    ]
    costs = shown.costs.mean()
    below = (
        f"metric, {final_rounds(Comparison([shown]))}: mean {cell('mean', final['mean'])}, "
        f"worst {cell('worst', final['worst'])}; a round: "
        f"{costs['trainings']:,.1f} trainings, {costs['forward_passes']:,.1f} forward passes, "
        f"{(costs['bytes_up'] + costs['bytes_down']) / 1e6:,.2f} MB sent"
    )
    title = f"{shown.method}, seed {shown.seed}, {len(shown.records):,} rounds"
    return _table(title, ["task", "metric", "test loss", "trainings", "clients that took part"], rows, below)


def comparison(shown: Comparison) -> str:
    """A row per method, as in `Comparison.table`."""
    frame = in_words(shown.table().dropna(axis=1, how="all"))
    title = f"Comparison of {len(frame)} method{'s' if len(frame) > 1 else ''}"
    below = f"{final_title(shown).capitalize()}. Costs of a round."
    return _table(title, list(frame.columns), frame.to_numpy().tolist(), below)


def sweep(shown: Sweep) -> str:
    """A row per point and method, and below the best of them."""
    (title, frame), (_, best) = sweep_page.tables(shown).items()
    rows = best.astype(str).to_numpy().tolist()
    below = "; ".join(f"best {row[0]}: {', '.join(row[1:])}" for row in rows)
    return _table(title.capitalize(), list(frame.columns), frame.to_numpy().tolist(), below)


def _model(task: Task) -> str:
    made_by = task.model.func if isinstance(task.model, partial) else task.model
    return getattr(made_by, "__name__", type(made_by).__name__)


def _table(title: str, headings: Sequence[str], rows: Iterable[Sequence[str]], below: str) -> str:
    """A table with a title and a line below it; all texts are escaped, since tasks and methods are named by users."""
    head = "".join(f"<th>{escape(heading)}</th>" for heading in headings)
    body = "".join(f"<tr>{''.join(f'<td>{escape(text)}</td>' for text in row)}</tr>" for row in rows)
    return (
        f"<div><strong>{escape(title)}</strong>"
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        f"<small>{escape(below)}</small></div>"
    )
