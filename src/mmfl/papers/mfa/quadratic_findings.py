"""Findings for Figures 1 and 2 of Bhuyan, Moharir & Joshi 2022: tables, claims, figures."""

from collections.abc import Hashable, Iterator, Mapping

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy import stats

from mmfl.papers.evidence import Quantity, alike, claim_with, every, fact, greater, spread
from mmfl.papers.measurements import by_round
from mmfl.papers.mfa.chain import Chain
from mmfl.papers.reproduction import NOTES, OWN, Claim, Findings, Frames, StatisticalTest, Verdict
from mmfl.report.plots import COLOURS, DASHES, curve, legend, panels

RAND, ROTATE = "mfa-rand", "mfa-rr"
METHODS = [RAND, ROTATE]
RATE_NAMES: dict[Hashable, str] = {"constant": "0.1", "decaying": "30 / (100 + t)"}
ROUNDS = 1000
REFERENCE: dict[tuple[Hashable, ...], str] = {
    ("constant", 2, RAND): "-3.113 ± 0.012",
    ("constant", 2, ROTATE): "-3.118 ± 0.000",
    ("constant", 12, RAND): "-3.073 ± 0.072",
    ("constant", 12, ROTATE): "-3.122 ± 0.006",
    ("decaying", 2, RAND): "-2.991 ± 0.013",
    ("decaying", 2, ROTATE): "-2.990 ± 0.000",
    ("decaying", 12, RAND): "-2.984 ± 0.067",
    ("decaying", 12, ROTATE): "-2.994 ± 0.001",
}
"""gap(1000) of reference runs: the paper has curves without numbers."""

REFERENCE_GAIN: dict[tuple[Hashable, ...], str] = {(12, RAND): "about 8", (12, ROTATE): "about 11"}
"""Gains of reference runs: the paper has a figure without numbers."""

_RESOLUTION = 5e-5  # of a gap, which is kept with four decimals


def find_gaps(frames: Frames) -> Findings:
    """Figure 1: the last gaps beside those of the reference runs."""
    measured = frames["gaps"]
    claims, lines = list(start_claims(measured)), []
    for (rate, models), group in measured.groupby(["rate", "models"]):
        last = int(group["round"].max())
        final = group[group["round"] == last].pivot_table(index="seed", columns="method", values="gap")
        for method in METHODS:
            known = REFERENCE.get((rate, models, method), "—") if last == ROUNDS else "—"
            lines.append([RATE_NAMES[rate], models, method, last, known, spread(final[method])])
        claims += gap_claims(f"lr {RATE_NAMES[rate]}, M = {models}", models, group, final)
    columns = ["learning rate", "M", "method", "rounds", "gap, reference runs", "gap"]
    return Findings(pd.DataFrame(lines, columns=columns), claims)


def start_claims(measured: pd.DataFrame) -> Iterator[Claim]:
    """The claims about F* and the first gap of the paper's federation."""
    chain = Chain()
    begun = measured[(measured["round"] == 0) & (measured["clients"] == chain.clients)]
    if len(begun):
        gap = float(begun["gap"].iloc[0])
        same = round(chain.least, 10) == -0.0194390882 and round(gap, 4) == -1.7113
        text = "F* and gap(0) are those of our reference runs, -0.0194390882 and -1.7113"
        yield fact(text, OWN, f"{chain.least:.10f}, {gap:.4f}", same)


def gap_claims(setting: str, models: Hashable, group: pd.DataFrame, final: pd.DataFrame) -> list[Claim]:
    """The claims: equal means for two models, MFA-RR better for many, MFA-Rand noisier for any number."""
    if models == 2:
        text = f"{setting}: MFA-Rand and MFA-RR end alike on average"
        means = [alike(text, "similar means", final[RAND], final[ROTATE], 0.02)]
    else:
        along = group.pivot_table(index="seed", columns="method", values="gap")
        means = [
            greater(f"{setting}: MFA-RR ends lower on average", "RR lower", final[RAND], final[ROTATE]),
            greater(f"{setting}: MFA-RR is lower on average over the rounds", "RR lower", along[RAND], along[ROTATE]),
        ]
    return [*means, noisier(f"{setting}: MFA-Rand varies far more", final[RAND], final[ROTATE])]


def noisier(text: str, ours: pd.Series, theirs: pd.Series) -> Claim:
    """The claim that runs of one method vary more than another's: the F interval of the ratio lies above 1."""
    runs, paper = len(ours), "considerably higher"
    if runs < 2:
        return Claim(text, paper, "one seed", Verdict.OPEN)
    ratio = float(ours.std(ddof=1)) / max(float(theirs.std(ddof=1)), _RESOLUTION)
    factor = float(stats.f.ppf(0.975, runs - 1, runs - 1)) ** 0.5
    seen = f"{ratio:.1f} times the standard deviation ({ratio / factor:.1f} to {ratio * factor:.1f}, 95%)"
    p = 2 * float(stats.f.sf(max(ratio, 1 / ratio) ** 2, runs - 1, runs - 1))
    towards = Verdict.HOLDS if ratio > 1 else Verdict.FAILS
    return claim_with(text, paper, seen, [StatisticalTest(towards, p)])


def draw_gaps(frames: Frames) -> Figure:
    """For each learning rate and number of models: the means, and beside them the single runs."""
    settings = frames["gaps"].groupby(["rate", "models"])
    figure, axes = panels(2 * len(settings), columns=4, xlabel="round", ylabel="gap: log10(F - F*)")
    for n, ((rate, models), group) in enumerate(settings):
        means, runs = axes[2 * n : 2 * n + 2]
        for k, method in enumerate(METHODS):
            by_seed = by_round(group, "gap", method)
            curve(means, by_seed, method, k)
            runs.plot(by_seed, color=COLOURS[k], linewidth=0.6, alpha=0.6)
        means.set_title(f"lr {RATE_NAMES[rate]}, M = {models}: mean ± sd")
        runs.set_title(f"lr {RATE_NAMES[rate]}, M = {models}: {group['seed'].nunique()} runs")
        runs.set_ylim(means.get_ylim())
    legend(figure, axes[0])
    return figure


def with_gain(measured: pd.DataFrame) -> pd.DataFrame:
    """The gain g = M T_1 / T_P, and `gain_of_one` with the mean rounds of a single model in place of T_P."""
    in_turn = measured["models"] * measured["alone"]
    return measured.assign(gain=in_turn / measured["together"], gain_of_one=in_turn / measured["one"])


def find_gains(frames: Frames) -> Findings:
    """Figure 2: the gains by local steps and models."""
    measured = with_gain(frames["gains"])
    lines = []
    for (steps, models), group in measured.groupby(["steps", "models"]):
        line = [steps, models]
        for method in METHODS:
            subset = group[group["method"] == method]
            known = REFERENCE_GAIN.get((models, method), "—")
            line += [known, spread(subset["gain"], 2), spread(subset["gain_of_one"], 2)]
        lines.append(line)
    columns = ["E", "M"] + [f"{method}{what}" for method in METHODS for what in (", reference runs", "", ", one model")]
    notes = [NOTES["gain_of_one"]]
    if late := int(measured["together"].isna().sum()):
        notes.append(f"{late} runs did not meet the target by their last round and are left out.")
    return Findings(pd.DataFrame(lines, columns=columns), gain_claims(measured), notes)


def gain_claims(measured: pd.DataFrame) -> list[Claim]:
    """The claims that the gain grows for both methods, nearly linearly for MFA-RR and less for MFA-Rand."""
    gains = measured.pivot_table(index="seed", columns=["method", "steps", "models"], values="gain", dropna=False)
    all_steps, all_models = sorted(measured["steps"].unique()), sorted(measured["models"].unique())
    many, claims = all_models[-1], []
    for method in METHODS:
        rises = {
            f"E = {steps}, M = {fewer} to {more}": (gains[method, steps, more], gains.get((method, steps, fewer), 1.0))
            for steps in all_steps
            for fewer, more in zip([1, *all_models], all_models, strict=False)
        }
        claims.append(_greater_everywhere(f"{method}: gain grows with M", "grows", rises))
    shares = {
        f"E = {steps}": (gains[ROTATE, steps, many] / many, gains[RAND, steps, many] / many) for steps in all_steps
    }
    for where, (rotating, _) in shares.items():
        text = f"mfa-rr: gain / M is nearly 1 at M = {many}, {where}"
        claims.append(alike(text, "nearly linear", rotating, 1.0, 0.15))
    behind = {where: (1.0, random) for where, (_, random) in shares.items()}
    claims.append(_greater_everywhere(f"mfa-rand: gain / M is below 1 at M = {many}", "sub-linear", behind))
    text = f"gain / M at M = {many}: mfa-rr ahead of mfa-rand"
    return [*claims, _greater_everywhere(text, "nearly linear against sub-linear", shares)]


def _greater(text: str, paper: str, ours: Quantity, theirs: Quantity) -> Claim:
    """The claim that one gain exceeds another; open where runs have none, for the others would be a selection."""
    missed = int(pd.Series(ours - theirs).isna().sum())
    if missed:
        return Claim(text, paper, f"{missed} runs did not meet the target", Verdict.OPEN)
    return greater(text, paper, ours, theirs)


def _greater_everywhere(text: str, paper: str, pairs: Mapping[str, tuple[Quantity, Quantity]]) -> Claim:
    """The claim that one quantity exceeds another in each of several settings."""
    return every(text, paper, {f"at {where}": _greater("", "", *pair) for where, pair in pairs.items()})


def draw_gains(frames: Frames) -> Figure:
    """Gain over the number of models, a panel for each number of local steps."""
    measured = with_gain(frames["gains"])
    all_steps = sorted(measured["steps"].unique())
    figure, axes = panels(len(all_steps), height=3.4, xlabel="models M", ylabel="gain M T_1 / T_P")
    for panel, steps in zip(axes, all_steps, strict=True):
        group = measured[measured["steps"] == steps]
        models = [1, *sorted(group["models"].unique())]
        panel.plot(models, models, color="grey", linewidth=0.8, linestyle=":", label="gain = M")
        for k, method in enumerate(METHODS):
            draw_gain(panel, group[group["method"] == method], method, k)
        panel.set(title=f"E = {steps}", xticks=models)
    legend(figure, axes[0])
    return figure


def draw_gain(axes: Axes, measured: pd.DataFrame, label: str, k: int) -> None:
    """The k-th line of a panel: mean and standard deviation of the measured gain, 1 for a single model."""
    by_models = measured.groupby("models")["gain"].agg(["mean", "std"]).fillna({"std": 0.0})
    by_models.loc[1] = [1.0, 0.0]
    line = by_models.sort_index()
    axes.errorbar(
        line.index.to_numpy(), line["mean"], line["std"], label=label, color=COLOURS[k], linestyle=DASHES[k],
        marker="o", markersize=4, capsize=2,
    )  # fmt: skip
