"""Bhuyan, Moharir & Joshi 2022, Section 7: the gain of copies of one task, Synthetic(1,1) and faces (Figures 3, 4)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mmfl.federation.task import Task
from mmfl.papers.evidence import every, spread, spread_of_rounds
from mmfl.papers.mfa.goals import Gains, format_gain, smoothed_and_single, train_to_goals, windows, worst
from mmfl.papers.mfa.tasks import copies, face, small_face, small_synthetic, synthetic, with_shared_clients
from mmfl.papers.reproduction import NOTES, Claim, Findings, Frames, PaperTrainer, Part, reproduction
from mmfl.report.plots import COLOURS, DASHES, panels

METHODS = ("mfa-rr", "mfa-rand")
_NAMES = {"synthetic-a": "Synthetic(1,1)-A", "synthetic-b": "Synthetic(1,1)-B"}
_POINTS = 10  # of a curve that are kept for each T_1 rounds


@dataclass(frozen=True)
class CopiesSetting:
    """Copies of one task: how it is made, over how many clients, of which `rate` takes part in a round; FedAvg trains
    it for `rounds` (T_1), and there are as many copies as `models` (M) says, one number after the other."""

    name: str
    task: Callable[[], Task]
    clients: int
    rate: float
    rounds: int
    models: Sequence[int] = (2, 3, 4, 6, 8, 10)
    seeds: Sequence[int] = range(5)

    @property
    def part(self) -> Part:
        """The setting as a part; its rounds are the limit for the largest number of models."""
        return Part(f"mfa-gain/{self.name}", self.rounds * max(self.models), self.seeds, self.run)

    def run(self, trainer: PaperTrainer) -> Frames:
        """Trains FedAvg on the task, then its copies together: `gains`, and `curves` of the least accurate copy."""
        task = self.task()
        label = f"{_NAMES.get(task.name, task.data.name)}, lr {task.learning_rate(1):g}"
        single = with_shared_clients([task], self.clients)
        fedavg = trainer.compare(single, ["multi-fedavg"], self.rounds, self.rate, self.seeds)
        alone = {run.seed: run.accuracy[task.name] for run in fedavg}
        window = windows(self.rounds)[1]
        gains, curves = [], {1: worst([curve.to_frame() for curve in alone.values()], window)}
        for models in self.models:
            tasks = copies(task, models)
            goals = {seed: pd.DataFrame({each.name: curve for each in tasks}) for seed, curve in alone.items()}
            reached = train_to_goals(trainer, with_shared_clients(tasks, self.clients), goals, METHODS, self.rate)
            gains.append(reached.gains())
            curves[models] = worst(reached.curves(METHODS[0]), window)
        kept = [thin_out(curve, self.rounds).assign(models=models) for models, curve in curves.items()]
        found = {"gains": pd.concat(gains, ignore_index=True), "curves": pd.concat(kept, ignore_index=True)}
        return {name: frame.assign(data=label) for name, frame in found.items()}


def thin_out(curve: pd.Series, rounds: int) -> pd.DataFrame:
    """A curve at regular intervals, and its last round."""
    every = max(1, rounds // _POINTS)
    kept = curve[(curve.index % every == 0) | (curve.index == curve.index.max())]
    return pd.DataFrame({"round": kept.index, "accuracy": kept.to_numpy()})


FULL = (
    CopiesSetting("full-synthetic-a", partial(synthetic, 0, 100), 100, 1.0, 70),
    CopiesSetting("full-synthetic-b", partial(synthetic, 1, 100), 100, 1.0, 70),
    CopiesSetting("full-faces", face, 96, 1.0, 75),
)
PARTIAL = (
    CopiesSetting("partial-synthetic-a", partial(synthetic, 0, 200), 200, 0.16, 200, (2, 4, 8)),
    CopiesSetting("partial-synthetic-b", partial(synthetic, 1, 200), 200, 0.16, 200, (2, 4, 8)),
    CopiesSetting("partial-faces", face, 96, 0.25, 75, (2, 4, 8)),
)
QUICK_FULL = (
    CopiesSetting("full-synthetic-a", partial(small_synthetic, 0, 40), 40, 1.0, 15, (2, 4), range(3)),
    CopiesSetting("full-synthetic-b", partial(small_synthetic, 1, 40), 40, 1.0, 15, (2, 4), range(3)),
    CopiesSetting("full-faces", partial(small_face, "Blond_Hair"), 24, 1.0, 12, (2, 4), range(3)),
)
QUICK_PARTIAL = (
    CopiesSetting("partial-synthetic-a", partial(small_synthetic, 0, 40), 40, 0.4, 15, (2, 4), range(3)),
    CopiesSetting("partial-faces", partial(small_face, "Blond_Hair"), 24, 0.5, 12, (2, 4), range(3)),
)


def find(about: Sequence[Callable[[str, pd.DataFrame], list[Claim]]], frames: Frames) -> Findings:
    """Rounds and gains, a row per data set, method and M; claims of some kinds about MFA-RR on each data set."""
    keys = ["data", "method", "models"]
    smooth, single = smoothed_and_single(frames["gains"])
    as_published, lines = dict(iter(single.groupby(keys))), []
    for key, subset in smooth.groupby(keys, sort=False):
        rounds = [spread(subset["alone"] / subset["models"], 1), spread_of_rounds(subset["together"], 1)]
        gains = [format_gain(subset, "gain", 2), format_gain(as_published[key], "published_gain", 2)]
        lines.append([*key, *rounds, *gains])
    names = ["data", "method", "M", "T_1(eps)", "T_P", "gain", "gain as published"]
    by_data = smooth[smooth["method"] == METHODS[0]].groupby("data", sort=False)
    claims = [claim for claims in about for data, gains in by_data for claim in claims(str(data), gains)]
    late = smooth["together"].isna().sum()
    return Findings(pd.DataFrame(lines, columns=names), claims, [NOTES["late_runs"].format(late=late)] if late else [])


def above_one(data: str, measured: pd.DataFrame) -> list[Claim]:
    """The claim that the gain exceeds 1 for every M; refuted by a single M with which all seeds miss the target."""
    by_models = {f"at M = {models}": Gains.of(runs) for models, runs in measured.groupby("models")}
    text = f"{data}: gain - 1 is positive for every M > 1"
    each = {where: gains.above("", "", Gains.constant(1.0, gains.values.index)) for where, gains in by_models.items()}
    return [every(text, "> 0", each)]


def growth(data: str, measured: pd.DataFrame) -> list[Claim]:
    """The claims that the gain grows from the fewest models to the most, and stays below M."""
    by_models = {models: Gains.of(measured[measured["models"] == models]) for models in measured["models"].unique()}
    few, many = min(by_models), max(by_models)
    linear = Gains.constant(many, by_models[many].values.index)
    below = linear.above(f"{data}: M - gain is positive at M = {many}", "sub-linear", by_models[many])
    text = f"{data}: gain at M = {many} above that at M = {few}"
    return [below] if few == many else [by_models[many].above(text, "grows", by_models[few]), below]


def draw(frames: Frames) -> Figure:
    """A row per data set: gain by M, and the accuracy of the least accurate of the M models by round."""
    names = list(dict.fromkeys(frames["gains"]["data"]))
    figure, axes = panels(2 * len(names), columns=2)
    for data, left, right in zip(names, axes[::2], axes[1::2], strict=True):
        draw_gains(left, frames["gains"].query("data == @data"))
        draw_curves(right, frames["curves"].query("data == @data"))
        left.set_title(data, fontsize=10)
    return figure


def draw_gains(axes: Axes, measured: pd.DataFrame) -> None:
    """Gains by M with their spread over seeds, between no gain and the largest possible; an arrow is an upper bound."""
    smooth, single = smoothed_and_single(measured)
    lines = {str(method): gains for method, gains in smooth.groupby("method", sort=False)}
    published = single[single["method"] == METHODS[0]]
    lines[f"{METHODS[0]}, as published"] = published.assign(gain=published["published_gain"])
    most = int(measured["models"].max())
    for n, (label, runs) in enumerate(lines.items()):
        gains, late = runs.groupby("models")["gain"], runs["together"].isna().groupby(runs["models"]).any()
        mean, aside = gains.mean(), (n - 1) * most / 100
        axes.errorbar(
            mean.index + aside, mean, gains.std().fillna(0).mask(late, most / 20), uplims=late.to_numpy(),
            fmt="os^"[n] + DASHES[n], color=COLOURS[n], label=label, linewidth=1.3, markersize=4, capsize=2,
        )  # fmt: skip
    axes.plot([1, most], [1, most], ":", color="grey", linewidth=1, label="gain = M")
    axes.axhline(1, color="grey", linewidth=0.8)
    axes.set(xlabel="models M", ylabel="gain", xticks=[1, *sorted(measured["models"].unique())])
    axes.legend(fontsize=7)


def draw_curves(axes: Axes, curves: pd.DataFrame) -> None:
    """Accuracy of the least accurate model by round, a line per M; FedAvg's last accuracy is the target."""
    for n, (models, curve) in enumerate(curves.groupby("models")):
        label = "FedAvg" if models == 1 else f"M = {models}"
        axes.plot(curve["round"], curve["accuracy"], DASHES[n % 4], color=COLOURS[n % 7], label=label, linewidth=1.3)
        if models == 1:
            axes.axhline(curve["accuracy"].iloc[-1], color="grey", linewidth=0.8)
    axes.set(xlabel="round", ylabel="accuracy of the worst model")
    axes.legend(fontsize=7, loc="lower right")


def _parts(settings: Sequence[CopiesSetting], small: Sequence[CopiesSetting], quick: bool) -> list[Part]:
    return [setting.part for setting in (small if quick else settings)]


REPRODUCTIONS = (
    reproduction("mfa-fig3", partial(_parts, FULL, QUICK_FULL), partial(find, [above_one, growth]), draw),
    reproduction("mfa-fig4", partial(_parts, PARTIAL, QUICK_PARTIAL), partial(find, [above_one]), draw),
)
