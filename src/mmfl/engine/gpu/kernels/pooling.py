"""Max-pooling of a cohort on channels-last inputs, over adjacent windows.

A program handles some pixels of one image. The position of a maximum in its window is stored in a byte. Upper-case
arguments are compiled in.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

_BLOCK = 2048  # numbers per program


class CohortMaxPool(torch.autograd.Function):
    """Maxima of input [C, n, channels, h, w] over windows; `output` may count partial windows at the edges."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, window: tuple[int, int], output: tuple[int, int]) -> Tensor:
        """The maxima, channels last in memory."""
        x = input.movedim(2, -1).contiguous()
        clients, count, height, width, channels = x.shape
        y = x.new_empty(clients, count, *output, channels)
        ctx.place = torch.empty_like(y, dtype=torch.uint8)
        sizes = (channels, height, width, *output, *window)
        ctx.constants = dict(zip(("CHANNELS", "H", "W", "OH", "OW", "KH", "KW"), sizes, strict=True))
        with torch.cuda.device_of(x):
            grid, tile = _tile(clients * count, output[0] * output[1] * channels)
            _pool[grid](x, y, ctx.place, **ctx.constants, **tile)
        return y.movedim(-1, 2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Any:
        """The gradient goes where the maximum was."""
        grad = grads[0].movedim(2, -1).contiguous()
        clients, count, *_, channels = grad.shape
        height, width = ctx.constants["H"], ctx.constants["W"]
        by_input = grad.new_empty(clients, count, height, width, channels)
        grid, tile = _tile(clients * count, height * width * channels)
        _back[grid](grad, ctx.place, by_input, **ctx.constants, **tile)
        return by_input.movedim(-1, 2), None, None


def _tile(images: int, size: int) -> tuple[tuple[int], dict[str, int]]:
    """The number of programs for this many images of a size, and what is compiled in about their blocks."""
    block = min(int(triton.next_power_of_2(size)), _BLOCK)
    blocks = int(triton.cdiv(size, block))
    return (images * blocks,), {"BLOCKS": blocks, "BLOCK": block}


@triton.jit
def _pool(
    x, y, place,
    CHANNELS: tl.constexpr, H: tl.constexpr, W: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr,
    KH: tl.constexpr, KW: tl.constexpr, BLOCKS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Some outputs of one image. As in torch, the first of equal maxima counts, and NaN is larger than any number."""
    image = (tl.program_id(0) // BLOCKS).to(tl.int64)
    number = tl.program_id(0) % BLOCKS * BLOCK + tl.arange(0, BLOCK)
    there = number < OH * OW * CHANNELS
    channel = number % CHANNELS
    top = number // (CHANNELS * OW) * KH
    left = number // CHANNELS % OW * KW
    x += image * (H * W * CHANNELS)
    best = tl.load(x + ((top * W + left) * CHANNELS + channel), there, 0.0)
    which = tl.zeros((BLOCK,), tl.int32)
    for cell in tl.static_range(1, KH * KW):
        row = top + cell // KW
        column = left + cell % KW
        inside = there & (row < H) & (column < W)
        value = tl.load(x + ((row * W + column) * CHANNELS + channel), inside, float("-inf"))
        better = (value > best) | (value != value)
        best = tl.where(better, value, best)
        which = tl.where(better, cell, which)
    target = image * (OH * OW * CHANNELS) + number
    tl.store(y + target, best, there)
    tl.store(place + target, which.to(tl.uint8), there)


@triton.jit
def _back(
    grad, place, by_input,
    CHANNELS: tl.constexpr, H: tl.constexpr, W: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr,
    KH: tl.constexpr, KW: tl.constexpr, BLOCKS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Some inputs of one image: the gradient of their window where they were its maximum, else 0."""
    image = (tl.program_id(0) // BLOCKS).to(tl.int64)
    number = tl.program_id(0) % BLOCKS * BLOCK + tl.arange(0, BLOCK)
    there = number < H * W * CHANNELS
    channel = number % CHANNELS
    row = number // (CHANNELS * W)
    column = number // CHANNELS % W
    pooled = there & (row < OH * KH) & (column < OW * KW)
    source = image * (OH * OW * CHANNELS) + ((row // KH * OW + column // KW) * CHANNELS + channel)
    is_largest = tl.load(place + source, pooled, 255) == row % KH * KW + column % KW
    tl.store(by_input + (image * (H * W * CHANNELS) + number), tl.load(grad + source, pooled & is_largest, 0.0), there)
