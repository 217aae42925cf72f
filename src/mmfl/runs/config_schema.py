"""The keys of a configuration, checked, and the experiment that they describe."""

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from mmfl.data import Dataset
from mmfl.data.augmentation import AUGMENTATIONS
from mmfl.engine.precision import Precision
from mmfl.errors import UserError, at_place
from mmfl.federation import Federation
from mmfl.federation.arrivals import ARRIVALS
from mmfl.federation.availability import AVAILABILITIES
from mmfl.federation.batch_norm import BatchNormMode
from mmfl.federation.objectives import LOSSES
from mmfl.federation.optimisers import OPTIMISERS, StateLifetime
from mmfl.federation.schedules import SCHEDULES, STEP_SCHEDULES
from mmfl.federation.task import Task
from mmfl.methods import make_method
from mmfl.privacy import Privacy
from mmfl.registry import bind, build
from mmfl.runs.config_parts import Spec, build_named, load_data, make_model, make_partition
from mmfl.runs.experiment import Experiment, seeds_of
from mmfl.runs.layout import MADE_WITH
from mmfl.runs.stopping import Stop


class ConfigSection(BaseModel):
    """A table of the configuration. What stands below a key is its description in the reference."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True)


class TaskConfig(ConfigSection):
    """One task: `data` and `model` are names or dotted paths, or tables with `name` and options."""

    name: str = Field(examples=["digits"])
    """What the task is called in tables and records; no two may have the same name."""
    data: Spec = Field(examples=["digits", {"name": "synthetic", "clients": 60}, "my_module.load"])
    """Where its examples come from. Tasks that name the same data share it."""
    model: Spec = Field(examples=["logistic", {"name": "small-cnn", "side": 8}, "my_module.Network"])
    """The network to train: any function or class that makes an `nn.Module`."""
    lr: float | dict[str, Any] = Field(default=0.1, examples=[0.3, {"name": "decay", "beta": 30, "gamma": 100}])
    """Step size of local training: a number, or a schedule over the rounds."""
    lr_steps: Spec | None = Field(default=None, examples=[{"name": "cosine", "warm_up": 5}])
    """How the step size changes during local training: a schedule over the local steps. Without it, it does not."""
    optimiser: Spec = Field(default="sgd", examples=["adamw", {"name": "sgd", "momentum": 0.9, "clip_norm": 1.0}])
    """How a client turns gradients into steps."""
    optimiser_state: StateLifetime = Field(default="training", examples=["client"])
    """How long the optimiser's state (momentum, Adam's means and number of steps) lives: for one local `training`, or
    with the `client`, which goes on with it in its next training of the task."""
    epochs: int = Field(default=1, examples=[5])
    """Passes over a client's data in one training."""
    batch_norm: BatchNormMode = Field(default="shared", examples=["local"])
    """Where the statistics of batch norm live: `shared` (the mean over the drawn clients), `local` (they, and batch
    norm's scales and shifts, stay with each client: FedBN) or `frozen` (they never change)."""
    batch_size: int | dict[str, Any] | None = Field(default=None, examples=[32])
    """Examples in a local step: a number, or a schedule that gives the share of the client's data. Without it a step
    takes all of them."""
    loss: Spec = Field(
        default="cross_entropy",
        examples=["squared_error", {"name": "cross_entropy", "label_smoothing": 0.1}, "my_module.loss"],
    )
    """What training makes small: one value per example. The options of a table are keywords of the function."""
    metric: Spec = Field(default="accuracy", examples=["absolute_error", "auc", "my_module.score"])
    """What tables and comparisons go by, measured on the test examples: a function with one value per example, or a
    metric of the whole test set."""
    metrics: list[Spec] | dict[str, Spec] = Field(
        default_factory=list, examples=[["macro_f1", {"name": "top_k", "k": 3}], {"roc": "auc"}]
    )
    """Further metrics to report: a list, or a table that names each."""
    augment: Spec | list[Spec] | None = Field(
        default=None, examples=["flip", [{"name": "crop", "padding": 4}, "flip"], "my_module.augment"]
    )
    """Random changes of training inputs: one, or several in this order. Without it there are none."""
    partition: Spec | None = Field(default=None, examples=["iid", {"name": "labels", "fraction": 0.3}])
    """Who holds which of its examples, where it is not as `federation.partition` says."""
    priority: float = Field(default=1.0, examples=[2.0])
    """How much it counts, relative to the other tasks, when an allocation decides who trains what."""

    def build(self, data: Dataset) -> Task:
        """The task, on data already loaded."""
        augment = self.augment if isinstance(self.augment, list) else [self.augment]
        return Task(
            self.name,
            make_model(self.model),
            data,
            lr=build_named("schedule", self.lr, SCHEDULES),
            lr_steps=build_named("schedule", self.lr_steps, STEP_SCHEDULES),
            optimiser=build("optimiser", self.optimiser, OPTIMISERS),
            optimiser_state=self.optimiser_state,
            epochs=self.epochs,
            batch_norm=self.batch_norm,
            batch_size=build_named("schedule", self.batch_size, SCHEDULES),
            loss=bind("loss", self.loss, LOSSES),
            metric=self.metric,
            metrics=self.metrics,
            augment=[bind("augmentation", spec, AUGMENTATIONS) for spec in augment if spec is not None],
            priority=self.priority,
        )


class PrivacyConfig(ConfigSection):
    """What is done to an update before it leaves its client: no longer than `clip`, with noise of `noise` * `clip`."""

    clip: float | None = Field(default=None, examples=[1.0])
    """Longest update that leaves a client; longer ones are scaled down to it. Without it nothing is clipped."""
    noise: float = Field(default=0.0, examples=[0.5])
    """Standard deviation of the Gaussian noise on every entry of an update, as a multiple of `clip`."""

    def build(self) -> Privacy:
        """The same, checked."""
        return Privacy(self.clip, self.noise)


class StopConfig(ConfigSection):
    """When to stop before the last round: as soon as one of these holds, for every method and seed."""

    target: float | dict[str, float] | None = Field(default=None, examples=[0.9, {"digits": 0.95}])
    """Every task's metric has reached this value in some tested round; or, in a table, each named task its own."""
    patience: int | None = Field(default=None, examples=[20])
    """No task has improved for this many rounds."""
    min_delta: float = Field(default=0.0, examples=[0.001])
    """By how much a metric must become better to count, for `patience`."""
    seconds: float | None = Field(default=None, examples=[3600.0])
    """This many seconds have passed since the run began, or was resumed."""

    def build(self) -> Stop:
        """The same, checked."""
        return Stop(**self.model_dump())


class FederationConfig(ConfigSection):
    """The clients; without `seed` the data is partitioned anew for every seed of the run."""

    clients: int | None = Field(default=None, examples=[40])
    """How many there are. Without it, the natural owners of the tasks' data, found in every task by name."""
    partition: Spec | None = Field(
        default=None, examples=["iid", {"name": "labels", "fraction": 0.3, "sizes": "high-low"}]
    )
    """Who holds which examples. Without it natural owners where the data has them, else equal shares at random."""
    capacity: int | list[int] | str = Field(default=1, examples=[2, [1, 2, 2], "mixed", "all"])
    """Tasks that a client can train in a round: a number for all, one for each (a shorter list is repeated), `"all"`
    that it has, or `"mixed"`: all for a quarter of the clients, half of them for half, one for a quarter."""
    lacks: float = Field(default=0.0, examples=[0.1])
    """Share of the clients that lack one of the tasks, drawn at random."""
    arrivals: list[int] | Spec | None = Field(default=None, examples=[{"name": "exponential", "first": 20, "gap": 2.0}])
    """The round from which each client takes part, one for each, or a process. Without it all do from round 1."""
    task_arrivals: dict[str, int] = Field(default_factory=dict, examples=[{"digits": 30}])
    """The round from which a task takes part, by its name; 1 for those not named."""
    departures: list[int] | None = Field(default=None, examples=[[0, 0, 50]])
    """The round from which each client is gone for good, one for each; 0: never."""
    availability: Spec = Field(default="always", examples=[{"name": "bernoulli", "probability": 0.8}])
    """Who can be reached in which round."""
    seed: int | None = Field(default=None, examples=[0])
    """Fixes partition, capacities and missing tasks for all seeds of the run. Without it each seed has its own."""


class Config(ConfigSection):
    """A whole experiment."""

    methods: list[Spec] = Field(
        default=["forecast"],
        examples=[
            ["random", "mmfl-lvr", "forecast", "full"],
            [{"method": "fedstale", "beta": 0.2}],
            [{"name": "mine", "allocation": "my_module.Mine", "aggregation": "average"}],
        ],
    )
    """What to train with, all in lockstep: names, names with options, or tables of parts. `method = "x"` is short for
    `methods = ["x"]`."""
    tasks: list[TaskConfig] = Field(default_factory=list)
    """The models to train, a `[[tasks]]` table each."""
    federation: FederationConfig = FederationConfig()
    """The clients, a `[federation]` table."""
    rounds: int = Field(default=100, examples=[150])
    """How many rounds to train."""
    rate: float = Field(default=0.1, examples=[0.2])
    """Share of all processors (the sum of capacities) that the server pays for in a round, in (0, 1]."""
    seeds: int | list[int] = Field(default=1, examples=[5, [0, 7]])
    """A number of seeds, from 0, or the seeds themselves; every method runs with each."""
    evaluate_every: int = Field(default=1, examples=[5])
    """Rounds from one test of the models to the next."""
    evaluate_last: int = Field(default=1, examples=[20])
    """The last so many rounds are all tested. Final results are means over the last fifth of all tested rounds, at most
    20 of them."""
    checkpoint_every: int = Field(default=10, examples=[50])
    """Rounds from one checkpoint to the next; those that take long to write come more rarely."""
    diagnose: bool = Field(default=False, examples=[True])
    """Measure all clients' losses every round, for `loss_variance`, even where the method does not need them; it is not
    charged to its costs."""
    stop: StopConfig = StopConfig()
    """When to stop before the last round, a `[stop]` table."""
    keep_best: bool = Field(default=False, examples=[True])
    """Keep the weights of each task's best tested round beside the last ones."""
    average: float | int | None = Field(default=None, examples=[0.1, 20])
    """Average each task's weights over rounds, and test these too: the rate of an exponential average, in (0, 1), or a
    number of rounds, of which it is the mean."""
    engine: Literal["auto", "vectorised", "sequential"] = Field(default="auto", examples=["vectorised"])
    """How clients' work runs: as cohorts, one client after another, or whichever measures faster."""
    precision: Precision = Field(default="float32", examples=["tf32"])
    """How matrices are multiplied: `tf32` is for GPUs, `bfloat16` for CPUs."""
    privacy: PrivacyConfig = PrivacyConfig()
    """Clipping and noise, a `[privacy]` table."""
    device: str | None = Field(default=None, examples=["cpu", "cuda"])
    """Where to compute. Without it a GPU where there is one."""
    trackers: list[Spec] = Field(
        default_factory=list, examples=[["tensorboard", {"name": "mlflow", "uri": "sqlite:///mlflow.db"}]]
    )
    """What is told every round besides the run's directory: names, or tables with `name` and options."""
    python_path: str | None = Field(default=None, examples=["code"])
    """Folder in which dotted paths such as `my_module.Network` are looked for. Without it that of the file."""
    format: int = Field(default=1, examples=[1])
    """Version of the configuration's format. A version that is newer than this mmfl knows is refused."""

    @cached_property
    def source(self) -> str:
        """What it is called in errors."""
        return "configuration"

    def called(self, source: str) -> "Config":
        """The same, called so in errors: by the name of its file."""
        vars(self)["source"] = source
        return self

    @model_validator(mode="before")
    @classmethod
    def _one_method(cls, values: dict[str, Any]) -> dict[str, Any]:
        """`method = "x"` is short for `methods = ["x"]`; what a run was made with says nothing about the next."""
        values = {key: value for key, value in values.items() if key != MADE_WITH}
        if "method" in values:
            method = values.pop("method")
            values["methods"] = method if isinstance(method, list) else [method]
        return values

    def experiment(self, loaded: dict[str, Dataset] | None = None) -> Experiment:
        """The experiment that this configuration describes. Data that is in `loaded` is not loaded again, and what is
        loaded is added to it."""
        self.add_python_path()
        if not self.tasks:
            raise UserError("configuration: no tasks; expected at least one [[tasks]] table.")
        self.stop.build().targets([task.name for task in self.tasks])  # refuses a task that is not there
        keys = [json.dumps(task.data, sort_keys=True) for task in self.tasks]
        loaded = {} if loaded is None else loaded
        for key, task in zip(keys, self.tasks, strict=True):
            if key not in loaded:
                with self._at_task(task):
                    loaded[key] = load_data(task.data)
        tasks = []
        for key, task in zip(keys, self.tasks, strict=True):
            with self._at_task(task):
                tasks.append(task.build(loaded[key]))
        return Experiment(
            federation_of=lambda seed: self._federation(tasks, seed),
            methods=[make_method(method) for method in self.methods],
            seeds=seeds_of(self.seeds),
            rounds=self.rounds,
            rate=self.rate,
            evaluate_every=self.evaluate_every,
            evaluate_last=self.evaluate_last,
            checkpoint_every=self.checkpoint_every,
            diagnose=self.diagnose,
            stop=self.stop.build(),
            keep_best=self.keep_best,
            average=self.average,
        )

    @contextmanager
    def _at_task(self, task: TaskConfig) -> Iterator[None]:
        """Names the configuration and the task in errors."""
        with at_place(self.source), at_place(f"task '{task.name}'", unless="task '"):
            yield

    def add_python_path(self) -> None:
        """Lets the user's own modules be found."""
        if self.python_path and self.python_path not in sys.path:
            sys.path.insert(0, self.python_path)

    def _federation(self, tasks: Sequence[Task], seed: int) -> Federation:
        given = self.federation
        seed = seed if given.seed is None else given.seed
        partition = {}
        for task in self.tasks:
            with self._at_task(task):
                if (spec := task.partition or given.partition) is not None:
                    partition[task.name] = make_partition(spec, seed)
        with at_place(self.source):
            arrivals = build_named("arrivals", given.arrivals, ARRIVALS)
            availability = build("availability", given.availability, AVAILABILITIES)
        return Federation(
            tasks,
            given.clients,
            partition=partition,
            capacity=given.capacity,  # type: ignore[arg-type]  # Federation checks the word
            lacks=given.lacks,
            arrivals=arrivals,
            task_arrivals=given.task_arrivals,
            departures=given.departures,
            availability=availability,
            seed=seed,
        )

    def plain(self) -> dict[str, Any]:
        """The configuration as TOML can hold it."""
        return self.model_dump(exclude_none=True)


SECTIONS: dict[str, type[ConfigSection]] = {
    "tasks": TaskConfig,
    "federation": FederationConfig,
    "privacy": PrivacyConfig,
    "stop": StopConfig,
}
"""The tables of a configuration by key; a class is called like its key, which the completion relies on."""
