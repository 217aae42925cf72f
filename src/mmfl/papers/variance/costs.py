"""Measured costs of the methods of Table 1 (Zhang et al. 2024, the cost columns of the slides)."""

import pandas as pd
from matplotlib import pyplot
from matplotlib.figure import Figure

from mmfl.papers.evidence import fact
from mmfl.papers.reproduction import Claim, Findings, Frames, reproduction
from mmfl.papers.variance.table1 import PAPER, parts3
from mmfl.report.plots import COLOURS

# Communication, computation and memory as the slides rate them.
RATED = {
    "full": "High, High, Low",
    "random": "Low, Low, Low",
    "fedvarp": "Low, Low, High",
    "mifa": "Low, Low, High",
    "scaffold": "Low, Low, Low",
    "mmfl-gvr": "Low, High, Low",
    "mmfl-gvr-star": "Low, High, High",
    "mmfl-lvr": "Low, Low, Low",
}
_MEASURES = {"communication": "MB up", "computation": "trainings", "memory": "MB stored"}


def costs_by_method(frames: Frames) -> pd.DataFrame:
    """Mean costs of a round, a row per method; sizes in MB."""
    mean = frames["costs"].drop(columns="seed").groupby("method").mean()
    sizes = {"bytes_up": "MB up", "bytes_down": "MB down", "stored_bytes": "MB stored"}
    mean[list(sizes)] /= 1e6
    return mean.rename(columns=sizes).loc[[method for method in PAPER if method in mean.index]]


def find(frames: Frames) -> Findings:
    """Costs per round, beside the slides' ratings of communication, computation and memory."""
    costs = costs_by_method(frames)
    columns = {
        "slides: communication, computation, memory": [RATED.get(str(method), "") for method in costs.index],
        "updates sent": costs["processors"].map("{:.1f}".format),
        "MB up": costs["MB up"].map(_amount),
        "MB down": costs["MB down"].map(_amount),
        "trainings": costs["trainings"].map("{:,.1f}".format),
        "forward passes": costs["forward_passes"].map("{:,.0f}".format),
        "MB stored": costs["MB stored"].map(_amount),
    }
    return Findings(pd.DataFrame(columns, costs.index).reset_index(), claims(costs))


def claims(costs: pd.DataFrame) -> list[Claim]:
    """A rating of High should mean more than four times the cost of any method that is rated Low."""
    found = []
    for n, (word, column) in enumerate(_MEASURES.items()):
        rated = {method: rating.split(", ")[n] for method, rating in RATED.items() if method in costs.index}
        high, low = ([method for method, rating in rated.items() if rating == kind] for kind in ("High", "Low"))
        if high and low:
            smallest, largest, worst = costs[column][high].min(), costs[column][low].max(), costs[column][low].idxmax()
            text = f"{word}: High for {'/'.join(high)}, Low for the others"
            shown = f"{column}: at least {_amount(smallest)} against at most {_amount(largest)} ({worst})"
            found.append(fact(text, "ratings", shown, bool(smallest > 4 * largest)))
    return found


def _amount(number: float) -> str:
    return f"{number:,.1f}" if number >= 1 else f"{number:.2g}"


def draw(frames: Frames) -> Figure:
    """The costs of each method per round, a panel per kind of cost."""
    costs = costs_by_method(frames)[::-1]
    kinds = ["trainings", "forward_passes", "MB up", "MB down", "MB stored"]
    titles = {"trainings": "local trainings", "forward_passes": "forward passes"}
    figure, axes = pyplot.subplots(1, len(kinds), figsize=(12.6, 4.2), sharey=True, layout="constrained")
    for panel, kind, colour in zip(axes, kinds, COLOURS, strict=False):
        panel.barh(costs.index, costs[kind], color=colour)
        panel.set(title=titles.get(kind, kind), xlabel="at the end" if kind == "MB stored" else "in a round")
        panel.grid(axis="x", alpha=0.3)
    return figure


REPRODUCTIONS = (reproduction("table1-costs", parts3, find, draw),)
