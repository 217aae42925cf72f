"""Table 1 of Zhang et al. 2025: accuracy relative to full participation, three and five tasks."""

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from mmfl.data import Dataset, from_arrays
from mmfl.papers.evidence import above_each, greater, markdown, spread
from mmfl.papers.measurements import KEYS, LAST, accuracy, draw_by_round, final, mean_costs, tidy
from mmfl.papers.reproduction import (
    Claim,
    Findings,
    Frames,
    PaperTrainer,
    Part,
    as_published,
    digits,
    federations,
    reproduction,
)
from mmfl.randomness import Purpose, generator
from mmfl.report.differences import difference

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
# Comparisons in the paper's text.
_NAMED = (
    ("mmfl-lvr", "random"),
    ("mmfl-lvr", "mmfl-gvr"),
    ("mmfl-stalevre", "mmfl-lvr"),
    (_BEST, "mifa"),
    (_BEST, "random"),
    ("mmfl-gvr", "random"),
)
_STEPS = ("random", "mmfl-gvr", "mmfl-lvr", "lvr-systematic")  # whose step sizes a figure shows
# Methods that train side by side, so that what they keep of all clients fits into a GPU's memory.
_GROUPS = {
    "memoryless": ["full", "random", "mmfl-gvr", "mmfl-lvr", "lvr-systematic", "roundrobin-gvr"],
    "stalevr": ["mmfl-stalevr", "stalevr-opt"],
    "stored": ["mmfl-gvr-star", "fedvarp", "mifa", "mmfl-stalevre", "stalevre-systematic"],
    "scaffold": ["scaffold"],
}
_ALONE = (
    "full", "mmfl-gvr", "mmfl-gvr-star", "roundrobin-gvr", "mmfl-stalevr", "stalevr-opt", "mmfl-stalevre",
    "stalevre-systematic", "scaffold",
)  # fmt: skip
_LONG_GROUPS = {
    "drawn": ["random", "mmfl-lvr", "lvr-systematic", "fedvarp", "mifa"],
    **{method: [method] for method in _ALONE},
}
SMALL3 = ["federation.clients=40", *digits("fashion-a", "fashion-b", "fashion-c")]
SMALL5 = [
    "federation.clients=40",
    *digits("fashion-a", "fashion-b"),
    *digits("cifar10", "emnist", model="perceptron"),
    "tasks.shakespeare.data=mmfl.papers.variance.table1.babble",
    "tasks.shakespeare.model={name='character-lstm', vocabulary=6, embedding=6, hidden=12, layers=1}",
    "tasks.shakespeare.lr=1.0",
]


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
    return _parts("lvr-3tasks", _GROUPS, 20, 3, SMALL3) if quick else _parts("lvr-3tasks", _GROUPS, 150, 5)


def parts5(quick: bool) -> list[Part]:
    """Five tasks of four kinds (quick: digits and generated text)."""
    return _parts("lvr-5tasks", _GROUPS, 15, 2, SMALL5) if quick else _parts("lvr-5tasks", _LONG_GROUPS, 150, 3)


def _parts(
    preset: str, groups: Mapping[str, list[str]], rounds: int, seeds: int, settings: Sequence[str] = ()
) -> list[Part]:
    """A part for each group of methods."""

    def run(methods: list[str], trainer: PaperTrainer) -> Frames:
        federation_of, published = federations(preset, settings), [as_published(method) for method in methods]
        compared = trainer.compare(federation_of, published, rounds, 0.1, seeds, evaluate_every=5, evaluate_last=LAST)
        frames = {"accuracy": accuracy(compared), "costs": mean_costs(compared)}
        if any(method in _STEPS for method in methods):
            steps = tidy(compared, lambda run: run.step_size)
            frames["steps"] = steps[steps["method"].isin(_STEPS)]
        return frames

    return [Part(f"{preset}/{name}", rounds, range(seeds), partial(run, methods)) for name, methods in groups.items()]


def relative(frames: Frames) -> pd.DataFrame:
    """Mean over tasks relative to full participation, [seeds, methods]."""
    means = final(frames["accuracy"])["mean"].unstack("method")
    return means[list(PAPER)].div(means["full"], axis=0)


def find(column: int, frames: Frames) -> Findings:
    """Our column of the table beside the paper's, the gap to full participation, and the paper's orderings."""
    ratio = relative(frames)
    last = final(frames["accuracy"])
    rows = []
    for method in map(str, ratio):
        paper, subset = PAPER[method], last.loc[[method]]
        rows.append(
            {
                "method": method,
                "paper": "" if paper is None else f"{paper[column]:.3f}",
                "ours, relative": spread(ratio[method]),
                "ours, absolute": spread(subset["mean"]),
                **{task: f"{subset[task].mean():.3f}" for task in subset.columns.drop("mean")},
            }
        )
    note = "Difference of relative accuracy, row minus column, with half its 95% interval, paired over seeds:"
    return Findings(pd.DataFrame(rows), _claims(column, ratio), [note, markdown(_pairs(ratio))])


def _claims(column: int, ratio: pd.DataFrame) -> list[Claim]:
    """The gap between the best method and full participation, the paper's text and its ranking of sampled methods."""
    numbers = {method: paper[column] for method, paper in PAPER.items() if paper}
    margin = numbers[_BEST] - 1
    text = f"{_BEST} ends at most {-margin:.1%} below full participation"
    claims = [greater(text, f"{margin:+.3f}", ratio[_BEST], ratio["full"], margin)]
    sampled = [method for method in numbers if method not in ("full", "mmfl-gvr-star")]
    ranking = pairwise(sorted(sampled, key=lambda method: -numbers[method]))
    for better, worse in dict.fromkeys([*ranking, *_NAMED]):
        text = f"{better} reaches more of full participation than {worse}"
        paper = f"{numbers[better]:.3f} against {numbers[worse]:.3f}"
        claims.append(greater(text, paper, ratio[better], ratio[worse]))
    rivals = {method: ratio[method] for method in numbers if method not in ("full", _BEST)}
    text = f"{_BEST} is the best of the sampled methods, those of the slides included"
    return [*claims, above_each(text, "best", ratio[_BEST], rivals)]


def _pairs(ratio: pd.DataFrame) -> pd.DataFrame:
    """Every method compared with every other."""
    rows = []
    for method in ratio:
        gaps = {str(other): difference(ratio[method], ratio[other]).interval() for other in ratio}
        rows.append({"method": method, **gaps, str(method): ""})
    return pd.DataFrame(rows)


def draw(frames: Frames) -> Figure:
    """Accuracy by round of every task and of their mean, without the bands of so many methods."""
    means = frames["accuracy"].groupby(["method", "round"]).mean().reset_index()
    return draw_by_round(means, [str(column) for column in means if column not in KEYS], list(PAPER))


REPRODUCTIONS = (
    reproduction("table1-3tasks", parts3, partial(find, 0), draw),
    reproduction("table1-5tasks", parts5, partial(find, 1), draw),
)
