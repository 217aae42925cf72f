"""Measured costs of the methods of Table 1 (Zhang et al. 2024, the cost columns of the slides)."""

import pandas as pd
from matplotlib import pyplot
from matplotlib.figure import Figure

from mmfl.papers.evidence import fact
from mmfl.papers.reproduction import Claim, Findings, Frames, Reproduction
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
# What the slides rate: a column of the costs, in a unit.
_COSTS = {
    "communication": ("bytes_up", "MB up", 1e6),
    "computation": ("trainings", "trainings", 1.0),
    "memory": ("stored_bytes", "MB stored", 1e6),
}


def find(frames: Frames) -> Findings:
    """Costs per round, beside the slides' ratings of communication, computation and memory."""
    mean = frames["costs"].drop(columns="seed").groupby("method").mean()
    rows = []
    for method in (known for known in PAPER if known in mean.index):
        subset = mean.loc[method].to_dict()
        rows.append(
            {
                "method": method,
                "slides: communication, computation, memory": RATED.get(method, ""),
                "updates sent": f"{subset['processors']:.1f}",
                "MB up": _amount(subset["bytes_up"] / 1e6),
                "MB down": _amount(subset["bytes_down"] / 1e6),
                "trainings": f"{subset['trainings']:,.1f}",
                "forward passes": f"{subset['forward_passes']:,.0f}",
                "MB stored": _amount(subset["stored_bytes"] / 1e6),
            }
        )
    return Findings(pd.DataFrame(rows), claims(mean))


def claims(mean: pd.DataFrame) -> list[Claim]:
    """A rating of High should mean more than four times the cost of any method that is rated Low."""
    found = []
    for n, (word, (column, unit, size)) in enumerate(_COSTS.items()):
        high = [method for method, rating in RATED.items() if method in mean.index and "High" in rating.split(", ")[n]]
        low = [method for method, rating in RATED.items() if method in mean.index and method not in high]
        if high and low:
            cost = mean[column] / size
            smallest, largest, worst = cost[high].min(), cost[low].max(), cost[low].idxmax()
            text = f"{word}: High for {'/'.join(high)}, Low for the others"
            shown = f"{unit}: at least {_amount(smallest)} against at most {_amount(largest)} ({worst})"
            found.append(fact(text, "ratings", shown, bool(smallest > 4 * largest)))
    return found


def _amount(number: float) -> str:
    return f"{number:,.1f}" if number >= 1 else f"{number:.2g}"


def draw(frames: Frames) -> Figure:
    """The costs of each method per round, a panel per kind of cost."""
    mean = frames["costs"].drop(columns="seed").groupby("method").mean()
    methods = [method for method in reversed(PAPER) if method in mean.index]
    panels = {"trainings": 1.0, "forward_passes": 1.0, "bytes_up": 1e6, "bytes_down": 1e6, "stored_bytes": 1e6}
    titles = ["local trainings", "forward passes", "MB up", "MB down", "MB stored"]
    figure, axes = pyplot.subplots(1, len(panels), figsize=(12.6, 4.2), sharey=True, layout="constrained")
    for n, (panel, (column, unit), title) in enumerate(zip(axes, panels.items(), titles, strict=True)):
        panel.barh(methods, mean.loc[methods, column] / unit, color=COLOURS[n])
        panel.set_title(title)
        panel.set_xlabel("in a round" if title != "MB stored" else "at the end")
        panel.grid(axis="x", alpha=0.3)
    return figure


REPRODUCTIONS = (
    Reproduction(
        "table1-costs",
        "slides",
        "Table 1, costs of a round",
        "The runs of table1-3tasks: counts per round, averaged over rounds and seeds; stored memory at the end.",
        parts3,
        find,
        draw,
    ),
)
