"""What each step of `forecast` contributes, and candidates for a better one: variants compared with it seed by seed."""

from collections.abc import Sequence
from functools import partial

import pandas as pd
from matplotlib import pyplot
from matplotlib.figure import Figure

from mmfl.papers.evidence import all_greater, choose, fact, holm, p_value, spread
from mmfl.papers.forecast.accuracy import parts_of_methods
from mmfl.papers.forecast.runs import (
    FIVE,
    FULL,
    OURS,
    QUICK_NETWORKS,
    SMALL_FIVE,
    SMALL_NETWORKS,
    SMALL_THREE,
    THREE,
    Setting,
    least,
    relative,
)
from mmfl.papers.forecast.variants import VARIANTS, method
from mmfl.papers.reproduction import NOTES, Claim, Findings, Frames, Part, reproduction
from mmfl.report.differences import difference

STEPS = (
    ("data-share", "last-loss"),
    ("residual", "last-loss"),
    ("residual", "data-share"),
    ("whole-forecast", "residual"),
    ("no-bias", "whole-forecast"),
    (OURS, "no-bias"),
    (OURS, "unequal-tasks"),
    (OURS, "sampled-at-random"),
)
"""The better of two methods that differ in one step, and the other one."""

_FEWER = 3  # seeds with five tasks, where a variant takes long


def parts(full: Setting, small: Setting, seeds: int, names: Sequence[str], quick: bool) -> list[Part]:
    """A part for each variant; in the quick form one for all. Besides, those of full participation and of ours."""
    folder = f"forecast-ablation/{full.name}"
    shared = parts_of_methods(full, small, quick, (FULL, OURS), seeds)
    makers = {name: partial(method, name) for name in names}
    if quick:
        return [*shared, small.part(folder, "all", list(makers.values()), range(small.seeds))]
    return [*shared, *(full.part(folder, name, [make], range(seeds)) for name, make in makers.items())]


def find(names: Sequence[str], frames: Frames) -> Findings:
    """Every variant's share of full participation's accuracy, and its difference to `forecast`."""
    current, served = (_complete(relative(frames, weights), names) for weights in ("accuracy", "served"))
    adjusted = holm([p_value(current[name], current[OURS]) for name in names])
    chance = dict(zip(names, adjusted, strict=True))
    rows = [
        {
            "variant": f"{name} *" if name in VARIANTS and VARIANTS[name].candidate else name,
            "what is different": VARIANTS[name].text if name in VARIANTS else "",
            "current weights": spread(current[name]),
            "averaged weights": spread(served[name]),
            "lowest seed": least(current[name]),
            f"less {OURS}": "" if name == OURS else difference(current[name], current[OURS]).interval(),
            "p (Holm)": "" if name == OURS else f"{chance[name]:.3f}",
            f"averaged, less {OURS}": "" if name == OURS else difference(served[name], served[OURS]).interval(),
        }
        for name in (OURS, *names)
    ]
    return Findings(pd.DataFrame(rows), _claims(names, current, frames), [NOTES["forecast_variants"]])


def _complete(ratio: pd.DataFrame, names: Sequence[str]) -> pd.DataFrame:
    """The seeds that all variants have."""
    return ratio[[OURS, *names]].dropna()


def _claims(names: Sequence[str], current: pd.DataFrame, frames: Frames) -> list[Claim]:
    """Every step is a gain, and so is the best variant; and none of them asks more of clients."""
    known = [pair for pair in STEPS if set(pair) <= set(current)]
    steps = all_greater([(f"{a} ends above {b}", current[a], current[b]) for a, b in known])
    candidates = [(f"{name} ends above {OURS}", current[name], current[OURS]) for name in names]
    best = str(current[list(names)].mean().idxmax())
    lead = choose(all_greater(candidates), list(names).index(best))
    costs = frames["costs"][frames["costs"]["method"].isin(names)]
    asked, most = float(costs["forward_passes"].max()), costs.groupby("method")["trainings"].mean().max()
    text = "no variant asks anything of clients that are not drawn"
    free = fact(text, "", f"{asked:g} losses, at most {most:.1f} trainings a round", asked == 0)
    return [*steps, lead, free]


def draw(names: Sequence[str], frames: Frames) -> Figure:
    """The difference of every variant to `forecast`, with its 95% interval, of current and of averaged weights."""
    figure, axes = pyplot.subplots(1, 2, figsize=(11, 1.2 + 0.25 * len(names)), sharey=True, layout="constrained")
    titles = {"accuracy": "current weights", "served": "averaged weights"}
    for panel, (weights, title) in zip(axes, titles.items(), strict=True):
        ratio = _complete(relative(frames, weights), names)
        gaps = [difference(ratio[name], ratio[OURS]) for name in names]
        mean, half = [gap.mean for gap in gaps], [gap.half if gap.pairs > 1 else 0.0 for gap in gaps]
        panel.errorbar(mean, range(len(names)), xerr=half, fmt="o", markersize=4, linewidth=1.2)
        panel.axvline(0.0, color="grey", linewidth=0.8)
        panel.set(title=title, xlabel=f"relative accuracy, less that of {OURS}")
        panel.grid(axis="x", alpha=0.3)
    axes[0].set_yticks(range(len(names)), names)
    axes[0].set_ylim(len(names) - 0.5, -0.5)
    return figure


_FINALISTS = ("bias-once-seen", "mean-once-seen", "common-step", "common-step-0.7", "common-step-between-units")
"""The candidates that did best with small networks."""

_OF_THREE = (*(name for name, variant in VARIANTS.items() if not variant.candidate), "step-units", *_FINALISTS)
_OF_FIVE = (
    "last-loss", "residual", "whole-forecast", "no-bias", "unequal-tasks", "cap-3", "sampled-at-random", "step-units",
    *_FINALISTS,
)  # fmt: skip
_ALL = tuple(VARIANTS)

REPRODUCTIONS = (
    reproduction(
        "forecast-ablation-3tasks",
        partial(parts, THREE, SMALL_THREE, THREE.seeds, _OF_THREE),
        partial(find, _OF_THREE),
        partial(draw, _OF_THREE),
    ),
    reproduction(
        "forecast-ablation-5tasks",
        partial(parts, FIVE, SMALL_FIVE, _FEWER, _OF_FIVE),
        partial(find, _OF_FIVE),
        partial(draw, _OF_FIVE),
    ),
    reproduction(
        "forecast-candidates",
        partial(parts, SMALL_NETWORKS, QUICK_NETWORKS, SMALL_NETWORKS.seeds, _ALL),
        partial(find, _ALL),
        partial(draw, _ALL),
    ),
)
