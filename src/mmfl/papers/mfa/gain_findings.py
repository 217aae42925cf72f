"""Findings on the gains of copies of one task: Figures 3 and 4 of Bhuyan, Moharir & Joshi 2022."""

from collections.abc import Callable

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mmfl.papers.evidence import greater, spread
from mmfl.papers.mfa.goals import shown_gain, with_gain
from mmfl.papers.reproduction import Claim, Findings, Frames
from mmfl.report.plots import COLOURS, DASHES, grid

ROTATING = "mfa-rr"


def find_full(frames: Frames) -> Findings:
    """Figure 3: gains above 1 that grow with M, but less than M."""
    return Findings(table(frames), [*_claims(frames, above_one), *_claims(frames, growth)], notes(frames))


def find_partial(frames: Frames) -> Findings:
    """Figure 4: gains above 1."""
    return Findings(table(frames), _claims(frames, above_one), notes(frames))


def smoothed_gains(frames: Frames) -> pd.DataFrame:
    """Gains based on accuracies averaged over several rounds."""
    return with_gain(frames["gains"].query("window > 1"))


def published(frames: Frames) -> pd.DataFrame:
    """Gains based on accuracies of single rounds."""
    return with_gain(frames["gains"].query("window == 1"))


def _claims(frames: Frames, about: Callable[[str, pd.DataFrame], list[Claim]]) -> list[Claim]:
    """The claims about MFA-RR on each data set."""
    subset = smoothed_gains(frames).query("method == @ROTATING").groupby("data", sort=False)
    return [claim for data, gains in subset for claim in about(str(data), gains)]


def above_one(data: str, measured: pd.DataFrame) -> list[Claim]:
    """The claim that the gain exceeds 1 for every M, tested at the M with the smallest gain."""
    gains = measured.pivot(index="seed", columns="models", values="gain")
    least = gains.mean().idxmin()
    text = f"{data}: gain - 1 is positive for every M > 1 (least at M = {least})"
    return [greater(text, "> 0", gains[least], pd.Series(1.0, gains.index))]


def growth(data: str, measured: pd.DataFrame) -> list[Claim]:
    """The claims that the gain grows from the fewest models to the most, and stays below M."""
    gains = measured.pivot(index="seed", columns="models", values="gain")
    few, many = gains.columns.min(), gains.columns.max()
    below = greater(f"{data}: M - gain is positive at M = {many}", "sub-linear", 0 * gains[many] + many, gains[many])
    if few == many:
        return [below]
    late = measured.pivot(index="seed", columns="models", values="together")[many].isna()
    grown = gains[many].mask(late, np.minimum(gains[many], gains[few]))  # a bound on a gain is no growth
    return [greater(f"{data}: gain at M = {many} above that at M = {few}", "grows", grown, gains[few]), below]


def table(frames: Frames) -> pd.DataFrame:
    """Rounds and gains, a row per data set, method and M."""
    lines = []
    keys = ["data", "method", "models"]
    single = dict(iter(published(frames).groupby(keys)))
    for key, subset in smoothed_gains(frames).groupby(keys, sort=False):
        rounds = [spread(subset["alone"] / subset["models"], 1), spread(subset["together"], 1)]
        gains = [shown_gain(subset, "gain", 2), shown_gain(single[key], "published_gain", 2)]
        lines.append([*key, *rounds, *gains, f"{subset['together'].isna().sum()} of {len(subset)}"])
    names = ["data", "method", "M", "T_1(eps)", "T_P", "gain", "gain as published", "seeds without T_P"]
    return pd.DataFrame(lines, columns=names)


def notes(frames: Frames) -> list[str]:
    """A note on how seeds that did not reach the goal are counted, if there are any."""
    late = smoothed_gains(frames)["together"].isna().sum()
    if not late:
        return []
    return [
        f"{late} runs did not reach the target within M T_1 rounds. They have no T_P, and count with the largest gain "
        "that they can have."
    ]


def draw(frames: Frames) -> Figure:
    """A row per data set: gain by M, and the accuracy of the least accurate of the M models by round."""
    names = list(dict.fromkeys(frames["gains"]["data"]))
    figure, panels = grid(2 * len(names), columns=2)
    for n, data in enumerate(names):
        draw_gains(panels[2 * n], frames, data)
        draw_curves(panels[2 * n + 1], frames["curves"].query("data == @data"))
        panels[2 * n].set_title(data, fontsize=10)
    return figure


def draw_gains(axes: Axes, frames: Frames, data: str) -> None:
    """Gains by M with their spread over seeds, between no gain and the largest possible gain."""
    subset = smoothed_gains(frames).query("data == @data")
    lines = {str(method): gains.groupby("models")["gain"] for method, gains in subset.groupby("method", sort=False)}
    single = published(frames).query("data == @data and method == @ROTATING")
    lines[f"{ROTATING}, as published"] = single.groupby("models")["published_gain"]
    most = int(subset["models"].max())
    for n, (label, gains) in enumerate(lines.items()):
        mean, aside = gains.mean(), (n - 1) * most / 100
        axes.errorbar(
            mean.index + aside, mean, gains.std().fillna(0), fmt="os^"[n] + DASHES[n], color=COLOURS[n], label=label,
            linewidth=1.3, markersize=4, capsize=2,
        )  # fmt: skip
    axes.plot([1, most], [1, most], ":", color="grey", linewidth=1, label="gain = M")
    axes.axhline(1, color="grey", linewidth=0.8)
    axes.set(xlabel="models M", ylabel="gain", xticks=[1, *sorted(subset["models"].unique())])
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7)


def draw_curves(axes: Axes, curves: pd.DataFrame) -> None:
    """Accuracy of the least accurate model by round, a line per M; FedAvg's last accuracy is the target."""
    for n, (models, curve) in enumerate(curves.groupby("models")):
        label = "FedAvg" if models == 1 else f"M = {models}"
        axes.plot(curve["round"], curve["accuracy"], DASHES[n % 4], color=COLOURS[n % 7], label=label, linewidth=1.3)
        if models == 1:
            axes.axhline(curve["accuracy"].iloc[-1], color="grey", linewidth=0.8)
    axes.set(xlabel="round", ylabel="accuracy of the worst model")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7, loc="lower right")
