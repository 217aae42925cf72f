"""The settings of a deployment."""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from mmfl.errors import UserError, nearest


class Settings(BaseModel):
    """What a deployment is told besides its module.

    `clients` is how many may take part, numbered from 0; the first round waits `gather` seconds for all of them, every
    round `patience` seconds for at least `least`. `timeout` is how long a round waits for answers. Updates longer than
    `norm` times the weights they started from are refused.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    clients: int
    method: str | dict[str, Any] = "mmfl-lvr"
    rounds: int = 100
    rate: float = 0.1
    seed: int = 0
    evaluate_every: int = 1
    evaluate_last: int = 1
    checkpoint_every: int = 1
    timeout: float = 600.0
    gather: float = 60.0
    patience: float = 3600.0
    least: int = 1
    norm: float = 100.0

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "Settings":
        """From a table; the first mistake is named with what was expected."""
        try:
            return cls.model_validate(dict(values))
        except ValidationError as error:
            first = error.errors()[0]
            key = str(first["loc"][0])
            if first["type"] == "extra_forbidden":
                raise UserError(f"deployment: unknown setting '{key}': {nearest(key, cls.model_fields)}") from None
            if first["type"] == "missing":
                raise UserError(f"deployment: '{key}' is missing.") from None
            message = first["msg"][:1].lower() + first["msg"][1:]
            raise UserError(f"deployment: '{key}' is {first['input']!r}: {message}.") from None
