"""The signature of a task: equal for tasks whose clients can train in one cohort."""

import hashlib
import itertools
import sys
from typing import Any

from torch import Tensor, nn

from mmfl.federation.task import Task

_INTERNAL = frozenset(vars(nn.Module())) | {"_flat_weights", "_flat_weight_refs"}


def signature(task: Task) -> str:
    """Equal for two tasks only if their jobs can run in one cohort: same structure, loss and shapes of examples."""
    module = task.build()
    parts: list[str] = [_identity(task.loss), shape_of_examples(task.data.x), shape_of_examples(task.data.y)]
    for name, part in module.named_modules():
        hooked = any(getattr(part, key) for key in vars(part) if key.endswith("_hooks"))
        parts.append(f"{name}:{_identity(type(part))}:{part.training}:{_unlike_any_other() if hooked else ''}")
        parts += [f"{key}={_constant(value)}" for key, value in sorted(vars(part).items()) if key not in _INTERNAL]
    parts += [f"{name}{tuple(p.shape)}{p.dtype}{p.requires_grad}" for name, p in module.named_parameters()]
    parts += [f"{name}{_constant(buffer)}" for name, buffer in module.named_buffers()]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def shape_of_examples(tensor: Tensor) -> str:
    """Shape and type of one example of a data set."""
    return f"{tuple(tensor.shape[1:])}{tensor.dtype}"


_serial = itertools.count()


def _unlike_any_other() -> str:
    """A text that is never repeated."""
    return f"object {next(_serial)}"


def _identity(thing: Any) -> str:
    """The name under which a class or function can be imported; one that cannot be imported equals nothing else."""
    path, name = getattr(thing, "__module__", None), getattr(thing, "__qualname__", None)
    found: Any = sys.modules.get(path or "")
    for step in (name or "").split("."):
        found = getattr(found, step, None)
    return f"{path}.{name}" if found is thing else _unlike_any_other()


def _constant(value: Any) -> str:
    """A text that is the same for equal constants; an object that is no constant equals nothing else."""
    if value is None or isinstance(value, bool | int | float | str | complex):
        return repr(value)
    if isinstance(value, list | tuple):
        return "[" + ",".join(_constant(item) for item in value) + "]"
    if isinstance(value, Tensor):
        return f"{tuple(value.shape)}{hashlib.sha256(value.detach().cpu().numpy().tobytes()).hexdigest()}"
    return _identity(value) if callable(value) else _unlike_any_other()
