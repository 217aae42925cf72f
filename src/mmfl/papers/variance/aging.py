"""How stale updates age (Zhang et al. 2025, Figure 3): StaleVR's best betas, and StaleVRE's estimates of them."""

import numpy as np
import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from mmfl.aggregation import StaleVRE
from mmfl.aggregation.stale import Betas, slopes
from mmfl.papers.evidence import alike, fact, greater, spread
from mmfl.papers.reproduction import NOTES, OWN, Claim, Findings, Frames
from mmfl.report.plots import COLOURS, legend, panels
from mmfl.runs.results import Run
from mmfl.training import TrainingState
from mmfl.updates import ClientRows, Trained, Updates

CONSTANTS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
"""The constant betas of FedStale: 0 is `unbiased`, 1 is FedVARP."""

_MIN_BETAS = 10  # means over fewer are not drawn


def estimates(best: NDArray[np.float64], active: NDArray[np.bool_]) -> NDArray[np.float64]:
    """StaleVRE's estimates before each round, given StaleVR's best betas and who trained, all [rounds, clients].

    Its own memory does it, on models of a single weight: whoever trains has h = 1 and G = beta.
    """
    clients = best.shape[1]
    memory = StaleVRE().start(clients, torch.zeros(1))
    sizes = np.ones(clients, dtype=np.int64)
    found = []
    for t, (betas, trains) in enumerate(zip(np.nan_to_num(best), active, strict=True), 1):
        found.append(np.where(memory.last > 0, memory.beta(t), np.nan))
        client = np.flatnonzero(trains)
        flat = torch.from_numpy(betas[client, None]).float()
        updates = Updates.of(0, Trained(client, flat, np.zeros(len(client)), sizes[client]))
        slope = slopes(betas[client], memory.last[client], t)
        memory.replace(updates, ClientRows(torch.ones_like(flat)), slope, t, sizes)
    return np.array(found)


def history(best: NDArray[np.float64], active: NDArray[np.bool_]) -> pd.DataFrame:
    """A row per client and round, as it was before the round; betas are nan before there is an h.

    `trained` is how often the client had trained, `idle` how many rounds ago it last did (nan: never).
    """
    rounds = np.arange(1, len(best) + 1)[:, None]
    last = _before(np.maximum.accumulate(np.where(active, rounds, 0)))
    columns = {
        "client": np.arange(best.shape[1]),
        "round": rounds,
        "trained": _before(active.cumsum(0)),
        "idle": np.where(last > 0, rounds - last, np.nan),
        "beta": best,
        "estimate": estimates(best, active),
        "active": active.astype(int),
    }
    return pd.DataFrame({name: np.broadcast_to(of, best.shape).ravel() for name, of in columns.items()})


def _before(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Values after each round, shifted to before the next round."""
    return np.vstack([np.zeros_like(counts[:1]), counts[:-1]])


def betas_of(state: TrainingState) -> list[NDArray[np.float64]]:
    """What to observe: StaleVR's betas of the last round for each task; nothing for other methods."""
    return [memory.beta for memory in state.aggregation if isinstance(memory, Betas)]


def history_of(run: Run, betas: NDArray[np.float64], task: str) -> pd.DataFrame:
    """The history of a task of a run, from its records and the observed betas, [rounds, clients]."""
    active = np.zeros(betas.shape, dtype=bool)
    for record, row in zip(run.records, active, strict=True):
        row[record.drawn_clients(task)] = True
    return history(betas, active)


def worth(known: pd.DataFrame) -> dict[str, float]:
    """Statistics of all betas: how they fall, where they lie, how far estimates and constants are from them.

    `fall` is what a beta loses by each idle round: the slope within the stretches between two trainings of a client,
    so that neither differences between clients nor the course of training have a part in it. Distances are means of
    absolute values, of clients that have trained twice: before that there is nothing to estimate from.
    """
    stretch = [known["task"], known["client"], known["trained"]]
    idle, beta = (known[name] - known[name].groupby(stretch).transform("mean") for name in ("idle", "beta"))
    squares = float((idle**2).sum())
    twice = known[known["trained"] > 1]
    return {
        "fall": -float((idle * beta).sum()) / squares if squares else np.nan,
        "first": float(known.loc[known["idle"] == 1, "beta"].mean()),
        "inside": float(known["beta"].between(0, 1).mean()),
        "estimate": float((twice["estimate"] - twice["beta"]).abs().mean()),
        **{f"constant {value:g}": float((value - twice["beta"]).abs().mean()) for value in CONSTANTS},
    }


def by_idle(known: pd.DataFrame, longest: int = 60) -> pd.DataFrame:
    """Sums of betas and of estimates by number of idle rounds, over clients that have trained twice."""
    twice = known[(known["trained"] > 1) & (known["idle"] <= longest)].assign(betas=1)
    return twice.groupby("idle")[["betas", "beta", "estimate"]].sum().reset_index()


def find(frames: Frames) -> Findings:
    """How betas fall, and how close the estimates are, in each setting."""
    of_setting = {str(name): part.set_index("seed") for name, part in frames["worth"].groupby("setting")}
    table = pd.DataFrame(
        [
            {
                "setting": name,
                "beta a round after training": spread(seen["first"]),
                "lost in 10 idle rounds": spread(10 * seen["fall"]),
                "within [0, 1]": spread(seen["inside"]),
                "error of the estimate": spread(seen["estimate"]),
                **{f"of beta = {value:g}": spread(seen[f"constant {value:g}"]) for value in CONSTANTS},
            }
            for name, seen in of_setting.items()
        ]
    )
    found = [claim for name, seen in of_setting.items() for claim in claims(name, seen)]
    return Findings(table, found, [NOTES["betas"], data_note(frames)])


def data_note(frames: Frames) -> str:
    """The data of each setting."""
    return "Data: " + ", ".join(f"{row.data} ({row.setting})" for row in frames["data"].itertuples()) + "."


def claims(setting: str, seen: pd.DataFrame) -> list[Claim]:
    """The claims of Figure 3 and of the text around it, in one setting; `seen` has a row per seed."""
    inside, within = seen["inside"], f"{setting}: beta lies within [0, 1] most of the time"
    return [
        greater(f"{setting}: beta falls while a client is idle, in 10 rounds by", "falls", 10 * seen["fall"], 0.0),
        alike(f"{setting}: beta is about 1 in the round after training", "1", seen["first"], 1.0, 0.1),
        fact(within, OWN, f"{spread(inside)} of all betas", inside.mean() > 0.5),
        *(
            greater(
                f"{setting}: the estimate is nearer to beta than the constant {value:g} is",
                OWN,
                seen[f"constant {value:g}"],
                seen["estimate"],
            )
            for value in CONSTANTS
        ),
    ]


def draw(frames: Frames) -> Figure:
    """In each setting: two clients by round, then all clients by number of idle rounds."""
    settings, curves = frames["worth"]["setting"].unique(), frames["curves"]
    limits = min(0.0, curves["beta"].min()) - 0.05, max(1.0, curves["beta"].max()) + 0.05
    figure, axes = panels(3 * len(settings), ylabel="beta", ylim=limits)
    for row, name in enumerate(settings):
        *left, right = axes[3 * row : 3 * row + 3]
        groups = curves[curves["setting"] == name].groupby("group", sort=False)
        for panel, (group, client) in zip(left, groups, strict=True):
            _draw_client(panel, client)
            panel.set_title(f"{name}: client {client['client'].iloc[0]}, {group}", fontsize=9)
        _draw_idle(right, frames["idle"][frames["idle"]["setting"] == name])
        right.set_title(f"{name}: all clients that have trained twice, mean", fontsize=9)
    legend(figure, axes[0])
    return figure


def _draw_client(axes: Axes, client: pd.DataFrame) -> None:
    """The first training is drawn at 0, since there is no stale update yet."""
    active = client[client["active"] == 1]
    axes.plot(client["round"], client["beta"], color=COLOURS[0], label="best beta")
    axes.plot(client["round"], client["estimate"], "--", color=COLOURS[2], label="StaleVRE's estimate")
    axes.plot(active["round"], active["beta"].fillna(0), "*", color=COLOURS[1], markersize=9, label="the client trains")
    axes.set(xlabel="round", xlim=(0, client["round"].max() + 1))


def _draw_idle(axes: Axes, idle: pd.DataFrame) -> None:
    """Means over all seeds, if there are enough betas."""
    sums = idle.groupby("idle")[["betas", "beta", "estimate"]].sum().query(f"betas >= {_MIN_BETAS}")
    for column, colour, dash in (("beta", COLOURS[0], "-"), ("estimate", COLOURS[2], "--")):
        axes.plot(sums.index, sums[column] / sums["betas"], dash, color=colour)
    axes.set(xlabel="rounds since the client trained")
