"""Convolutions of a cohort as implicit matrix products (implicit GEMM): unfolded inputs are never stored.

Everything is channels last. One compilation serves batches of any size. Sums do not depend on the order in which
programs run.
"""

from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor
from torch.autograd.function import once_differentiable

from mmfl.engine.gpu.kernels import implicit, precision, strides, unit

_BUSY_PROGRAMS = 2048  # that keep a device busy
_MIN_BLOCKS = 4  # of pixels per program


def tiles(rows: int, columns: int, depth: int, rows_last: bool = False) -> dict[str, Any]:
    """Block sizes of a product [rows, depth] by [depth, columns], precision, warps and stages: a fixed rule, no
    autotuning.

    Without tensor cores ("ieee") a thread holds rows of its blocks in registers, so blocks are shorter. With
    `rows_last`, rows and columns are contiguous in memory, not depth: with four warps Triton would choose an
    instruction for 64 rows that wants contiguous depth, and load number by number.
    """
    how = precision()
    high = _power(rows, 64 if rows_last else 256 if how == "tf32" else 128)
    wide = _power(columns, 32 if rows_last else 64)
    return {
        "ROWS": high,
        "COLUMNS": wide,
        "DEPTH": _power(depth, 16 if how == "ieee" else 32),
        "PRECISION": how,
        "num_warps": (1 if high * wide <= 512 else 2) if rows_last else 8 if rows > 128 and how != "ieee" else 4,
        "num_stages": 3,
    }


def _power(size: int, most: int) -> int:
    """The next power of two, from 16 to `most`."""
    return min(max(int(triton.next_power_of_2(size)), 16), most)


class _Geometry(NamedTuple):
    """What is compiled into the kernels of one convolution: image and kernel sizes, stride, padding, output sizes."""

    CHANNELS: int
    OUT: int
    H: int
    W: int
    KH: int
    KW: int
    SH: int
    SW: int
    PH: int
    PW: int
    OH: int
    OW: int

    @property
    def patch(self) -> int:
        """Numbers in a patch."""
        return self.KH * self.KW * self.CHANNELS


class CohortConvolution(torch.autograd.Function):
    """Convolution of input [C, n, channels, h, w] with a weight per client [C, out, channels, kh, kw]."""

    @staticmethod
    def forward(
        ctx: Any,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        stride: tuple[int, int],
        padding: tuple[int, int],
    ) -> Tensor:
        """The output, channels last in memory."""
        images, kernel = _readable(input.movedim(2, -1)), _kernel(weight)
        (*sides, channels), (out, *window) = images.shape[2:], kernel.shape[1:4]
        steps = zip(sides, window, stride, padding, strict=True)
        output = [(side + 2 * edge - size) // step + 1 for side, size, step, edge in steps]
        geometry = _Geometry._make([channels, out, *sides, *window, *stride, *padding, *output])
        ctx.save_for_backward(images, kernel)
        ctx.geometry, ctx.biased = geometry, bias is not None
        with torch.cuda.device_of(images):
            return convolve(images, kernel, bias, geometry).movedim(-1, 2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Any:
        """Gradients by input, weight and bias, where needed."""
        images, kernel = ctx.saved_tensors
        grad = grads[0].movedim(2, -1).contiguous()
        by_input = by_weight = by_bias = None
        if ctx.needs_input_grad[0]:
            by_input = by_images(grad, kernel, ctx.geometry).movedim(-1, 2)
        biased = ctx.biased and ctx.needs_input_grad[2]
        if ctx.needs_input_grad[1]:
            by_weight, by_bias = by_kernel(grad, images, biased, ctx.geometry)
            by_weight = by_weight.movedim(-1, 2)
        elif biased:
            by_bias = grad.flatten(1, 3).sum(1)
        return by_input, by_weight, by_bias, None, None


def _readable(images: Tensor) -> Tensor:
    """Images [C, n, h, w, channels] as kernels can read them: channels contiguous, one image after another. Pixels may
    be skipped, as in a slice."""
    ordered = images.stride(0) == images.shape[1] * images.stride(1)
    return images if ordered and 1 in (images.stride(4), images.shape[4]) else images.contiguous()


def _kernel(weight: Tensor) -> Tensor:
    """Weights as [C, out, kh, kw, channels], contiguous for each client, with any stride between clients."""
    kernel = weight.movedim(2, -1)
    return kernel if kernel[0].is_contiguous() else kernel.contiguous()


def _strides(images: Tensor) -> dict[str, int]:
    return dict(zip(("IMAGE", "ROW", "COLUMN"), images.stride()[1:4], strict=True))


def convolve(images: Tensor, kernel: Tensor, bias: Tensor | None, geometry: _Geometry) -> Tensor:
    """Images [C, n, h, w, channels] to outputs [C, n, height, width, out]."""
    clients, count = images.shape[:2]
    outputs = images.new_empty(clients, count, geometry.OH, geometry.OW, geometry.OUT)
    tile = tiles(128, geometry.OUT, _depth(geometry.CHANNELS, geometry.patch))
    constants = {**_strides(images), **geometry._asdict(), **tile}
    blocks = triton.cdiv(count * geometry.OH * geometry.OW, tile["ROWS"])
    step = unit(kernel.stride(0))
    implicit.convolve[(clients * blocks * triton.cdiv(geometry.OUT, tile["COLUMNS"]),)](
        images, kernel, bias, outputs, count, blocks, kernel.stride(0) // step, *strides(bias), UNIT=step, **constants
    )
    return outputs


def _depth(channels: int, patch: int) -> int:
    """Numbers of a patch per block: within one pixel where its channels can be divided into blocks."""
    return next((size for size in (32, 16) if channels % size == 0), patch)


def by_images(grad: Tensor, kernel: Tensor, geometry: _Geometry) -> Tensor:
    """Gradient by the images [C, n, h, w, channels], given that by the outputs.

    With a stride, pixels are grouped by their phase in it: those of one phase have the same few taps.
    """
    clients, count = grad.shape[:2]
    images = grad.new_empty(clients, count, geometry.H, geometry.W, geometry.CHANNELS)
    tile = tiles(256, geometry.CHANNELS, geometry.OUT)
    pixels = count * triton.cdiv(geometry.H, geometry.SH) * triton.cdiv(geometry.W, geometry.SW)
    blocks = triton.cdiv(pixels, tile["ROWS"])
    step = unit(kernel.stride(0))
    places = geometry.SH * geometry.SW
    implicit.by_images[(clients * blocks * places * triton.cdiv(geometry.CHANNELS, tile["COLUMNS"]),)](
        grad, kernel, images, count, blocks, kernel.stride(0) // step, UNIT=step, **geometry._asdict(), **tile
    )
    return images


def by_kernel(grad: Tensor, images: Tensor, biased: bool, geometry: _Geometry) -> tuple[Tensor, Tensor | None]:
    """Gradients by the weights [C, out, kh, kw, channels] and the bias [C, out], given that by the outputs.

    With few clients, several programs share a client's pixels; their results are added up afterwards.
    """
    clients, count = images.shape[:2]
    pixels = count * geometry.OH * geometry.OW
    tile = tiles(geometry.OUT, geometry.patch, 32, rows_last=True)
    constants = {**_strides(images), **geometry._asdict(), **tile}
    programs = clients * triton.cdiv(geometry.OUT, tile["ROWS"]) * triton.cdiv(geometry.patch, tile["COLUMNS"])
    blocks = triton.cdiv(pixels, tile["DEPTH"])
    share = triton.cdiv(blocks, min(triton.cdiv(_BUSY_PROGRAMS, programs), triton.cdiv(blocks, _MIN_BLOCKS)))
    splits = triton.cdiv(blocks, share)
    parts = grad.new_empty(splits, clients, geometry.OUT, geometry.KH, geometry.KW, geometry.CHANNELS)
    sums = grad.new_empty(splits, clients, geometry.OUT) if biased else parts
    implicit.by_kernel[(programs * splits,)](
        grad, images, parts, sums, count, clients, splits, share * tile["DEPTH"], BIASED=biased, **constants
    )
    by_weight, by_bias = (part[0] if splits == 1 else part.sum(0) for part in (parts, sums))
    return by_weight, by_bias if biased else None
