"""Table 1 of Zhang et al. 2025: accuracy relative to full participation, three and five tasks."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from mmfl.data import Dataset, from_arrays
from mmfl.papers.evidence import greater, spread
from mmfl.papers.measurements import KEYS, accuracy, by_round, final, mean_costs, step_sizes
from mmfl.papers.pages import markdown
from mmfl.papers.reproduction import (
    Claim,
    Findings,
    Frames,
    Part,
    Reproduction,
    Trainer,
    as_published,
    federations,
)
from mmfl.randomness import Purpose, generator
from mmfl.report.differences import difference
from mmfl.report.plots import curve, grid, legend

# Relative accuracy with three and with five tasks; None where the paper has no such method.
PAPER: dict[str, tuple[float, float] | None] = {
    "full": (1.0, 1.0),
    "random": (0.792, 0.823),
    "fedvarp": (0.681, 0.785),
    "mifa": (0.854, 0.890),
    "scaffold": (0.783, 0.734),
    "mmfl-gvr": (0.886, 0.872),
    "mmfl-gvr-star": (0.960, 0.869),  # of the slides
    "mmfl-lvr": (0.896, 0.893),
    "mmfl-stalevr": (0.943, 0.946),
    "mmfl-stalevre": (0.918, 0.908),
    "roundrobin-gvr": None,
    "lvr-systematic": None,
    "stalevre-systematic": None,
    "stalevr-opt": None,
}
_BEST = "mmfl-stalevr"  # of the paper's methods
_LAST = 20
_STEPS = ("random", "mmfl-gvr", "mmfl-lvr", "lvr-systematic")  # whose step sizes a figure shows
# Methods that train side by side, so that what they keep of all clients fits into a GPU's memory.
_GROUPS = {
    "memoryless": ["full", "random", "mmfl-gvr", "mmfl-lvr", "lvr-systematic", "roundrobin-gvr"],
    "stalevr": ["mmfl-stalevr", "stalevr-opt"],
    "stored": ["mmfl-gvr-star", "fedvarp", "mifa", "mmfl-stalevre", "stalevre-systematic"],
    "scaffold": ["scaffold"],
}
_LONG_GROUPS = {
    "drawn": ["random", "mmfl-lvr", "lvr-systematic", "fedvarp", "mifa"],
    **{
        method: [method]
        for method in (
            "full",
            "mmfl-gvr",
            "mmfl-gvr-star",
            "roundrobin-gvr",
            "mmfl-stalevr",
            "stalevr-opt",
            "mmfl-stalevre",
            "stalevre-systematic",
            "scaffold",
        )
    },
}
_SMALL = {
    "linear": ['data="digits"', 'model="logistic"', "lr=0.3"],
    "hidden": ['data="digits"', 'model="perceptron"', "lr=0.3"],
    "text": [
        'data="mmfl.papers.variance.table1.babble"',
        "model={name='character-lstm', vocabulary=6, embedding=6, hidden=12, layers=1}",
        "lr=1.0",
    ],
}


def babble(owners: int = 40, windows: int = 12, length: int = 8, characters: int = 6, seed: int = 0) -> Dataset:
    """Random text for each owner, from a Markov chain in which each character has two likely successors."""
    rng = generator(seed, Purpose.DATA)
    chain = rng.dirichlet([0.2] * characters, size=characters).cumsum(1)
    text = rng.integers(0, characters, (owners * windows, length + 1))
    for t in range(length):
        chance = rng.random(len(text))[:, None]
        text[:, t + 1] = (chance > chain[text[:, t]]).sum(1).clip(max=characters - 1)
    owner = np.repeat(np.arange(owners), windows)
    return from_arrays(text[:, :-1], text[:, 1:], owner=owner, test_share=0.2, name="babble", seed=seed)


def parts3(quick: bool) -> list[Part]:
    """Three Fashion-MNIST tasks (quick: three linear models of digits)."""
    small = _settings({f"fashion-{task}": _SMALL["linear"] for task in "abc"})
    settings = ["federation.clients=40", *small] if quick else []
    rounds, seeds = (20, 3) if quick else (150, 5)
    return [
        Part(f"lvr-3tasks/{name}", rounds, range(seeds), partial(_run, "lvr-3tasks", settings, methods, rounds, seeds))
        for name, methods in _GROUPS.items()
    ]


def parts5(quick: bool) -> list[Part]:
    """Five tasks of four kinds (quick: digits and generated text)."""
    kinds = {"fashion-a": "linear", "fashion-b": "linear", "cifar10": "hidden", "emnist": "hidden"}
    small = _settings({task: _SMALL[kind] for task, kind in {**kinds, "shakespeare": "text"}.items()})
    settings = ["federation.clients=40", *small] if quick else []
    rounds, seeds = (15, 2) if quick else (150, 3)
    groups = _GROUPS if quick else _LONG_GROUPS
    return [
        Part(f"lvr-5tasks/{name}", rounds, range(seeds), partial(_run, "lvr-5tasks", settings, methods, rounds, seeds))
        for name, methods in groups.items()
    ]


def _settings(tasks: dict[str, list[str]]) -> list[str]:
    return [f"tasks.{task}.{setting}" for task, settings in tasks.items() for setting in settings]


def _run(
    preset: str, settings: Sequence[str], methods: Sequence[str], rounds: int, seeds: int, trainer: Trainer
) -> Frames:
    federation_of = federations(preset, settings)
    published = [as_published(method) for method in methods]
    compared = trainer.compare(federation_of, published, rounds, 0.1, seeds, evaluate_every=5, evaluate_last=_LAST)
    frames = {"accuracy": accuracy(compared), "costs": mean_costs(compared)}
    if any(method in _STEPS for method in methods):
        steps = step_sizes(compared)
        frames["steps"] = steps[steps["method"].isin(_STEPS)]
    return frames


def relative(frames: Frames) -> pd.DataFrame:
    """Mean over tasks relative to full participation, [seeds, methods]; absolute if full participation was not run."""
    means = final(frames["accuracy"], _LAST)["mean"].unstack("method")
    known = [method for method in PAPER if method in means]
    return means[known].div(means["full"], axis=0) if "full" in means else means[known]


def find(column: int, frames: Frames) -> Findings:
    """Our column of the table beside the paper's, the gap to full participation, and the paper's orderings."""
    ratio = relative(frames)
    last = final(frames["accuracy"], _LAST)
    rows = []
    for method in map(str, ratio):
        paper, subset = PAPER[method], last.loc[[method]]
        rows.append(
            {
                "method": method,
                "paper": "" if paper is None else f"{paper[column]:.3f}",
                "ours, relative": spread(ratio[method]) if "full" in ratio else "—",
                "ours, absolute": spread(subset["mean"]),
                **{task: f"{subset[task].mean():.3f}" for task in subset.columns.drop("mean")},
            }
        )
    notes = ["Difference of relative accuracy, row minus column, with half its 95% interval, paired over seeds:"]
    numbers = {method: paper[column] for method, paper in PAPER.items() if paper and method in ratio}
    claims = [*_gap(ratio, numbers), *_orderings(ratio, numbers)]
    return Findings(pd.DataFrame(rows), claims, [*notes, markdown(_pairs(ratio))])


def _gap(ratio: pd.DataFrame, numbers: dict[str, float]) -> list[Claim]:
    """The gap between the paper's best method and full participation."""
    if not {_BEST, "full"} <= set(numbers):
        return []
    margin = numbers[_BEST] - 1
    text = f"{_BEST} ends at most {-margin:.1%} below full participation"
    return [greater(text, f"{margin:+.3f}", ratio[_BEST], ratio["full"], margin)]


def _orderings(ratio: pd.DataFrame, numbers: dict[str, float]) -> list[Claim]:
    """The claims of the paper's text and of its ranking of sampled methods, for the methods that were run."""
    numbers = {method: number for method, number in numbers.items() if method not in ("full", "mmfl-gvr-star")}
    ranked = sorted(numbers, key=lambda method: -numbers[method])
    below = list(pairwise(ranked))
    named = [
        ("mmfl-lvr", "random"),
        ("mmfl-lvr", "mmfl-gvr"),
        ("mmfl-stalevre", "mmfl-lvr"),
        (_BEST, "mifa"),
        (_BEST, "random"),
        ("mmfl-gvr", "random"),
    ]
    claims = []
    for better, worse in dict.fromkeys([*below, *named]):
        if better in numbers and worse in numbers:
            text = f"{better} reaches more of full participation than {worse}"
            paper = f"{numbers[better]:.3f} against {numbers[worse]:.3f}"
            claims.append(greater(text, paper, ratio[better], ratio[worse]))
    rivals = [method for method in numbers if method != _BEST]
    if _BEST in numbers and rivals:
        best = str(ratio[rivals].mean().idxmax())
        text = f"{_BEST} is the best of the paper's sampled methods (the best other: {best})"
        claims.append(greater(text, "best", ratio[_BEST], ratio[best]))
    return claims


def _pairs(ratio: pd.DataFrame) -> pd.DataFrame:
    """Every method compared with every other."""
    rows = []
    for subset in ratio:
        gaps = {str(other): difference(ratio[subset], ratio[other]) for other in ratio}
        cells = {other: f"{gap.mean:+.3f} ± {gap.half:.3f}" for other, gap in gaps.items()}
        rows.append({"method": subset, **cells, str(subset): ""})
    return pd.DataFrame(rows)


def draw(frames: Frames) -> Figure:
    """Accuracy by round of every task and of their mean, and the final relative accuracy beside the paper's."""
    table = frames["accuracy"]
    panels = [str(column) for column in table if column not in KEYS]
    methods = [method for method in PAPER if method in set(table["method"])]
    figure, axes = grid(len(panels))
    for panel, column in zip(axes, panels, strict=True):
        for n, method in enumerate(methods):
            mean = by_round(table, column, method).mean(axis=1).to_frame()
            curve(panel, mean, method, n)
        panel.set_title("mean of the tasks" if column == "mean" else column)
        panel.set_xlabel("round")
        panel.set_ylabel("test accuracy")
        panel.grid(alpha=0.3)
    legend(figure, axes[0])
    return figure


_SETTING = (
    "120 clients; 30% of the labels each; per task a tenth of the clients hold 90 to 150 examples, the others a tenth "
    "of that; a tenth of the clients lack one task; capacities mixed; rate 0.1; five local epochs of full-batch steps. "
    "Accuracy is the mean over the tasks and over the last 20 rounds, on the whole test set; relative to full "
    "participation of the same seed; ± is the standard deviation over seeds. Methods that sample by losses or norms "
    "do so without the floor that mmfl puts under these by default, as in the paper."
)


def _reproduction(
    id: str, column: int, parts: Callable[[bool], Sequence[Part]], title: str, setting: str
) -> Reproduction:
    return Reproduction(id, "variance", title, f"{setting} {_SETTING}", parts, partial(find, column), draw)


REPRODUCTIONS = (
    _reproduction(
        "table1-3tasks",
        0,
        parts3,
        "Table 1, three tasks",
        "Three Fashion-MNIST tasks, each partitioned on its own.",
    ),
    _reproduction(
        "table1-5tasks",
        1,
        parts5,
        "Table 1, five tasks",
        "Fashion-MNIST twice, CIFAR-10 (a pre-activation ResNet-18 of width 16 instead of 64, for all methods), EMNIST "
        "(in its place NIST handwriting with the same 47 classes) and Shakespeare (at most 32 windows a role).",
    ),
)
