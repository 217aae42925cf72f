"""Where `forecast` works and where it fails: one thing changed at a time in the setting with three tasks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd
from matplotlib.figure import Figure

from mmfl.papers.evidence import all_greater, greater, spread
from mmfl.papers.forecast.accuracy import parts_of_methods
from mmfl.papers.forecast.runs import FULL, OURS, SMALL_THREE, THREE, Setting, least, published_method, relative
from mmfl.papers.reproduction import NOTES, Claim, Findings, Frames, PaperTrainer, Part, Verdict, reproduction
from mmfl.papers.variance.table1 import SMALL3
from mmfl.report.plots import COLOURS, panels

METHODS = (FULL, "random", "mifa", "mmfl-lvr", OURS)
_TASKS = ("fashion-a", "fashion-b", "fashion-c")
_SEEDS = 5
_GOAL = 0.98  # of full participation's accuracy
_AS_IT_IS = "as it is"


def _of_tasks(setting: str) -> list[str]:
    """The setting for every task."""
    return [f"tasks.{task}.{setting}" for task in _TASKS]


def _alone(task: str) -> list[str]:
    """A single task with natural owners, in place of the three tasks."""
    return ["federation={clients=120, partition='owners'}", f"tasks=[{{{task}}}]"]


@dataclass(frozen=True)
class Change:
    """What is changed: settings, those of the quick form if they are others, and the share of processors a round.

    `block` seeds train in one part. A change that `replaces` the tasks goes without the small tasks of the quick form.
    """

    settings: Sequence[str] = ()
    small: Sequence[str] | None = None
    rate: float = 0.1
    block: int = _SEEDS
    replaces: bool = False


_FEMNIST = "name='femnist', data='femnist', model={name='small-cnn', classes=62}, lr=0.1, epochs=5"
_SHAKESPEARE = (
    "name='shakespeare', data={name='shakespeare', window=80, most=32, least=2}, model='character-lstm', lr=2.0, "
    "epochs=5, loss='next_token', metric='accuracy'"
)
_BABBLE = (
    "name='text', data='mmfl.papers.variance.table1.babble', lr=1.0, epochs=5, loss='next_token', metric='accuracy', "
    "model={name='character-lstm', vocabulary=6, embedding=6, hidden=12, layers=1}"
)
_SYNTHETIC = "name='synthetic', data={name='synthetic', clients=40, cap=60}, lr=0.01, epochs=5"
_LOGISTIC = ", model={name='logistic', inputs=60, classes=5}"

CHANGES: dict[str, Change] = {
    "half the learning rate": Change(_of_tasks("lr=0.05"), _of_tasks("lr=0.15")),
    "twice the learning rate": Change(_of_tasks("lr=0.2"), _of_tasks("lr=0.6")),
    "2% a round": Change(rate=0.02),
    "5% a round": Change(rate=0.05),
    "30% a round": Change(rate=0.3),
    "Dirichlet 0.1": Change(_of_tasks("partition={name='dirichlet', alpha=0.1, sizes='high-low'}")),
    "writers of FEMNIST": Change(_alone(_FEMNIST), _alone(_SYNTHETIC + _LOGISTIC), block=2, replaces=True),
    "roles of Shakespeare": Change(_alone(_SHAKESPEARE), _alone(_BABBLE), block=2, replaces=True),
    "absent half of the time": Change(["federation.availability={name='bernoulli', probability=0.5}"]),
    "arriving": Change(
        ["federation.arrivals={name='exponential', first=60, gap=1.0}"],
        ["federation.arrivals={name='exponential', first=20, gap=0.5}"],
    ),
    "leaving": Change(
        [f"federation.departures={[75] * 40 + [0] * 80}"], [f"federation.departures={[8] * 13 + [0] * 27}"]
    ),
    "one task a client": Change(["federation.capacity=1"]),
}
"""What is changed, by name."""


def parts(quick: bool) -> list[Part]:
    """A part for each change, in blocks of seeds; besides, those of the setting as it is."""
    shared = parts_of_methods(THREE, SMALL_THREE, quick, METHODS, _SEEDS)
    if quick:
        return [*shared, *(_part(name, change, [0, 1], True) for name, change in CHANGES.items())]
    return [
        *shared,
        *(
            _part(name, change, range(n, min(n + change.block, _SEEDS)), False)
            for name, change in CHANGES.items()
            for n in range(0, _SEEDS, change.block)
        ),
    ]


def _part(name: str, change: Change, seeds: Sequence[int], quick: bool) -> Part:
    """The part that trains all methods with a change."""
    settings = change.settings if change.small is None or not quick else change.small
    small = SMALL3 if quick and not change.replaces else []
    if quick and change.replaces:
        settings = [each.replace("clients=120", "clients=40") for each in settings]
    setting = Setting(name, "lvr-3tasks", 15 if quick else 150, _SEEDS, _SEEDS, [*small, *settings], change.rate)
    folder = name.lower().replace("%", " percent").replace(" ", "-")
    made = setting.part("forecast-robust", folder, [published_method(each) for each in METHODS], seeds)

    def run(trainer: PaperTrainer) -> Frames:
        return {kind: frame.assign(setting=name) for kind, frame in made.run(trainer).items()}

    return Part(made.name, made.rounds, made.seeds, run)


def by_setting(frames: Frames) -> dict[str, Frames]:
    """The frames of each setting, of the seeds and methods that all have; first those of the setting as it is."""
    found: dict[str, Frames] = {}
    for kind, frame in frames.items():
        settings = frame["setting"] if "setting" in frame else pd.Series(None, frame.index, dtype=object)
        wanted = frame["method"].isin(METHODS) & (frame["seed"] < _SEEDS)
        for name, rows in frame[wanted].groupby(settings.fillna(_AS_IT_IS), sort=False):
            found.setdefault(str(name), {})[kind] = rows.drop(columns="setting", errors="ignore")
    return found


def find(frames: Frames) -> Findings:
    """What each method reaches of full participation in every setting, and where `forecast` fails."""
    settings = by_setting(frames)
    ratios = {name: relative(each) for name, each in settings.items()}
    rows = []
    for name, ratio in ratios.items():
        tests = settings[name]["accuracy"]
        full = tests[(tests["method"] == FULL) & (tests["round"] == tests["round"].max())]["mean"]
        served = relative(settings[name], "served")[OURS]
        rows.append(
            {
                "setting": name,
                "full, last round": f"{full.mean():.3f}",
                **{method: spread(ratio[method]) for method in METHODS if method != FULL},
                f"{OURS}, averaged weights": spread(served),
                f"{OURS}, lowest seed": least(ratio[OURS]),
            }
        )
    reaches = {name: _reaches(name, ratio[OURS]) for name, ratio in ratios.items()}
    leads = dict(zip(ratios, _leads(ratios), strict=True))
    claims = [claim for name in ratios for claim in (reaches[name], leads[name])]
    return Findings(pd.DataFrame(rows), claims, [NOTES["forecast_robust"], _failures(reaches, leads)])


def _reaches(name: str, ratio: pd.Series) -> Claim:
    """That `forecast` is near full participation."""
    text = f"{name}: {OURS} ends at most {1 - _GOAL:.0%} below full participation"
    return greater(text, f"goal: {_GOAL - 1:+.2f}", ratio, 1.0, _GOAL - 1)


def _leads(ratios: Mapping[str, pd.DataFrame]) -> list[Claim]:
    """That `forecast` is above the best of the others, tested together for all settings."""
    pairs = []
    for name, ratio in ratios.items():
        best = str(ratio.drop(columns=[FULL, OURS]).mean().idxmax())
        pairs.append((f"{name}: {OURS} ends above {best}, the best of the others", ratio[OURS], ratio[best]))
    return all_greater(pairs)


def _failures(reaches: Mapping[str, Claim], leads: Mapping[str, Claim]) -> str:
    """A sentence on the settings in which it falls short."""
    short = [name for name, claim in reaches.items() if claim.verdict is Verdict.FAILS]
    behind = [name for name, claim in leads.items() if claim.verdict is Verdict.FAILS]
    level = [name for name, claim in leads.items() if claim.verdict is Verdict.OPEN]
    return (
        f"More than {1 - _GOAL:.0%} below full participation: {_named(short)}. Below the best of the others: "
        f"{_named(behind)}; not decided: {_named(level)}."
    )


def _named(names: Sequence[str]) -> str:
    return ", ".join(names) or "nowhere"


def draw(frames: Frames) -> Figure:
    """The share of full participation's accuracy in every setting, a mark for each method and seed."""
    settings = by_setting(frames)
    figure, (panel,) = panels(1, height=0.9 + 0.32 * len(settings), xlabel="relative to full participation")
    figure.set_figwidth(8.4)
    names = list(settings)[::-1]
    for n, method in enumerate(METHODS[1:]):
        for place, name in enumerate(names):
            values = relative(settings[name])[method].dropna()
            label = method if place == 0 else None
            height = [place + 0.24 - 0.16 * n] * len(values)
            panel.scatter(values, height, s=12, color=COLOURS[n + 1], label=label)
    panel.axvline(1.0, color="grey", linewidth=0.8)
    panel.set_yticks(range(len(names)), names)
    figure.legend(loc="outside upper center", ncols=4, frameon=False)
    return figure


REPRODUCTIONS = (reproduction("forecast-robust", parts, find, draw),)
