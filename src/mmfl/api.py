"""The main functions of the Python interface: `train` one method, `compare` several, `sweep` over settings."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from mmfl.engine import Simulation
from mmfl.engine.precision import Precision
from mmfl.engine.trainer import Mode
from mmfl.errors import UserError, nearest
from mmfl.federation import Federation
from mmfl.methods import Method, make_method
from mmfl.pace import Pace
from mmfl.privacy import CentralNoise, Privacy
from mmfl.report.display import Display
from mmfl.runs.config import read, source_of
from mmfl.runs.directory import RunDirectory
from mmfl.runs.experiment import Experiment, conduct, seeds_of
from mmfl.runs.grid import check_grid
from mmfl.runs.listener import Listener, ListenerGroup, check_listeners
from mmfl.runs.results import Comparison, Run
from mmfl.runs.stopping import Stop
from mmfl.runs.sweep import train_sweep
from mmfl.runs.sweep_plan import plan_config, plan_federations
from mmfl.runs.sweep_results import Sweep

_SWEPT = [
    "rounds",
    "rate",
    "seeds",
    "evaluate_every",
    "evaluate_last",
    "checkpoint_every",
    "diagnose",
    "stop",
    "keep_best",
    "average",
    "pace",
    "engine",
    "precision",
    "privacy",
    "central_noise",
]
"""Options of `compare` that a sweep of federations takes and may vary."""


def train(
    federation: Federation,
    method: str | Method | Mapping[str, Any] = "forecast",
    rounds: int = 100,
    rate: float = 0.1,
    seed: int = 0,
    **options: Any,
) -> Run:
    """Trains all tasks of a federation with one method.

    `rate` is the share of all processors that may train in a round: the server's communication budget. Further options
    are those of `compare`: `evaluate_every`, `evaluate_last`, `directory`, `resume`, `checkpoint_every`, `device`,
    `engine`, `precision`, `privacy`, `central_noise`, `diagnose`, `stop`, `keep_best`, `average`, `pace`, `listeners`,
    `progress`.

    >>> import mmfl
    >>> tasks = [mmfl.Task(n, mmfl.models.LogisticRegression, mmfl.data.digits()) for n in ("even", "odd")]
    >>> run = mmfl.train(mmfl.Federation(tasks, clients=20), "random", rounds=3, rate=0.5)
    >>> list(run.accuracy.columns), len(run.accuracy)
    (['even', 'odd'], 3)
    """
    return compare(federation, [method], rounds, rate, [seed], **options).runs[0]


def compare(
    federation: Federation | Callable[[int], Federation],
    methods: Sequence[str | Method | Mapping[str, Any]],
    rounds: int = 100,
    rate: float = 0.1,
    seeds: int | Sequence[int] = 1,
    *,
    evaluate_every: int = 1,
    evaluate_last: int = 1,
    directory: str | Path | None = None,
    resume: bool = False,
    checkpoint_every: int = 10,
    device: str | None = None,
    engine: Mode = "auto",
    precision: Precision = "float32",
    privacy: Privacy | None = None,
    central_noise: CentralNoise | None = None,
    diagnose: bool = False,
    stop: Stop | None = None,
    keep_best: bool = False,
    average: float | None = None,
    pace: str | Mapping[str, Any] | Pace | None = None,
    listeners: Sequence[Listener] = (),
    progress: bool | None = None,
) -> Comparison:
    """Trains several methods with several seeds. All runs advance round by round together, which saves time.

    - `federation` may be a function of the seed, to partition the data differently for each seed.
    - `directory`: where to write metrics and checkpoints during the run. `resume=True` continues the run in it.
    - `evaluate_every`, `evaluate_last`: models are tested every so many rounds, and after each of the last rounds.
    - `diagnose` measures all clients' losses in every round, even if the method does not need them; this does not count
      towards the method's costs.
    - `privacy` clips every update and adds noise to it before the server uses it.
    - `central_noise` clips every update and adds noise to their sum, `mmfl.privacy.CentralNoise(clip=1.0, noise=2.0)`;
      the cost is `run.privacy_spent`.
    - `stop` ends the run before its last round: `mmfl.Stop(target=0.9)`, `mmfl.Stop(patience=20, seconds=3600)`.
    - `keep_best` keeps the weights of each task's best tested round, for `run.module(task, weights="best")`.
    - `average` averages each task's weights over rounds and tests these too, for `run.module(task, weights="average")`:
      a rate in (0, 1) is that of an exponential average, a whole number k the mean of the last k rounds.
    - `pace` says when a round ends and whose updates are used, where clients have devices: "barrier", or
      `{"name": "deadline", "seconds": 60}`. Methods that have a pace of their own keep it.
    - `listeners` are called after every round and can stop the run: trackers such as `mmfl.trackers.TensorBoard`, or
      your own.
    - `progress` shows the progress live; by default in notebooks only.

    >>> import mmfl
    >>> task = mmfl.Task("digits", mmfl.models.LogisticRegression, mmfl.data.digits())
    >>> result = mmfl.compare(mmfl.Federation([task], clients=20), ["random", "full"], rounds=3, rate=0.5)
    >>> result.table().index.tolist()
    ['random', 'full']
    """
    check_listeners(listeners)
    if isinstance(methods, str | Mapping | Method):
        raise UserError(f"methods is {methods!r}; expected a list of methods.")
    experiment = Experiment(
        federation_of=federation if callable(federation) else lambda seed: federation,
        methods=[make_method(method, pace) for method in methods],
        seeds=seeds_of(seeds),
        rounds=rounds,
        rate=rate,
        evaluate_every=evaluate_every,
        evaluate_last=evaluate_last,
        checkpoint_every=checkpoint_every,
        diagnose=diagnose,
        stop=Stop() if stop is None else stop,
        keep_best=keep_best,
        average=average,
        central_noise=central_noise,
    )
    if directory is None and resume:
        raise UserError("resume needs the run's directory.")

    simulation = Simulation(device, engine, precision, privacy=privacy)

    def open_directory() -> RunDirectory:
        config = {
            "source": "python",
            "methods": [method.name for method in experiment.methods],
            "seeds": list(experiment.seeds),
            "rounds": rounds,
            "rate": rate,
        }
        place = directory or ""
        return RunDirectory.open(place) if resume else RunDirectory.create(place, config, simulation.device)

    console = Console()
    display = [Display(console)] if progress or (progress is None and console.is_jupyter) else []
    return conduct(
        experiment,
        simulation,
        open_directory=None if directory is None else open_directory,
        resume=resume,
        listener=ListenerGroup([*listeners, *display]),
    )


def sweep(
    experiment: str | Path | Federation | Callable[..., Federation],
    grid: Mapping[str, Sequence[Any]],
    methods: Sequence[str | Method | Mapping[str, Any]] | None = None,
    *,
    directory: str | Path | None = None,
    device: str | None = None,
    listeners: Sequence[Listener] = (),
    progress: bool | None = None,
    **options: Any,
) -> Sweep:
    """Trains every method at every point of a grid. Runs that may advance in lockstep do, which saves time.

    - `experiment`: a configuration, by the name of its file or preset; then the keys of the grid are keys of the
      configuration, such as `"tasks.digits.lr"`, and `options` are values of it, such as `rounds=50` or `seeds=3`. Or a
      function that makes a federation: keys of the grid are its arguments or options of `compare`, and `seed` is given
      to it if it takes one. Or a federation, to sweep over options of `compare` alone, such as `rate`.
    - `methods`: by default those of the configuration, or `["forecast"]`.
    - `directory`: where to write metrics and checkpoints. If it holds the same sweep, only what is missing is trained;
      values and methods can be added.
    - `device`, `listeners` and `progress` are those of `compare`; listeners are told of every part of the sweep.

    >>> import mmfl
    >>> def federation(lr):
    ...     return mmfl.Federation([mmfl.Task("digits", mmfl.models.LogisticRegression, mmfl.data.digits(), lr=lr)], 20)
    >>> result = mmfl.sweep(federation, {"lr": [0.1, 0.3], "rate": [0.2, 0.5]}, ["random"], rounds=2)
    >>> result.table()[["lr", "rate", "method"]].values.tolist()
    [[0.1, 0.2, 'random'], [0.1, 0.5, 'random'], [0.3, 0.2, 'random'], [0.3, 0.5, 'random']]
    """
    check_grid(grid)
    check_listeners(listeners)
    if isinstance(experiment, str | Path):
        given = {**options, "methods": None if methods is None else list(methods)}
        plan = plan_config(read(experiment, **given).plain(), grid, source_of(experiment), device)
        plan = replace(plan, source="python")
    else:
        if unknown := next((name for name in options if name not in _SWEPT), None):
            raise UserError(f"sweep: unknown option '{unknown}': {nearest(unknown, _SWEPT)}")
        parameters = inspect.signature(compare).parameters
        known = {name: options.get(name, parameters[name].default) for name in _SWEPT}
        seeds = seeds_of(known.pop("seeds"))
        plan = plan_federations(experiment, grid, methods or ["forecast"], seeds, known, device)
    console = Console()
    shown = progress or (progress is None and console.is_jupyter)
    display = None
    if shown:
        from mmfl.report.sweep_page import SweepDisplay  # only here, since the pages take a while to import

        display = SweepDisplay(console)
    return train_sweep(plan, Path(directory) if directory else None, display, lambda common: listeners)
