"""mmfl: multi-model federated learning. Several models are trained at once over one shared pool of clients."""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mmfl.public import *  # noqa: F403

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """A public name or a module, imported on first use, so that `mmfl --help` does not wait for torch."""
    if find_spec(f"{__name__}.{name}"):
        return import_module(f"{__name__}.{name}")
    public = import_module("mmfl.public")
    if name not in (*public.__all__, "__all__"):
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    found = globals()[name] = getattr(public, name)
    return found


def __dir__() -> list[str]:
    return [*globals(), *import_module("mmfl.public").__all__]
