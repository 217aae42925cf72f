"""Bhuyan & Moharir 2022: bandit and random allocations, with few and many clients per round (Figures 1 to 8)."""

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import product

from mmfl.papers.reproduction import Reproduction, reproduction
from mmfl.papers.ucb.findings import (
    BANDITS,
    BOTH,
    NAMES,
    Question,
    Questions,
    Runs,
    draw_curves,
    draw_sweep,
    find_curves,
    find_sweep,
)
from mmfl.papers.ucb.training import FEDAVG, FEW, MANY, MODELS, MULTI, PARETO, RANKLIST, TEN, parts

UNLIKE, ALIKE, FACES = "synthetic-1-1", "synthetic-iid", "faces"
_WIDE, _NARROW = 0.05, 0.03  # within which accuracies count as the same: with 2 clients a round, and with more


_ABOVE, _LEVEL, _EARLY = "{} ends above {}", "{} ends level with {}", "{} begins above {}"
_QUESTIONS: dict[str, list[tuple[str, Sequence[str], str, Sequence[str], str, float | None]]] = {
    "ucb-fig1": [
        ("late", BANDITS, _ABOVE, [FEDAVG], "significantly better", None),
        ("late", [MULTI], _LEVEL, [FEDAVG], "same level", _WIDE),
        ("early", BANDITS, _EARLY, [MULTI], "instant leap against slow growth", None),
    ],
    "ucb-fig2": [
        ("late", [MULTI], _ABOVE, BANDITS, "higher in the long run", None),
        ("late", [MULTI], _LEVEL, [FEDAVG], "as good", _NARROW),
        ("early", BANDITS, _EARLY, [MULTI], "higher in the first rounds", None),
    ],
    "ucb-fig4": [
        ("late", BANDITS, _ABOVE, [MULTI, FEDAVG], "better", None),
        ("late", [MULTI], _LEVEL, [FEDAVG], "similar", _WIDE),
    ],
    "ucb-fig5": [("late", BANDITS, _ABOVE, [MULTI, FEDAVG], "better", None)],
    "ucb-fig7": [("late", [RANKLIST], _ABOVE, [MULTI, PARETO, FEDAVG], "marginally better", None)],
    "ucb-fig8": [
        ("late", [MULTI, *BANDITS], _LEVEL, [FEDAVG], "similar", _NARROW),
        ("noise", [MULTI, RANKLIST], "{} changes more from test to test than {}", [PARETO], "noisier", None),
    ],
}
"""What the figures by round claim: a quantity of some policies exceeds that of others, or is within a tolerance."""


def ask(id: str, data: str, drawn: int, runs: Runs) -> Iterator[Question]:
    """The questions of a figure by round, each about both models; then those of Figures 4 and 5 about leads."""
    results = runs.at(data, drawn)
    for quantity, ours, template, theirs, paper, tolerance in _QUESTIONS[id]:
        measure = getattr(results, quantity)
        for one, other in product(ours, theirs):
            text = template.format(NAMES[one], NAMES[other]) + (" in both models" if quantity != "noise" else "")
            pairs = {model: (measure(one, model), measure(other, model)) for model in MODELS}
            yield Question(text, paper, pairs, tolerance)
    if id == "ucb-fig4":
        yield from compare_leads(runs.at(UNLIKE, FEW), results, MODELS, "less than on Synthetic(1,1)", "smaller gap")
    if id == "ucb-fig5":
        yield from compare_leads(results, runs.at(ALIKE, FEW), MODELS[1:], f"more than with K={FEW}", "larger gap")


def compare_leads(
    larger: Runs, smaller: Runs, models: Sequence[str], comparison: str, paper: str
) -> Iterator[Question]:
    """Whether the bandits lead random clients by more in some runs than in others."""
    for bandit in BANDITS:
        leads = {model: (larger.lead(bandit, MULTI, model), smaller.lead(bandit, MULTI, model)) for model in models}
        yield Question(f"{NAMES[bandit]} leads {NAMES[MULTI]} by {comparison}", paper, leads)


def crossing(runs: Runs) -> Iterator[Question]:
    """Figure 3."""
    few, many = (runs.at(UNLIKE, drawn) for drawn in (FEW, MANY))
    for bandit in BANDITS:
        better = {model: (few.late(bandit, model), few.late(MULTI, model)) for model in MODELS}
        yield Question(f"{NAMES[bandit]} ends above {NAMES[MULTI]} with K={FEW}", "better with few clients", better)
        worse = {model: (many.late(MULTI, model), many.late(bandit, model)) for model in MODELS}
        yield Question(f"{NAMES[bandit]} ends below {NAMES[MULTI]} with K={MANY}", "worse with many clients", worse)


def always_ahead(runs: Runs) -> Iterator[Question]:
    """Figure 6."""
    sweep = runs.sweep(ALIKE)
    for bandit in BANDITS:
        ends = {f"K={drawn}": (here.late(bandit, BOTH), here.late(MULTI, BOTH)) for drawn, here in sweep.items()}
        text = f"{NAMES[bandit]} ends above {NAMES[MULTI]} with every K, mean of both models"
        yield Question(text, "better in all scenarios", ends)


def _curves(id: str, data: str, drawn: int, *beside: tuple[str, int]) -> Reproduction:
    """A figure of accuracy by round; its claims may also need the runs in `beside`."""
    find = partial(find_curves, data, drawn, partial(ask, id, data, drawn))
    return reproduction(id, partial(parts, [(data, drawn), *beside]), find, partial(draw_curves, data, drawn))


def _sweep(id: str, data: str, questions: Questions) -> Reproduction:
    """A figure of final accuracy by K."""
    find = partial(find_sweep, data, questions)
    return reproduction(id, partial(parts, [(data, None)]), find, partial(draw_sweep, data))


REPRODUCTIONS: tuple[Reproduction, ...] = (
    _curves("ucb-fig1", UNLIKE, FEW),
    _curves("ucb-fig2", UNLIKE, MANY),
    _sweep("ucb-fig3", UNLIKE, crossing),
    _curves("ucb-fig4", ALIKE, FEW, (UNLIKE, FEW)),
    _curves("ucb-fig5", ALIKE, MANY, (ALIKE, FEW)),
    _sweep("ucb-fig6", ALIKE, always_ahead),
    _curves("ucb-fig7", FACES, FEW),
    _curves("ucb-fig8", FACES, TEN),
)
