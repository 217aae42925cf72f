"""Vectors in 2, 3, 4 or 8 bits a number: blocks of 256 numbers share a scale.

In few bits, a block is first rotated by a fixed orthogonal matrix, after which its numbers look like draws of a normal
distribution, whatever they were before (many zeros, a few large ones); then the best levels for a normal distribution
lose the same share of every block: 12% of its squared length in 2 bits, 3.5% in 3 and 1% in 4.
"""

from itertools import pairwise

import torch
from torch import Tensor
from torch.nn.functional import pad

BLOCK = 256
LARGEST = 2.0**100
"""What is larger is stored as this number."""
LEVELS = {
    2: (0.452780, 1.510418),
    3: (0.245094, 0.756005, 1.343909, 2.151946),
    4: (0.128395, 0.388048, 0.656759, 0.942340, 1.256231, 1.618046, 2.069017, 2.732590),
}
"""The positive levels with the least squared error for a standard normal distribution (Max 1960), by bits a number."""
_SCALE_BYTES = 4
_LOWEST_BITS = 0x0101010101010101
# Multiplied by eight bytes that are 0 or 1, it collects them in the highest byte.
_COLLECT = 0x0102040810204080


def quantised_bytes(length: int, bits: int) -> int:
    """Bytes of a quantised vector of this length."""
    return _SCALE_BYTES * -(-length // BLOCK) + bits * -(-length // 8)


def quantise(rows: Tensor, bits: int) -> Tensor:
    """Rows [rows, length] of float32 as bytes [rows, bytes]: the scales of all blocks, then one plane for each bit.

    A block with a nan becomes nan as a whole, so that it cannot go unnoticed.
    """
    rows = rows.clamp(-LARGEST, LARGEST)
    length = rows.shape[1]
    blocks = _blocks(rotate(rows) if bits in LEVELS else rows)
    if bits in LEVELS:
        counts = _blocks(torch.ones(1, length, device=rows.device)).sum(-1)
        norms = torch.linalg.vector_norm(blocks, dim=-1, dtype=torch.float64)  # a square may be beyond float32
        scales = (norms / counts.sqrt()).float()
    else:
        scales = blocks.abs().amax(-1) / 127
    ratios = blocks / torch.where(scales == 0, 1, scales).unsqueeze(-1)
    codes = _nearest_levels(ratios, bits) if bits in LEVELS else (ratios.round() + 128).clamp(1, 255).to(torch.uint8)
    codes = codes.flatten(1)[:, : -(-length // 8) * 8]
    return torch.cat([scales.view(torch.uint8), *pack(codes, bits)], 1)


def dequantise(encoded: Tensor, bits: int, length: int) -> Tensor:
    """The rows [rows, length] of float32 that `quantise` encoded."""
    head = _SCALE_BYTES * -(-length // BLOCK)
    scales = _align_rows(encoded[:, :head]).view(torch.float32)
    codes = unpack(encoded[:, head:], bits)
    levels = _levels(bits, encoded.device)
    ratios = levels.index_select(0, codes.flatten().int()).view(codes.shape)[:, :length]
    rows = (_blocks(ratios) * scales.unsqueeze(-1)).flatten(1)[:, :length]
    return rotate(rows, back=True) if bits in LEVELS else rows


def pack(codes: Tensor, bits: int) -> list[Tensor]:
    """Codes [rows, 8 n] of so many bits as planes [rows, n]: in each, a byte has one bit of eight codes."""
    if bits == 8:
        return [codes]
    eights = _align_rows(codes).view(torch.int64)
    return [(((eights >> bit & _LOWEST_BITS) * _COLLECT) >> 56).to(torch.uint8) for bit in range(bits)]


def unpack(planes: Tensor, bits: int) -> Tensor:
    """The codes [rows, 8 n] in planes [rows, bits * n] that lie side by side."""
    if bits == 8:
        return planes
    spread = torch.tensor([[byte >> bit & 1 for bit in range(8)] for byte in range(256)], dtype=torch.uint8)
    table = spread.view(torch.int64).flatten().to(planes.device)
    parts = [table[plane.int()] << bit for bit, plane in enumerate(planes.chunk(bits, 1))]
    return torch.stack(parts).sum(0).view(torch.uint8)


def rotate(rows: Tensor, back: bool = False) -> Tensor:
    """The rows with every block of 256 rotated, or rotated back; rows shorter than a block as they are.

    Where the length is no multiple of 256, the last 256 numbers are then rotated together, which takes in those beyond
    the last whole block.
    """
    length = rows.shape[1]
    whole = length // BLOCK * BLOCK
    turned = rows.clone()
    parts = [slice(0, whole), slice(length - BLOCK, length)][: 2 if whole < length else 1] if whole else []
    for part in reversed(parts) if back else parts:
        numbers = turned[:, part]
        turned[:, part] = _rotate_blocks(numbers.reshape(-1, BLOCK), back).view(numbers.shape)
    return turned


def _rotate_blocks(blocks: Tensor, back: bool) -> Tensor:
    """Random signs, then the Walsh-Hadamard transform; back: the other way round. [blocks, 256]

    Sums and differences in a fixed order: the same bits however many blocks there are.
    """
    signs = _signs(blocks.device)[:, None] / BLOCK**0.5
    now = blocks.t() / BLOCK**0.5 if back else blocks.t() * signs
    now, then = now.contiguous(), torch.empty_like(now, memory_format=torch.contiguous_format)
    half = 1
    while half < BLOCK:
        pairs, turned = now.view(-1, 2, half, len(blocks)), then.view(-1, 2, half, len(blocks))
        torch.add(pairs[:, 0], pairs[:, 1], out=turned[:, 0])
        torch.sub(pairs[:, 0], pairs[:, 1], out=turned[:, 1])
        now, then, half = then, now, 2 * half
    result: Tensor = now * (BLOCK**0.5 * signs) if back else now
    return result.t().contiguous()


def _signs(device: torch.device) -> Tensor:
    """256 signs without a pattern: 1 for the squares modulo the prime 257."""
    squares = {number * number % 257 for number in range(1, 257)}
    return torch.tensor([1.0 if number in squares else -1.0 for number in range(1, 257)], device=device)


def _align_rows(columns: Tensor) -> Tensor:
    """A copy whose rows follow one another, to be viewed in a wider type; `contiguous` copies no single row."""
    return columns.clone(memory_format=torch.contiguous_format)


def _blocks(rows: Tensor) -> Tensor:
    """Rows as [rows, blocks, 256], the last block filled with zeros."""
    return pad(rows, (0, -rows.shape[1] % BLOCK)).view(len(rows), -(-rows.shape[1] // BLOCK), BLOCK)


def _levels(bits: int, device: torch.device) -> Tensor:
    """The level of each code: for few bits, the negative ones and then the positive ones, by size."""
    if bits not in LEVELS:
        return torch.arange(256, device=device, dtype=torch.float32) - 128
    positive = torch.tensor(LEVELS[bits], device=device)
    return torch.cat([-positive, positive])


def _nearest_levels(ratios: Tensor, bits: int) -> Tensor:
    """The code of the level nearest to each number."""
    levels, size = LEVELS[bits], ratios.abs()
    codes = (ratios > 0).to(torch.uint8) * len(levels)
    for lower, upper in pairwise(levels):
        codes += size > (lower + upper) / 2
    return codes
