"""Who takes part: how often each client trained what, who was never seen, with what probability, in which cluster."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from mmfl.report.figure import Dots, Figure, Heat, Panel
from mmfl.report.observations import by_round, by_task, curves, describe_bands, evenly, task_figure
from mmfl.runs.results import Comparison, Run
from mmfl.training.diagnostics import PROBABILITIES

_MAX_CLIENTS = 400  # rows of a heat map; more are not told apart
_MAX_NAMED = 10
_CLUSTERINGS = 3  # of a method: the first, one in between, the last


def participation(comparison: Comparison) -> Figure | None:
    """How often each client trained each task: a panel per method, with the same clients and colours in all."""
    rates = {method: _rate(comparison.of(method)) for method in comparison.methods}
    highest = {method: float(rate.to_numpy().max(initial=0.0)) for method, rate in rates.items()}
    choosing = [rate for method, rate in highest.items() if method != comparison.full_of(method)]
    high = max(choosing or highest.values()) or 1.0  # where the colours of all panels end
    order = _order(list(rates.values()))
    panels, tables = [], []
    for method, rate in rates.items():
        heat = _heat(rate.loc[order[order.isin(rate.index)]], high)
        panels.append(Panel(method + _never(comparison.of(method)), [heat], "", "clients, most active first"))
        client, task = np.nonzero(rate.to_numpy())
        pairs = {"client": client, "task": rate.columns[task], "trainings": rate.to_numpy()[client, task]}
        tables.append(pd.DataFrame({"method": method, **pairs}))
    caption = (
        "Trainings a round, by client and task; grey where a client never trained the task. Clients are in the same "
        "order in all panels: the most active over all methods first."
    )
    if max(highest.values()) > high:
        caption += f" Colours end at {high:.3g}; full participation is beyond."
    caption += _over_seeds(comparison)
    return Figure("participation", "Participation", caption, panels, pd.concat(tables, ignore_index=True))


def seen(comparison: Comparison) -> Figure | None:
    """The share of clients that have trained anything so far, by round."""
    table = by_round(comparison, "clients_seen", "clients")
    table["seen"] = table.pop("clients_seen") / table.pop("clients")
    panel = Panel("", curves(table, "seen", comparison.methods), "round", "share of clients", reference=1.0)
    caption = "The share of all clients that have trained at least once so far." + describe_bands(comparison)
    return Figure("seen", "Clients seen", caption, [panel], table)


def probabilities(comparison: Comparison) -> Figure | None:
    """The chances of being drawn, by round."""
    _, low, median, high, _ = PROBABILITIES
    table, title = by_task(comparison, *PROBABILITIES), "Probabilities of the draw"
    caption = (
        "The chance that a processor of a client is drawn for the task: the median over the clients that can train it, "
        "with a band between the quartiles; means over seeds. Methods that leave nothing to chance have none."
    )
    return task_figure(comparison, "probabilities", title, caption, table, median, "probability", band=(low, high))


def clusters(comparison: Comparison) -> Figure | None:
    """Clients' loss vectors in the plane, with the clusters that a group method made of them."""
    panels, tables = [], []
    for method in comparison.methods:
        run = comparison.of(method)[0]
        known = [(record.round, record.extras["clusters"]) for record in run.records if record.extras.get("clusters")]
        for n in dict.fromkeys(evenly(len(known), _CLUSTERINGS)):
            panel, table = _clustering(run, *known[n])
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


def _order(rates: Sequence[pd.DataFrame]) -> pd.Index:
    """All clients, the most active first; every method has the same weight, however much it trains."""
    totals = [rate.sum(axis=1) for rate in rates]
    active = pd.concat([total / (total.mean() or 1.0) for total in totals], axis=1).mean(axis=1)
    return active.sort_values(ascending=False, kind="stable").index


def _heat(rate: pd.DataFrame, high: float) -> Heat:
    shown = rate.iloc[evenly(len(rate), _MAX_CLIENTS)]
    values = shown.to_numpy(dtype=np.float64)
    return Heat(
        np.where(values > 0, values, np.nan),
        [f"client {client}" for client in shown.index],
        list(rate.columns),
        "trainings a round",
        0.0,
        high,
        nothing="never trained",
    )


def _unseen(run: Run) -> list[int]:
    """The clients that trained nothing."""
    total = run.participation.sum(axis=1)
    return [int(client) for client in total.index[total == 0]]


def _never(runs: list[Run]) -> str:
    """How many clients trained nothing: the mean over seeds, since clients may differ from seed to seed."""
    number = float(np.mean([len(_unseen(run)) for run in runs]))
    return f": {round(number, 1):g} of {runs[0].clients} never trained" if number else ""


def _over_seeds(comparison: Comparison) -> str:
    """Who never trained, with a single seed; how to read what is averaged, with several."""
    if any(len(comparison.of(method)) > 1 for method in comparison.methods):
        return (
            " Rates, and how many clients never trained anything, are means over seeds. Unless the federation has a "
            "seed of its own, every seed partitions the data anew, so that client 3 of one seed is not client 3 of "
            "another. A client that lacks a task with some of the seeds trains it less, even under full participation."
        )
    missing = [f"{run.method}: {_list_clients(never)}" for run in comparison if (never := _unseen(run))]
    return f" Clients that never trained anything: {'; '.join(missing)}." if missing else ""


def _list_clients(clients: list[int]) -> str:
    """The clients, or the first of many.

    >>> _list_clients([3, 5])
    '3, 5'
    """
    more = len(clients) - _MAX_NAMED
    return ", ".join(map(str, clients[:_MAX_NAMED])) + (f" and {more} more" if more > 0 else "")


def _clustering(run: Run, round: int, found: dict[str, list[float]]) -> tuple[Panel, pd.DataFrame]:
    points = {name: found[name] for name in ("client", "cluster", "x", "y")}
    table = pd.DataFrame({"method": run.method, "seed": run.seed, "round": round, **points})
    marks = []
    for cluster in sorted(set(table["cluster"])):
        subset = table[table["cluster"] == cluster]
        labels = [f"client {client}" for client in subset["client"]]
        x, y = (subset[name].to_numpy(dtype=np.float64) for name in ("x", "y"))
        marks.append(Dots(f"cluster {cluster}", x, y, cluster, labels))
    across, up = (f"component {n} ({share:.0%})" for n, share in enumerate(found["explained"], 1))
    return Panel(f"{run.method}, round {round}", marks, across, up), table
