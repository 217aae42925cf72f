"""Bhuyan & Moharir 2022: bandit and random allocations, with few and many clients per round (Figures 1 to 8)."""

from collections.abc import Iterator
from functools import partial

from mmfl.papers.reproduction import Reproduction
from mmfl.papers.ucb.findings import (
    BANDITS,
    BOTH,
    NAMES,
    Measured,
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


def ahead(results: Measured, ours: str, theirs: str, paper: str) -> Question:
    """Whether the final accuracy of one policy is higher than another's, for both models."""
    pairs = {model: (results.late(ours, model), results.late(theirs, model)) for model in MODELS}
    return Question(f"{NAMES[ours]} ends above {NAMES[theirs]} in both models", paper, pairs)


def ahead_early(results: Measured, ours: str, theirs: str, paper: str) -> Question:
    """Whether the early accuracy of one policy is higher than another's, for both models."""
    pairs = {model: (results.early(ours, model), results.early(theirs, model)) for model in MODELS}
    return Question(f"{NAMES[ours]} begins above {NAMES[theirs]} in both models", paper, pairs)


def level(results: Measured, ours: str, paper: str, tolerance: float) -> Question:
    """Whether the final accuracy of a policy equals FedAvg's, for both models."""
    pairs = {model: (results.late(ours, model), results.late(FEDAVG, model)) for model in MODELS}
    return Question(f"{NAMES[ours]} ends level with {NAMES[FEDAVG]} in both models", paper, pairs, tolerance)


def few_unlike(runs: Runs) -> Iterator[Question]:
    """Figure 1."""
    results = runs.at(UNLIKE, FEW)
    for bandit in BANDITS:
        yield ahead(results, bandit, FEDAVG, "significantly better")
    yield level(results, MULTI, "same level", _WIDE)
    for bandit in BANDITS:
        yield ahead_early(results, bandit, MULTI, "instant leap against slow growth")


def many_unlike(runs: Runs) -> Iterator[Question]:
    """Figure 2."""
    results = runs.at(UNLIKE, MANY)
    for bandit in BANDITS:
        yield ahead(results, MULTI, bandit, "higher in the long run")
    yield level(results, MULTI, "as good", _NARROW)
    for bandit in BANDITS:
        yield ahead_early(results, bandit, MULTI, "higher in the first rounds")


def crossing(runs: Runs) -> Iterator[Question]:
    """Figure 3."""
    few, many = (runs.at(UNLIKE, drawn) for drawn in (FEW, MANY))
    for bandit in BANDITS:
        better = {model: (few.late(bandit, model), few.late(MULTI, model)) for model in MODELS}
        yield Question(f"{NAMES[bandit]} ends above {NAMES[MULTI]} with K={FEW}", "better with few clients", better)
        worse = {model: (many.late(MULTI, model), many.late(bandit, model)) for model in MODELS}
        yield Question(f"{NAMES[bandit]} ends below {NAMES[MULTI]} with K={MANY}", "worse with many clients", worse)


def few_alike(runs: Runs) -> Iterator[Question]:
    """Figure 4."""
    results, unlike = runs.at(ALIKE, FEW), runs.at(UNLIKE, FEW)
    for bandit in BANDITS:
        for other in (MULTI, FEDAVG):
            yield ahead(results, bandit, other, "better")
    yield level(results, MULTI, "similar", _WIDE)
    for bandit in BANDITS:
        leads = {model: (unlike.lead(bandit, MULTI, model), results.lead(bandit, MULTI, model)) for model in MODELS}
        yield Question(f"{NAMES[bandit]} leads {NAMES[MULTI]} by less than on Synthetic(1,1)", "smaller gap", leads)


def many_alike(runs: Runs) -> Iterator[Question]:
    """Figure 5."""
    results, few = runs.at(ALIKE, MANY), runs.at(ALIKE, FEW)
    for bandit in BANDITS:
        for other in (MULTI, FEDAVG):
            yield ahead(results, bandit, other, "better")
    model = MODELS[1]
    for bandit in BANDITS:
        leads = {model: (results.lead(bandit, MULTI, model), few.lead(bandit, MULTI, model))}
        yield Question(f"{NAMES[bandit]} leads {NAMES[MULTI]} by more than with K={FEW}", "larger gap", leads)


def always_ahead(runs: Runs) -> Iterator[Question]:
    """Figure 6."""
    sweep = runs.sweep(ALIKE)
    for bandit in BANDITS:
        ends = {
            f"K={drawn}": (results.late(bandit, BOTH), results.late(MULTI, BOTH)) for drawn, results in sweep.items()
        }
        text = f"{NAMES[bandit]} ends above {NAMES[MULTI]} with every K, mean of both models"
        yield Question(text, "better in all scenarios", ends)


def few_faces(runs: Runs) -> Iterator[Question]:
    """Figure 7."""
    for other in (MULTI, PARETO, FEDAVG):
        yield ahead(runs.at(FACES, FEW), RANKLIST, other, "marginally better")


def ten_faces(runs: Runs) -> Iterator[Question]:
    """Figure 8."""
    results = runs.at(FACES, TEN)
    for policy in (MULTI, *BANDITS):
        yield level(results, policy, "similar", _NARROW)
    for policy in (MULTI, RANKLIST):
        noises = {model: (results.noise(policy, model), results.noise(PARETO, model)) for model in MODELS}
        yield Question(f"{NAMES[policy]} changes more from test to test than {NAMES[PARETO]}", "noisier", noises)


_SETTING = (
    "Two models over 100 clients, {drawn} of which train in a round, each one model for one epoch in batches of 10; "
    "500 rounds, 5 seeds, each with data of its own. {data} The test accuracy is taken over the test examples of all "
    "clients together, which weights a client by its test size. FedAvg trains each model as in a run of its own. As "
    "published, the two bandit policies (discount 0.99) begin with a round in which all clients train both models; "
    "once more, FedAvg and Multi-FedAvg begin with the same round."
)
_LOGISTIC = (
    "{kind}, by logistic regression: model 1 has 60 inputs and 5 classes, model 2 has 30 inputs and 10 classes. A "
    "client has at most 1000 examples, which is the limit of LEAF's generator; the paper used LEAF and names none."
)
_PICTURES = (
    "Model 1 tells who smiles and model 2 who wears glasses: on CelebA with LEAF's network where its folder is at "
    "hand, else on generated faces (30 each of 100 people) with two convolutions. The paper does not give the number "
    "of clients."
)
_DATA = {
    UNLIKE: _LOGISTIC.format(kind="Synthetic(1,1), where clients differ in inputs and labels"),
    ALIKE: _LOGISTIC.format(kind="Synthetic-IID, where clients differ in their number of examples alone"),
    FACES: _PICTURES,
}
_KINDS = {UNLIKE: "Synthetic(1,1)", ALIKE: "Synthetic-IID", FACES: "faces"}


def _curves(id: str, data: str, drawn: int, questions: Questions, *beside: tuple[str, int]) -> Reproduction:
    """A figure of accuracy by round; its claims may also need the runs in `beside`."""
    return Reproduction(
        id,
        "ucb",
        f"Figure {id.removeprefix('ucb-fig')}: {_KINDS[data]} with {drawn} clients a round",
        _SETTING.format(drawn=drawn, data=_DATA[data]),
        parts((data, drawn), *beside),
        partial(find_curves, data, drawn, questions),
        partial(draw_curves, data, drawn),
    )


def _sweep(id: str, data: str, questions: Questions) -> Reproduction:
    """A figure of final accuracy by K."""
    return Reproduction(
        id,
        "ucb",
        f"Figure {id.removeprefix('ucb-fig')}: {_KINDS[data]}, accuracy by clients a round",
        _SETTING.format(drawn=f"K = {FEW} to {MANY}", data=_DATA[data]),
        parts((data, None)),
        partial(find_sweep, data, questions),
        partial(draw_sweep, data),
    )


REPRODUCTIONS: tuple[Reproduction, ...] = (
    _curves("ucb-fig1", UNLIKE, FEW, few_unlike),
    _curves("ucb-fig2", UNLIKE, MANY, many_unlike),
    _sweep("ucb-fig3", UNLIKE, crossing),
    _curves("ucb-fig4", ALIKE, FEW, few_alike, (UNLIKE, FEW)),
    _curves("ucb-fig5", ALIKE, MANY, many_alike, (ALIKE, FEW)),
    _sweep("ucb-fig6", ALIKE, always_ahead),
    _curves("ucb-fig7", FACES, FEW, few_faces),
    _curves("ucb-fig8", FACES, TEN, ten_faces),
)
