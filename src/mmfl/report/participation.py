"""Who takes part: how often each client trained what, who was never seen, with what probability, in which cluster."""

import numpy as np
import pandas as pd

from mmfl.diagnostics import PROBABILITIES
from mmfl.report.figure import Dots, Figure, Heat, Panel
from mmfl.report.observations import banded, by_round, by_task, curves, evenly, spread, task_panels
from mmfl.run import Comparison, Run

_MAX_CLIENTS = 400  # rows of a heat map; more are not told apart
_MAX_NAMED = 10
_CLUSTERINGS = 3  # of a method: the first, one in between, the last


def participation(comparison: Comparison) -> Figure | None:
    """Which client trained which task how often, a panel per method."""
    panels, tables, missing = [], [], []
    for method in comparison.methods:
        rate = _rate(comparison.of(method))
        total = rate.sum(axis=1)
        order = total.sort_values(ascending=False, kind="stable").index
        never = total.index[total == 0].tolist()
        panels.append(_heat_panel(method, rate.loc[order], len(never)))
        missing += [f"{method}: {_named(never)}"] if never else []
        client, task = np.nonzero(rate.to_numpy())
        pairs = {"client": client, "task": rate.columns[task], "trainings": rate.to_numpy()[client, task]}
        tables.append(pd.DataFrame({"method": method, **pairs}))
    caption = "How often each client trained each task, in trainings a round over all seeds; blank where it never did."
    if missing:
        caption += f" Clients that were never seen: {'; '.join(missing)}."
    return Figure("participation", "Participation", caption, panels, pd.concat(tables, ignore_index=True))


def seen(comparison: Comparison) -> Figure | None:
    """The share of clients that have trained anything so far, by round."""
    table = by_round(comparison, "clients_seen", "clients")
    table["seen"] = table.pop("clients_seen") / table.pop("clients")
    panel = Panel("", curves(table, "seen", comparison.methods), "round", "share of clients", reference=1.0)
    caption = "The share of all clients that have trained at least once so far." + spread(comparison)
    return Figure("seen", "Clients seen", caption, [panel], table)


def probabilities(comparison: Comparison) -> Figure | None:
    """The chances of being drawn, by round."""
    table = by_task(comparison, *PROBABILITIES)
    _, low, middle, high, _ = PROBABILITIES
    panels = task_panels(
        comparison, table, lambda mine: banded(mine, low, middle, high, comparison.methods), "probability"
    )
    caption = (
        "The chance that a processor of a client is drawn for the task: the median over the clients that can train it, "
        "with a band between the quartiles; means over seeds. Methods that leave nothing to chance have none."
    )
    return Figure("probabilities", "Probabilities of the draw", caption, panels, table) if panels else None


def clusters(comparison: Comparison) -> Figure | None:
    """Clients' loss vectors in the plane, with the clusters that a group method made of them."""
    panels, tables = [], []
    for method in comparison.methods:
        run = comparison.of(method)[0]
        known = [record for record in run.records if record.get("clusters")]
        for n in dict.fromkeys(evenly(len(known), _CLUSTERINGS)):
            panel, table = _clustering(run, known[n]["round"], known[n]["clusters"])
            panels.append(panel)
            tables.append(table)
    if not panels:
        return None
    caption = (
        "Clients by their losses on all tasks, along the two directions in which these vary most (PCA); colours are "
        "the clusters that were made of them. The first seed, and of many clients some."
    )
    return Figure("clusters", "Clusters", caption, panels, pd.concat(tables, ignore_index=True))


def _rate(runs: list[Run]) -> pd.DataFrame:
    """Trainings a round, clients x tasks, over all runs."""
    counts = sum((run.participation for run in runs[1:]), runs[0].participation)
    return counts / sum(len(run.records) for run in runs)


def _heat_panel(method: str, rate: pd.DataFrame, never: int) -> Panel:
    shown = rate.iloc[evenly(len(rate), _MAX_CLIENTS)]
    values = shown.to_numpy(dtype=np.float64)
    heat = Heat(
        np.where(values > 0, values, np.nan),
        [f"client {client}" for client in shown.index],
        list(rate.columns),
        "trainings a round",
        0.0,
        float(rate.to_numpy().max(initial=0.0)) or 1.0,
    )
    return Panel(f"{method}: {never} never seen" if never else method, [heat], "", "clients, most active first")


def _named(clients: list[int]) -> str:
    """The clients, or the first of many.

    >>> _named([3, 5])
    '3, 5'
    """
    more = len(clients) - _MAX_NAMED
    return ", ".join(map(str, clients[:_MAX_NAMED])) + (f" and {more} more" if more > 0 else "")


def _clustering(run: Run, round: int, found: dict[str, list[float]]) -> tuple[Panel, pd.DataFrame]:
    table = pd.DataFrame({name: found[name] for name in ("client", "cluster", "x", "y")})
    marks = []
    for cluster in sorted(set(table["cluster"])):
        mine = table[table["cluster"] == cluster]
        labels = [f"client {client}" for client in mine["client"]]
        x, y = (mine[name].to_numpy(dtype=np.float64) for name in ("x", "y"))
        marks.append(Dots(f"cluster {cluster}", x, y, cluster, labels))
    across, up = (f"component {n} ({share:.0%})" for n, share in enumerate(found["explained"], 1))
    table.insert(0, "method", run.method)
    table.insert(1, "seed", run.seed)
    table.insert(2, "round", round)
    return Panel(f"{run.method}, round {round}", marks, across, up), table
