"""Plans of sweeps: the experiments at the points of a grid, of a configuration or of federations made in Python."""

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

from mmfl.data import Dataset
from mmfl.engine import Simulation
from mmfl.errors import UserError, nearest
from mmfl.federation import Federation
from mmfl.methods import Method, make_method
from mmfl.runs.config import assign, parse
from mmfl.runs.config_schema import Config
from mmfl.runs.experiment import Experiment, seeds_of
from mmfl.runs.grid import Grid, check_size, describe, label_of, points, text_of
from mmfl.runs.stopping import Stop
from mmfl.runs.sweep_directory import SweepFile

# Settings in which runs of one part may differ: each replica has its own. All others are those of the round loop or of
# the engine, which replicas in lockstep share.
_OWN = ("tasks", "federation", "rate", "average", "pace", "methods")
_ENGINE = ("engine", "precision", "privacy")


@dataclass(frozen=True, eq=False)
class Trial:
    """One method at one point of a grid, with all seeds. Trials with the same `common` settings train in lockstep, but
    not one that may `stop` early: runs in lockstep stop together."""

    method: str
    point: Mapping[str, Any]
    common: Mapping[str, Any]
    make: Callable[[], Experiment]
    stops: bool = False

    @property
    def label(self) -> str:
        """What its runs are called."""
        return label_of(self.method, self.point)

    @property
    def shared(self) -> Mapping[str, Any]:
        """What trials in lockstep have in common; no two have the same where they may stop early."""
        return {**self.common, "trial": self.label} if self.stops else self.common

    def experiment(self) -> Experiment:
        """The experiment, with a method that is called by the trial's label; an error names the point."""
        try:
            made = self.make()
            for seed in made.seeds[:1]:
                federation = made.federation_of(seed)
                federation.check_rounds(made.rounds)
                made.stop.targets(federation.task_names)
        except UserError as error:
            raise UserError(f"sweep, {describe(self.point)}: {error}") from None
        return replace(made, methods=[replace(made.methods[0], name=self.label)])


@dataclass(frozen=True, eq=False)
class SweepPlan:
    """What a sweep trains. `settings` is all besides the grid, and `source` says where it was started, as `sweep.toml`
    keeps them; `engine_of` makes the engine for the common settings of some trials."""

    grid: Grid
    methods: Sequence[str]
    seeds: Sequence[int]
    settings: Mapping[str, Any]
    trials: Sequence[Trial]
    engine_of: Callable[[Mapping[str, Any]], Simulation]
    source: str = ""

    def federation(self) -> Federation:
        """The federation of the first point and seed."""
        return self.trials[0].experiment().federation_of(self.seeds[0])

    def file(self) -> SweepFile:
        """What `sweep.toml` says of it."""
        lower = [task.name for task in self.federation().tasks if task.main_metric.lower_is_better]
        return SweepFile(self.grid, self.methods, self.settings, self.source, lower)


def plan_config(settings: dict[str, Any], grid: Grid, source: str, device: str | None = None) -> SweepPlan:
    """The sweep of a complete configuration; `source` names it in errors, `device` replaces the one in it."""
    base = parse(deepcopy(settings), source)
    base.add_python_path()
    methods, seeds = [make_method(method).name for method in base.methods], seeds_of(base.seeds)
    check_size(grid, len(methods), len(seeds))
    loaded: dict[str, Dataset] = {}
    federations: dict[str, Callable[[int], Federation]] = {}
    trials = []
    for point in points(grid):
        values = deepcopy(settings)
        for key, value in point.items():
            assign(values, key, deepcopy(value), f"--grid {key}")
        config = parse(values, f"{source} with {describe(point)}").with_source(source)
        common = {key: value for key, value in config.plain().items() if key not in _OWN}
        whole = cache(partial(_make, config, loaded, federations))
        stops = config.stop.build().has_rule
        trials += [Trial(name, point, common, partial(_only, whole, n), stops) for n, name in enumerate(methods)]

    def engine_of(common: Mapping[str, Any]) -> Simulation:
        known = parse(dict(common), source)
        return Simulation(device or known.device, known.engine, known.precision, privacy=known.privacy.build())

    return SweepPlan(grid, methods, seeds, settings, trials, engine_of)


def plan_federations(
    federation: Federation | Callable[..., Federation],
    grid: Grid,
    methods: Sequence[str | Method | Mapping[str, Any]],
    seeds: Sequence[int],
    settings: Mapping[str, Any],
    device: str | None = None,
) -> SweepPlan:
    """The sweep of a federation, or of a function that makes one: keys that are no option of training are arguments of
    the function, as is `seed` where it takes one. `settings` are the options of training."""
    made = [make_method(method) for method in methods]
    check_size(grid, len(made), len(seeds))
    own = [key for key in grid if key not in settings]
    parameters = {} if isinstance(federation, Federation) else inspect.signature(federation).parameters
    if unknown := next((key for key in own if key not in parameters), None):
        raise UserError(
            f"sweep: '{unknown}' is no option of training and no argument of a function that makes the federation: "
            f"{nearest(unknown, [*settings, *(name for name in parameters if name != 'seed')])}"
        )

    @cache
    def federations(*texts: str) -> Callable[[int], Federation]:
        """The federations of a point by seed; points that differ only in options of training share them."""
        point = next(each for each in points(grid) if texts == tuple(text_of(each[key]) for key in own))
        arguments = {key: point[key] for key in own}
        return cache(lambda seed: _build(federation, arguments, seed))

    def experiment(method: Method, point: Mapping[str, Any]) -> Experiment:
        chosen = {key: point.get(key, value) for key, value in settings.items() if key not in _ENGINE}
        chosen["stop"] = Stop() if chosen["stop"] is None else chosen["stop"]
        federation_of = federations(*(text_of(point[key]) for key in own))
        paced = make_method(method, chosen.pop("pace", None))
        return Experiment(federation_of=federation_of, methods=[paced], seeds=seeds, **chosen)

    def engine_of(common: Mapping[str, Any]) -> Simulation:
        return Simulation(device, common["engine"], common["precision"], privacy=common["privacy"])

    trials = [
        Trial(
            method.name,
            point,
            {key: point.get(key, value) for key, value in settings.items() if key not in _OWN},
            partial(experiment, method, point),
            isinstance(stop := point.get("stop", settings["stop"]), Stop) and stop.has_rule,
        )
        for point in points(grid)
        for method in made
    ]
    known = {key: value for key, value in {**settings, "seeds": list(seeds)}.items() if value is not None}
    return SweepPlan(grid, [method.name for method in made], seeds, known, trials, engine_of, "python")


def _build(federation: Federation | Callable[..., Federation], arguments: Mapping[str, Any], seed: int) -> Federation:
    if isinstance(federation, Federation):
        return federation
    takes_seed = "seed" in inspect.signature(federation).parameters
    made = federation(**arguments, **({"seed": seed} if takes_seed else {}))
    if not isinstance(made, Federation):
        raise UserError(f"sweep: the function gives a {type(made).__name__}; expected an mmfl.Federation.")
    return made


def _make(
    config: Config, loaded: dict[str, Dataset], federations: dict[str, Callable[[int], Federation]]
) -> Experiment:
    """The experiment of a point; data and federations are shared with points that have the same."""
    experiment, values = config.experiment(loaded), config.plain()
    key = json.dumps([values["tasks"], values["federation"]], sort_keys=True, default=str)
    return replace(experiment, federation_of=federations.setdefault(key, experiment.federation_of))


def _only(whole: Callable[[], Experiment], method: int) -> Experiment:
    """An experiment with one of its methods; federations are shared with the others."""
    return replace(whole(), methods=[whole().methods[method]])
