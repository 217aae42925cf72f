"""The tables of a configuration, with their keys checked: tasks, federation, when to stop and privacy."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from mmfl.data import Dataset
from mmfl.data.augmentation import AUGMENTATIONS
from mmfl.federation.batch_norm import BatchNormMode
from mmfl.federation.objectives import LOSSES
from mmfl.federation.optimisers import OPTIMISERS, StateLifetime
from mmfl.federation.schedules import SCHEDULES, STEP_SCHEDULES
from mmfl.federation.task import Task
from mmfl.privacy import CentralNoise, Change, Privacy
from mmfl.registry import bind, build
from mmfl.runs.config_parts import Spec, build_named, make_model
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


class CentralNoiseConfig(ConfigSection):
    """Gaussian noise that the server adds to the sum of a round's updates, none of them longer than `clip`."""

    clip: float = Field(examples=[1.0])
    """Longest update; longer ones are scaled down to it."""
    noise: float = Field(examples=[2.0])
    """Standard deviation of the noise, as a multiple of `clip` times the largest coefficient in the sum."""
    delta: float = Field(default=1e-6, examples=[1e-8])
    """The delta of the (epsilon, delta) that records show."""
    change: Change = Field(default="replaced", examples=["absent"])
    """What nobody should be able to tell: that a client had any other data (`replaced`), or sent nothing (`absent`)."""

    def build(self, secret: bool = False) -> CentralNoise:
        """The same, checked."""
        return CentralNoise(**self.model_dump(), secret=secret)


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
    attack: Spec | None = Field(default=None, examples=[{"name": "sign-flip", "clients": 0.2}])
    """What some of the clients do to harm the models, to measure what methods bear. Without it all are honest."""
    devices: Spec | None = Field(default=None, examples=["phones", {"name": "shifted-exponential", "mean": 20.0}])
    """What clients train on: then rounds take time. Without it they have no duration."""
    seed: int | None = Field(default=None, examples=[0])
    """Fixes partition, capacities, missing tasks, attackers and devices for all seeds of the run. Without it each seed
    has its own."""


SECTIONS: dict[str, type[ConfigSection]] = {
    "tasks": TaskConfig,
    "federation": FederationConfig,
    "privacy": PrivacyConfig,
    "central_noise": CentralNoiseConfig,
    "stop": StopConfig,
}
"""The tables of a configuration by key; a class is called like its key, which the completion relies on."""
