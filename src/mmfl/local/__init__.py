"""How a client trains: rules that turn the gradient of a mini-batch into a local step, one per file.

A rule sees gradients, weights and what it remembers of a client; never another client's data, and not the engine.
"""

from collections.abc import Callable

from mmfl.local.base import LocalPosition, LocalRule, LocalStep, recordable
from mmfl.local.prox import Prox
from mmfl.local.scaffold import Controls, Scaffold
from mmfl.local.sgd import PlainSGD

LOCAL_RULES: dict[str, Callable[..., LocalRule]] = {
    "sgd": PlainSGD,
    "prox": Prox,
    "scaffold": Scaffold,
}

__all__ = [
    "LOCAL_RULES",
    "Controls",
    "LocalPosition",
    "LocalRule",
    "LocalStep",
    "PlainSGD",
    "Prox",
    "Scaffold",
    "recordable",
]
