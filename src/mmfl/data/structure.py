"""Structures: inputs, targets and outputs are a tensor each, or a tuple, list or dictionary of structures."""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.utils import _pytree as pytree

Structure = Any
"""A tensor, or a (nested) tuple, list or dictionary of them; its leaves have one row for each example."""


def map_leaves(function: Callable[..., Any], structure: Structure, *others: Structure) -> Structure:
    """The same structure with the function applied to each leaf, or to the corresponding leaves of several structures.

    >>> map_leaves(len, {"left": "abc", "right": ("d", "ef")})
    {'left': 3, 'right': (1, 2)}
    """
    if isinstance(structure, Tensor):  # by far the most frequent, at every local step
        return function(structure, *others)
    return pytree.tree_map(function, structure, *others)


def map_tensors(function: Callable[[Tensor], Tensor], structure: Structure) -> Structure:
    """The same structure with the function applied to each tensor; other leaves, such as a None among outputs, stay."""
    return map_leaves(lambda leaf: function(leaf) if isinstance(leaf, Tensor) else leaf, structure)


def leaves(structure: Structure) -> list[Any]:
    """The leaves of a structure, in order."""
    return [structure] if isinstance(structure, Tensor) else pytree.tree_leaves(structure)


def tensors(structure: Structure) -> list[Tensor]:
    """The tensors among the leaves."""
    return [leaf for leaf in leaves(structure) if isinstance(leaf, Tensor)]


def named_leaves(structure: Structure) -> dict[str, Any]:
    """The leaves by their place in the structure; a single one has no name.

    >>> named_leaves({"ids": 1, "masks": (2, 3)})
    {"['ids']": 1, "['masks'][0]": 2, "['masks'][1]": 3}
    """
    return {pytree.keystr(path): leaf for path, leaf in pytree.tree_flatten_with_path(structure)[0]}


def length(structure: Structure) -> int:
    """The number of examples."""
    return len(leaves(structure)[0])


def rows(structure: Structure, index: Any) -> Structure:
    """Some of the examples."""
    return map_leaves(lambda leaf: leaf[index], structure)


def select(structure: Structure, index: Tensor) -> Structure:
    """The examples of these numbers, which are on the device of the tensors."""
    if isinstance(structure, Tensor):
        return structure.index_select(0, index)
    return map_leaves(lambda leaf: leaf.index_select(0, index), structure)


def describe(structure: Structure, first: int = 0) -> str:
    """The shapes of the leaves from dimension `first` on, for a message.

    >>> import torch
    >>> describe({"ids": torch.zeros(2, 5), "mask": torch.zeros(2)})
    '{ids: (2, 5), mask: (2,)}'
    """
    if isinstance(structure, dict):
        return "{" + ", ".join(f"{key}: {describe(part, first)}" for key, part in structure.items()) + "}"
    if isinstance(structure, tuple | list):
        return "[" + ", ".join(describe(part, first) for part in structure) + "]"
    return str(tuple(structure.shape[first:])) if hasattr(structure, "shape") else type(structure).__name__


def arguments(x: Structure) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Inputs as the arguments of a module: a tuple or list as positional ones, a dictionary as keywords."""
    if isinstance(x, dict):
        return (), x
    return (tuple(x), {}) if isinstance(x, tuple | list) else ((x,), {})


def call_module(module: nn.Module, x: Structure) -> Structure:
    """The module's outputs: `module(x)` for a tensor, `module(*x)` for a tuple or list, `module(**x)` for a
    dictionary."""
    if isinstance(x, Tensor):
        return module(x)
    positional, keywords = arguments(x)
    return module(*positional, **keywords)
