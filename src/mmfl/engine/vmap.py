"""Operators that have a form of their own under vmap, for all clients of a cohort at once."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def with_cohort_form(alone: Callable[..., Tensor], cohort: Callable[..., Tensor], *args: Any) -> Any:
    """Calls `alone` on the arguments; under vmap over clients, `cohort` on those of all clients, with clients as the
    first dimension of every tensor. Only `cohort` is differentiated."""
    return _CohortForm.apply(alone, cohort, *args)  # type: ignore[no-untyped-call]


class _CohortForm(torch.autograd.Function):
    @staticmethod
    def forward(alone: Callable[..., Tensor], cohort: Callable[..., Tensor], *args: Any) -> Tensor:
        return alone(*args)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Nothing to keep."""

    @staticmethod
    def vmap(info: Any, in_dims: Any, alone: Any, cohort: Callable[..., Tensor], *args: Any) -> Any:
        return cohort(*clients_first(info, in_dims[2:], args)), 0


def clients_first(info: Any, in_dims: Any, args: Any) -> list[Any]:
    """Arguments under vmap with clients as the first dimension of every tensor; what has no such dimension is the same
    for all clients."""
    return [
        arg if not isinstance(arg, Tensor) else _expand(arg, info.batch_size) if dim is None else arg.movedim(dim, 0)
        for arg, dim in zip(args, in_dims, strict=True)
    ]


def _expand(tensor: Tensor, clients: int) -> Tensor:
    return tensor.expand(clients, *tensor.shape)
