"""The Triton programs of a cohort's convolutions: products with matrices of patches that exist only block by block.

Upper-case arguments are compiled in; numbers of clients and images are not. Offsets within one client have 32 bits.
"""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["count", "blocks", "bias_stride", "bias_step"])
def convolve(
    images, kernel, bias, outputs, count, blocks, kernel_stride, bias_stride, bias_step,
    UNIT: tl.constexpr, PRECISION: tl.constexpr,
    IMAGE: tl.constexpr, ROW: tl.constexpr, COLUMN: tl.constexpr,
    CHANNELS: tl.constexpr, OUT: tl.constexpr, H: tl.constexpr, W: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    SH: tl.constexpr, SW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """A block of one client's output pixels and channels: patches [pixels, taps * channels] times weights."""
    PATCH: tl.constexpr = KH * KW * CHANNELS
    out_blocks: tl.constexpr = (OUT + COLUMNS - 1) // COLUMNS
    program = tl.program_id(0)
    client = (program // out_blocks // blocks).to(tl.int64)
    pixel = program // out_blocks % blocks * ROWS + tl.arange(0, ROWS)
    out = program % out_blocks * COLUMNS + tl.arange(0, COLUMNS)
    images += client * count * IMAGE
    kernel += client * kernel_stride * UNIT
    outputs += client * count * (OH * OW * OUT)

    there = pixel < count * (OH * OW)
    top = tl.where(there, pixel // OW % OH * SH - PH, H)[:, None]
    left = (pixel % OW * SW - PW)[:, None]
    corner = (pixel // (OH * OW) * IMAGE)[:, None] + top * ROW + left * COLUMN
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for step in range((PATCH + DEPTH - 1) // DEPTH):
        place = step * DEPTH + tl.arange(0, DEPTH)
        if CHANNELS % DEPTH == 0:  # all of one tap
            tap = step // (CHANNELS // DEPTH)
            channel = (step % (CHANNELS // DEPTH) * DEPTH + tl.arange(0, DEPTH))[None, :]
        else:
            tap = (place // CHANNELS)[None, :]
            channel = (place % CHANNELS)[None, :]
        y = top + tap // KW
        x = left + tap % KW
        inside = (y >= 0) & (y < H) & (x >= 0) & (x < W)
        known = (out < OUT)[None, :]
        if PATCH % DEPTH != 0:
            inside &= (place < PATCH)[None, :]
            known &= (place < PATCH)[:, None]
        patches = tl.load(images + (corner + channel + (tap // KW * ROW + tap % KW * COLUMN)), inside, 0.0)
        weights = tl.load(kernel + (out[None, :] * PATCH + place[:, None]), known, 0.0)
        total = tl.dot(patches, weights, total, input_precision=PRECISION)
    if bias is not None:
        total += tl.load(bias + client * bias_stride + out * bias_step, out < OUT, 0.0)[None, :]
    tl.store(outputs + (pixel[:, None] * OUT + out[None, :]), total, there[:, None] & (out < OUT)[None, :])


@triton.jit(do_not_specialize=["count", "blocks"])
def by_images(
    grad, kernel, images, count, blocks, kernel_stride,
    UNIT: tl.constexpr, PRECISION: tl.constexpr,
    CHANNELS: tl.constexpr, OUT: tl.constexpr, H: tl.constexpr, W: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    SH: tl.constexpr, SW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """A block of one client's input pixels, all at the same phase of the stride, and channels: the gradients at the
    output pixels that read them [pixels, taps * out] times weights."""
    PATCH: tl.constexpr = KH * KW * CHANNELS
    QH: tl.constexpr = (H + SH - 1) // SH
    QW: tl.constexpr = (W + SW - 1) // SW
    channel_blocks: tl.constexpr = (CHANNELS + COLUMNS - 1) // COLUMNS
    out_blocks: tl.constexpr = (OUT + DEPTH - 1) // DEPTH
    program = tl.program_id(0)
    client = (program // (channel_blocks * SH * SW) // blocks).to(tl.int64)
    pixel = program // (channel_blocks * SH * SW) % blocks * ROWS + tl.arange(0, ROWS)
    channel = program % channel_blocks * COLUMNS + tl.arange(0, COLUMNS)
    phase = program // channel_blocks % (SH * SW)
    grad += client * count * (OH * OW * OUT)
    kernel += client * kernel_stride * UNIT
    images += client * count * (H * W * CHANNELS)

    # Input row y meets tap a where y + PH - a is a multiple of the stride: every SH-th tap from the first on.
    y_phase = phase // SW
    x_phase = phase % SW
    a = (y_phase + PH) % SH
    b = (x_phase + PW) % SW
    down = (KH - a + SH - 1) // SH
    across = (KW - b + SW - 1) // SW
    there = pixel < count * (QH * QW)
    image = pixel // (QH * QW)
    bottom = tl.where(there, pixel // QW % QH + (y_phase + PH) // SH, -1)[:, None]
    right = (pixel % QW + (x_phase + PW) // SW)[:, None]
    corner = (image * (OH * OW * OUT))[:, None] + bottom * (OW * OUT) + right * OUT
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for step in range(down * across * out_blocks):
        tap = step // out_blocks
        i = tap // across
        j = tap % across
        out = step % out_blocks * DEPTH + tl.arange(0, DEPTH)
        y = bottom - i
        x = right - j
        inside = (y >= 0) & (y < OH) & (x >= 0) & (x < OW)
        known = (channel < CHANNELS)[None, :]
        if OUT % DEPTH != 0:
            inside &= (out < OUT)[None, :]
            known &= (out < OUT)[:, None]
        seen = tl.load(grad + (corner + out[None, :] - (i * OW + j) * OUT), inside, 0.0)
        begin = ((a + i * SH) * KW + b + j * SW) * CHANNELS
        weights = tl.load(kernel + (out[:, None] * PATCH + begin + channel[None, :]), known, 0.0)
        total = tl.dot(seen, weights, total, input_precision=PRECISION)
    y = pixel // QW % QH * SH + y_phase
    x = pixel % QW * SW + x_phase
    there = there & (y < H) & (x < W)
    target = ((image * H + y) * W + x) * CHANNELS
    tl.store(images + (target[:, None] + channel[None, :]), total, there[:, None] & (channel < CHANNELS)[None, :])


@triton.jit(do_not_specialize=["count", "clients", "splits", "share"])
def by_kernel(
    grad, images, parts, sums, count, clients, splits, share,
    BIASED: tl.constexpr, PRECISION: tl.constexpr,
    IMAGE: tl.constexpr, ROW: tl.constexpr, COLUMN: tl.constexpr,
    CHANNELS: tl.constexpr, OUT: tl.constexpr, H: tl.constexpr, W: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    SH: tl.constexpr, SW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """A block of one client's weights [out, taps * channels]: gradients times patches, over a share of the pixels; and
    for the bias the sums of the gradients."""
    PATCH: tl.constexpr = KH * KW * CHANNELS
    place_blocks: tl.constexpr = (PATCH + COLUMNS - 1) // COLUMNS
    out_blocks: tl.constexpr = (OUT + ROWS - 1) // ROWS
    program = tl.program_id(0)
    block = program % place_blocks
    out = program // place_blocks % out_blocks * ROWS + tl.arange(0, ROWS)
    split = program // (place_blocks * out_blocks) % splits
    client = (program // (place_blocks * out_blocks) // splits).to(tl.int64)
    grad += client * count * (OH * OW * OUT)
    images += client * count * IMAGE
    parts += (split * clients + client) * (OUT * PATCH)
    sums += (split * clients + client) * OUT

    place = block * COLUMNS + tl.arange(0, COLUMNS)
    if CHANNELS % COLUMNS == 0:  # all of one tap
        tap = block // (CHANNELS // COLUMNS)
        channel = (block % (CHANNELS // COLUMNS) * COLUMNS + tl.arange(0, COLUMNS))[None, :]
    else:
        tap = (place // CHANNELS)[None, :]
        channel = (place % CHANNELS)[None, :]
    row = tap // KW - PH
    column = tap % KW - PW
    offset = channel + row * ROW + column * COLUMN
    pixels = count * (OH * OW)
    begin = split * share
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    added = tl.zeros((ROWS, DEPTH), tl.float32)
    for first in range(begin, tl.minimum(begin + share, pixels), DEPTH):
        pixel = first + tl.arange(0, DEPTH)
        there = pixel < pixels
        top = tl.where(there, pixel // OW % OH * SH, H + PH)
        left = pixel % OW * SW
        y = top[:, None] + row
        x = left[:, None] + column
        inside = (y >= 0) & (y < H) & (x >= 0) & (x < W)
        if PATCH % COLUMNS != 0:
            inside &= (place < PATCH)[None, :]
        start = pixel // (OH * OW) * IMAGE + top * ROW + left * COLUMN
        patches = tl.load(images + (start[:, None] + offset), inside, 0.0)
        seen = tl.load(grad + (pixel[None, :] * OUT + out[:, None]), there[None, :] & (out < OUT)[:, None], 0.0)
        if BIASED:
            added += seen
        total = tl.dot(seen, patches, total, input_precision=PRECISION)
    tl.store(parts + (out[:, None] * PATCH + place[None, :]), total, (out < OUT)[:, None] & (place < PATCH)[None, :])
    if BIASED and block == 0:
        tl.store(sums + out, tl.sum(added, 1), out < OUT)
