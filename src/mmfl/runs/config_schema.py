"""A configuration, with its keys checked, and the experiment that it describes."""

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any, Literal

from pydantic import Field, model_validator

from mmfl.data import Dataset
from mmfl.engine.precision import Precision
from mmfl.errors import UserError, at_place
from mmfl.federation import Federation
from mmfl.federation.arrivals import ARRIVALS
from mmfl.federation.attacks import ATTACKS
from mmfl.federation.availability import AVAILABILITIES
from mmfl.federation.devices import DEVICES
from mmfl.federation.task import Task
from mmfl.methods import make_method
from mmfl.registry import build
from mmfl.runs.config_parts import Spec, build_named, load_data, make_partition
from mmfl.runs.config_sections import (
    CentralNoiseConfig,
    ConfigSection,
    FederationConfig,
    PrivacyConfig,
    StopConfig,
    TaskConfig,
)
from mmfl.runs.experiment import Experiment, seeds_of
from mmfl.runs.layout import MADE_WITH


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
    pace: Spec | None = Field(default=None, examples=["barrier", {"name": "deadline", "seconds": 60.0, "over": 1.3}])
    """When a round ends and whose updates are used, where clients have devices, for methods without a `pace` of their
    own. Without it rounds wait for everyone."""
    engine: Literal["auto", "vectorised", "sequential"] = Field(default="auto", examples=["vectorised"])
    """How clients' work runs: as cohorts, one client after another, or whichever measures faster."""
    precision: Precision = Field(default="float32", examples=["tf32"])
    """How matrices are multiplied: `tf32` is for GPUs, `bfloat16` for CPUs."""
    privacy: PrivacyConfig = PrivacyConfig()
    """Clipping and noise, a `[privacy]` table."""
    central_noise: CentralNoiseConfig | None = None
    """Noise on the sum of a round's updates, a `[central_noise]` table."""
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

    def with_source(self, source: str) -> "Config":
        """The same configuration, which errors call by the name of its file."""
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
            methods=[make_method(method, self.pace) for method in self.methods],
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
            central_noise=None if self.central_noise is None else self.central_noise.build(),
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
            attack = build_named("attack", given.attack, ATTACKS)
            devices = build_named("devices", given.devices, DEVICES)
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
            attack=attack,
            devices=devices,
            seed=seed,
        )

    def plain(self) -> dict[str, Any]:
        """The configuration as TOML can hold it."""
        return self.model_dump(exclude_none=True)
