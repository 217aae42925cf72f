"""Group norm of a cohort on channels-last inputs, with a scale and a shift per client.

A program handles one group of one example: mean first, then squared deviations, then the normed values. Upper-case
arguments are compiled in; where one block covers all pixels, the loop over them is a single load.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from mmfl.engine.gpu.kernels import strides

_BLOCK = 8192  # numbers that a program loads at a time


class CohortGroupNorm(torch.autograd.Function):
    """Group norm of input [C, n, channels, h, w], channels last in memory, by weight and bias [C, channels]."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, weight: Tensor | None, bias: Tensor | None, groups: int, eps: float) -> Tensor:
        """The normed input, channels last in memory."""
        x = input.movedim(2, -1).contiguous()
        y = torch.empty_like(x)
        examples = x.shape[0] * x.shape[1]
        mean, rate = x.new_empty(2, examples, groups)
        constants = _constants(x, groups)
        with torch.cuda.device_of(x):
            _norm[(examples * groups,)](
                x, weight, bias, y, mean, rate, x.shape[1], *strides(weight), *strides(bias), eps, **constants
            )
        ctx.save_for_backward(x, weight, mean, rate)
        ctx.constants, ctx.biased = constants, bias is not None
        return y.movedim(-1, 2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Any:
        """Gradients by input, weight and bias; the last two are sums over examples."""
        x, weight, mean, rate = ctx.saved_tensors
        grad = grads[0].movedim(2, -1).contiguous()
        by_input = torch.empty_like(x)
        affine = weight is not None or ctx.biased
        parts: Any = x.new_empty(2, *x.shape[:2], x.shape[-1]) if affine else (None, None)
        _back[(mean.numel(),)](
            grad, x, weight, mean, rate, by_input, *parts, x.shape[1], *strides(weight), **ctx.constants
        )
        by_weight = parts[0].sum(1) if weight is not None and ctx.needs_input_grad[1] else None
        by_bias = parts[1].sum(1) if ctx.biased and ctx.needs_input_grad[2] else None
        return by_input.movedim(-1, 2), by_weight, by_bias, None, None


def _constants(x: Tensor, groups: int) -> dict[str, int]:
    """What is compiled into the kernels, for x [C, n, h, w, channels]."""
    pixels, channels = x.shape[2] * x.shape[3], x.shape[4]
    wide = triton.next_power_of_2(channels // groups)
    high = min(triton.next_power_of_2(pixels), max(_BLOCK // wide, 1))
    return {
        "PIXELS": pixels,
        "CHANNELS": channels,
        "GROUPS": groups,
        "HIGH": high,
        "WIDE": wide,
        "num_warps": min(max(high * wide // 1024, 1), 8),
    }


@triton.jit
def _block(first, channel, inside, PIXELS: tl.constexpr, CHANNELS: tl.constexpr, HIGH: tl.constexpr):
    """Where the numbers of a block of pixels are, and which of them exist."""
    pixel = first + tl.arange(0, HIGH)
    return pixel[:, None] * CHANNELS + channel[None, :], (pixel < PIXELS)[:, None] & inside[None, :]


@triton.jit(do_not_specialize=["count", "weight_stride", "weight_step", "bias_stride", "bias_step"])
def _norm(
    x, weight, bias, y, mean, rate, count,
    weight_stride, weight_step, bias_stride, bias_step, eps,
    PIXELS: tl.constexpr, CHANNELS: tl.constexpr, GROUPS: tl.constexpr, HIGH: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """One group of one example, in three passes: its mean, its variance, its normed values."""
    SIZE: tl.constexpr = CHANNELS // GROUPS
    program = tl.program_id(0)
    example = (program // GROUPS).to(tl.int64)
    client = example // count
    within = tl.arange(0, WIDE)
    channel = program % GROUPS * SIZE + within
    x += example * (PIXELS * CHANNELS)
    y += example * (PIXELS * CHANNELS)

    sums = tl.zeros((HIGH, WIDE), tl.float32)
    for first in range(0, PIXELS, HIGH):
        place, there = _block(first, channel, within < SIZE, PIXELS, CHANNELS, HIGH)
        sums += tl.load(x + place, there, 0.0)
    centre = tl.sum(sums) / (PIXELS * SIZE)
    squares = tl.zeros((HIGH, WIDE), tl.float32)
    for first in range(0, PIXELS, HIGH):
        place, there = _block(first, channel, within < SIZE, PIXELS, CHANNELS, HIGH)
        values = tl.load(x + place, there, 0.0)
        away = tl.where(there, values - centre, 0.0)
        squares += away * away
    scale = 1 / tl.sqrt(tl.sum(squares) / (PIXELS * SIZE) + eps)
    tl.store(mean + program, centre)
    tl.store(rate + program, scale)

    slope = tl.full((WIDE,), 1.0, tl.float32) * scale
    if weight is not None:
        slope *= tl.load(weight + client * weight_stride + channel * weight_step, within < SIZE, 0.0)
    shift = tl.zeros((WIDE,), tl.float32)
    if bias is not None:
        shift += tl.load(bias + client * bias_stride + channel * bias_step, within < SIZE, 0.0)
    for first in range(0, PIXELS, HIGH):
        place, there = _block(first, channel, within < SIZE, PIXELS, CHANNELS, HIGH)
        values = tl.load(x + place, there, 0.0)
        tl.store(y + place, (values - centre) * slope[None, :] + shift[None, :], there)


@triton.jit(do_not_specialize=["count", "weight_stride", "weight_step"])
def _back(
    grad, x, weight, mean, rate, by_input, by_weight, by_bias, count, weight_stride, weight_step,
    PIXELS: tl.constexpr, CHANNELS: tl.constexpr, GROUPS: tl.constexpr, HIGH: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """One group of one example: sums over its pixels by channel, from which its input's gradient follows."""
    SIZE: tl.constexpr = CHANNELS // GROUPS
    program = tl.program_id(0)
    example = (program // GROUPS).to(tl.int64)
    client = example // count
    within = tl.arange(0, WIDE)
    channel = program % GROUPS * SIZE + within
    start = example * (PIXELS * CHANNELS)
    x += start
    grad += start
    by_input += start
    centre = tl.load(mean + program)
    scale = tl.load(rate + program)

    plain = tl.zeros((HIGH, WIDE), tl.float32)
    along = tl.zeros((HIGH, WIDE), tl.float32)
    for first in range(0, PIXELS, HIGH):
        place, there = _block(first, channel, within < SIZE, PIXELS, CHANNELS, HIGH)
        given = tl.load(grad + place, there, 0.0)
        normed = (tl.load(x + place, there, 0.0) - centre) * scale
        plain += given
        along += given * normed
    shift = tl.sum(plain, 0)
    slope = tl.sum(along, 0)
    if by_weight is not None:
        tl.store(by_weight + example * CHANNELS + channel, slope, within < SIZE)
        tl.store(by_bias + example * CHANNELS + channel, shift, within < SIZE)
    factor = tl.full((WIDE,), 1.0, tl.float32)
    if weight is not None:
        factor *= tl.load(weight + client * weight_stride + channel * weight_step, within < SIZE, 0.0)
    level = tl.sum(shift * factor) / (PIXELS * SIZE)
    tilt = tl.sum(slope * factor) / (PIXELS * SIZE)
    for first in range(0, PIXELS, HIGH):
        place, there = _block(first, channel, within < SIZE, PIXELS, CHANNELS, HIGH)
        given = tl.load(grad + place, there, 0.0)
        normed = (tl.load(x + place, there, 0.0) - centre) * scale
        tl.store(by_input + place, scale * (given * factor[None, :] - level - normed * tilt), there)
