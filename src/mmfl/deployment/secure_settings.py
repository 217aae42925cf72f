"""The settings of secure aggregation, and what cannot be combined with it."""

import math
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from mmfl.errors import UserError
from mmfl.methods import METHODS, make_method
from mmfl.runs.config_sections import CentralNoiseConfig


class SecureAggregationConfig(BaseModel):
    """Secure aggregation: the server learns only sums of the nodes' updates."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    clip: float = Field(gt=0, allow_inf_nan=False, examples=[10.0])
    """Largest norm of an update; its client scales longer ones down to it."""
    threshold: float = Field(gt=0.5, le=1, default=2 / 3, examples=[0.8])
    """Share of a sum's nodes that must stay to the end of the round; with fewer the sum stays hidden."""
    least: int = Field(ge=2, default=2, examples=[5])
    """Number of nodes that a sum needs at least. With fewer, the task keeps its weights in this round."""
    bits: Literal[16, 32] = Field(default=32, examples=[16])
    """Bits of each number on the way."""

    def needed(self, nodes: int) -> int:
        """How many of a sum's nodes must stay."""
        return max(self.least, math.ceil(self.threshold * nodes - 1e-9))


def check_sums_are_enough(method: str | dict[str, Any], bounds: Mapping[str, Any]) -> None:
    """Refuses a method for which the server needs single updates, and bounds on these that were set, by name."""
    built = make_method(method)
    if reason := built.needs_single_updates:
        admitted = ", ".join(name for name in METHODS if not make_method(name).needs_single_updates)
        raise UserError(
            f"deployment: secure aggregation shows the server only sums, but of method '{built.name}' {reason}; "
            f"expected one of {admitted}."
        )
    if bound := next((name for name, chosen in bounds.items() if chosen), None):
        raise UserError(
            f"deployment: {bound} is a bound on single updates, which the server does not see with secure aggregation; "
            "expected only secure_aggregation.clip, which clients keep themselves."
        )


def check_noise(secure: SecureAggregationConfig, noise: CentralNoiseConfig | None) -> None:
    """Refuses noise for another bound than the one that clients keep, or beside coarse rounding."""
    if noise is None:
        return
    if noise.clip != secure.clip:
        raise UserError(
            f"deployment: central_noise.clip is {noise.clip:g}; expected {secure.clip:g} as in secure_aggregation, "
            "since the clients do the clipping."
        )
    if secure.bits != 32:
        raise UserError(
            f"deployment: secure_aggregation.bits is {secure.bits}; expected 32 with central_noise, since epsilon does "
            "not cover coarser rounding."
        )
