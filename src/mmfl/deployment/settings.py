"""The settings of a deployment."""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from mmfl.deployment.secure_settings import SecureAggregationConfig, check_noise, check_sums_are_enough
from mmfl.errors import UserError, nearest
from mmfl.methods import make_method
from mmfl.privacy import CentralNoise
from mmfl.runs.config_sections import CentralNoiseConfig, StopConfig
from mmfl.training.average import check_average

_SECTIONS: Mapping[str, type[BaseModel]] = {
    "stop": StopConfig,
    "secure_aggregation": SecureAggregationConfig,
    "central_noise": CentralNoiseConfig,
}


class DeploymentSettings(BaseModel):
    """The settings of a deployment. The text below each of them is its description in the reference."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    clients: int = Field(ge=1, examples=[12])
    """Number of clients that may take part, numbered from 0 (`--clients`)."""
    method: str | dict[str, Any] = Field(default="forecast", examples=["random", {"method": "fedstale", "beta": 0.2}])
    """The method (`--method`): a name, or a name with options."""
    rounds: int = Field(ge=1, default=100, examples=[20])
    """Number of rounds (`--rounds`)."""
    rate: float = Field(gt=0, le=1, default=0.1, examples=[0.5])
    """Share of all processors that train in a round (`--rate`), in (0, 1]."""
    seed: int = Field(ge=0, default=0, examples=[3])
    """Fixes draws, initial weights and mini-batches."""
    evaluate_every: int = Field(default=1, examples=[5])
    """Rounds from one test of the models to the next."""
    evaluate_last: int = Field(default=1, examples=[20])
    """Number of rounds at the end that are all tested."""
    checkpoint_every: int = Field(default=1, examples=[10])
    """Rounds from one checkpoint to the next."""
    stop: StopConfig = Field(default=StopConfig(), examples=[{"target": 0.9}, {"patience": 20}])
    """When to stop before the last round, by the keys of [`[stop]`](#stop): `--set stop.target=0.9`."""
    keep_best: bool = Field(default=False, examples=[True])
    """Keep the weights of each task's best tested round beside the last ones."""
    average: float | int | None = Field(default=None, examples=[0.1, 20])
    """Average each task's weights over rounds, as in an experiment; the server needs test examples of all tasks."""
    timeout: float = Field(gt=0, default=600.0, examples=[60])
    """Seconds that the server waits for replies (`--timeout`)."""
    gather: float = Field(ge=0, default=60.0, examples=[10])
    """Seconds that the first round waits for all clients to connect."""
    patience: float = Field(gt=0, default=3600.0, examples=[600])
    """Seconds that a round waits for at least `least` clients, before the run fails."""
    least: int = Field(ge=1, default=1, examples=[3])
    """Number of connected clients that a round needs."""
    norm: float = Field(gt=0, default=100.0, examples=[10])
    """An update whose norm is more than this many times that of the weights it started from is rejected."""
    clip: float | None = Field(ge=0, default=None, examples=[2.5])
    """An update whose norm is more than this many times the median of recent norms of its task is scaled down to that;
    by default 1, and 0 (no bound) with secure aggregation or central noise."""
    max_examples: int | None = Field(ge=1, default=None, examples=[10000])
    """The largest number of examples of a task that counts for a client; by default twice the median of what
    clients announce."""

    central_noise: CentralNoiseConfig | None = Field(default=None, examples=[{"clip": 10.0, "noise": 1.0}])
    """[Noise on sums](privacy.md#central-noise), by the keys of [`[central_noise]`](#central_noise):
    `--set central_noise.clip=10`."""
    secure_aggregation: SecureAggregationConfig | None = Field(default=None, examples=[{"clip": 10.0}])
    """[Secure aggregation](privacy.md#secure-aggregation), by its keys: `--set secure_aggregation.clip=10`."""

    def update_bound(self) -> float:
        """The `clip` that holds: 0 where a bound that follows other clients' norms has no place."""
        if self.clip is not None:
            return self.clip
        return 0.0 if self.secure_aggregation or self.central_noise else 1.0

    def noise(self) -> CentralNoise | None:
        """The noise that the server adds to sums, checked; None for none."""
        try:
            return None if self.central_noise is None else self.central_noise.build(secret=True)
        except UserError as error:
            raise UserError(f"deployment: {error}") from None

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "DeploymentSettings":
        """Reads settings from a table; an error names the first mistake and what was expected."""
        try:
            settings = cls.model_validate(dict(values))
        except ValidationError as error:
            first = error.errors()[0]
            section, *inner = (str(part) for part in first["loc"])
            in_section = section in _SECTIONS and bool(inner)
            key = f"{section}.{inner[0]}" if in_section else section
            known = _SECTIONS[section].model_fields if in_section else cls.model_fields
            if first["type"] == "extra_forbidden":
                near = nearest(str(first["loc"][-1]), known)
                raise UserError(f"deployment: unknown setting '{key}': {near}") from None
            if first["type"] == "missing":
                description = known[key.rpartition(".")[2]].description
                raise UserError(f"deployment: '{key}' is missing: {description}") from None
            message = first["msg"][:1].lower() + first["msg"][1:]
            raise UserError(f"deployment: '{key}' is {first['input']!r}: {message}.") from None
        check_average(settings.average, "deployment")
        try:
            settings.stop.build()
        except UserError as error:
            raise UserError(f"deployment: {error}") from None
        if (noise := settings.noise()) is not None:
            make_method(settings.method).with_noise(noise)
            if settings.clip:
                raise UserError(
                    f"deployment: clip is {settings.clip:g}, but epsilon does not cover a bound that follows other "
                    "clients' norms; expected only central_noise.clip."
                )
        if settings.secure_aggregation is not None:
            default = cls.model_fields["norm"].default
            bounds = {"norm": settings.norm != default, "clip": settings.clip}
            check_sums_are_enough(settings.method, bounds)
            check_noise(settings.secure_aggregation, settings.central_noise)
        if settings.least > settings.clients:
            raise UserError(f"deployment: least is {settings.least}; expected at most the {settings.clients} clients.")
        return settings
