"""Attention: with addressed dropout, and for the clients of a cohort in one call of torch's fused kernel."""

import math
from collections.abc import Callable
from functools import partial
from types import FunctionType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mmfl.engine.dropout import KeepMask, round_probability
from mmfl.engine.layers import with_cohort_form

multi_head_attention: Callable[..., Any] = FunctionType(
    F.multi_head_attention_forward.__code__,
    {**vars(F), "has_torch_function": lambda tensors: False},
    argdefs=F.multi_head_attention_forward.__defaults__,
)
"""`F.multi_head_attention_forward`, which does not ask for a substitute of itself: those of its parts are used."""


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """In place of `F.scaled_dot_product_attention`, whose arguments it takes; `NotImplemented` with dropout or for
    unusual shapes.

    No client has weights of its own in it: the examples of all clients are one batch. Torch's vmap would call the
    kernel client by client.
    """
    if dropout_p > 0 or query.dim() != 4 or query.shape[0] != key.shape[0] or key.shape[:2] != value.shape[:2]:
        return NotImplemented
    alone = partial(F.scaled_dot_product_attention, is_causal=is_causal, scale=scale, enable_gqa=enable_gqa)
    return with_cohort_form(alone, partial(_cohort_attention, alone), query, key, value, attn_mask)


def _cohort_attention(
    alone: Callable[..., Tensor], query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None
) -> Tensor:
    """Queries [C, n, heads, length, features], keys and values likewise; a mask [C, ...] that broadcasts."""
    if mask is not None:
        mask = mask.view(len(mask), *(1 for _ in range(5 - mask.dim())), *mask.shape[1:])
        mask = mask.expand(-1, query.shape[1], -1, -1, -1).flatten(0, 1)
    outputs = alone(query.flatten(0, 1), key.flatten(0, 1), value.flatten(0, 1), mask)
    return outputs.view(*query.shape[:2], *outputs.shape[1:])


def attention_with_dropout(
    keep: KeepMask,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """In place of `F.scaled_dot_product_attention`, whose random numbers nobody can choose.

    What may look at nothing gets zeros, as from torch. Values are scaled instead of the many more attention weights.
    """
    if enable_gqa:
        groups = query.shape[-3] // key.shape[-3]
        key, value = key.repeat_interleave(groups, -3), value.repeat_interleave(groups, -3)
    scores = (query * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)) @ key.transpose(-2, -1)
    mask = attn_mask
    if is_causal:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=query.device).tril()
    if mask is not None and mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=scores.dtype).masked_fill(~mask, -math.inf)
    if mask is not None:
        scores = scores + mask.clamp(min=torch.finfo(mask.dtype).min)
    weights = torch.softmax(scores, -1)
    if dropout_p >= 1:
        return weights @ (value * 0)
    kept = keep(weights.shape, weights.device, dropout_p)
    outputs = (weights * kept) @ (value * (1 / (1 - round_probability(dropout_p))))
    return outputs if mask is None else outputs * (mask > -math.inf).any(-1, keepdim=True)
