"""The cells of an LSTM and of a GRU: one fused kernel per time step, in place on the buffers of a whole layer."""

from collections.abc import Callable
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 512


def cell(
    gates: Tensor, product: Tensor, bias: Tensor | None, cells: Tensor, states: Tensor, backwards: bool
) -> Callable[[int], None]:
    """A function that runs a time step, from the cells before it to the next cells and states.

    `gates` [clients, batch, time, 4 * hidden] begin as the products of the inputs; a step adds the product of the last
    states, [clients, batch, 4 * hidden], and the bias [clients, 4 * hidden], and replaces them by the activated gates.
    `cells` are [clients, batch, time + 1, hidden] with the initial ones, `states` [clients, batch * time, hidden]. One
    row may separate the states of two clients; everything else is contiguous.
    """
    bias = None if bias is None else bias.contiguous()
    return _time_step(_cell, gates, (product, bias, cells, states, gates.shape[1]), backwards)


def cell_backward(
    gates: Tensor, cells: Tensor, by_states: Tensor | None, by_h: Tensor, by_c: Tensor, backwards: bool
) -> Callable[[int], None]:
    """A function that runs the same time step backwards; gradients by the gates before activation replace the gates.

    Takes gradients by the states [clients, batch * time, hidden] or None, and by the h and c after a step, [clients,
    batch, hidden]; that by c is replaced by the gradient by the c before the step. Everything is contiguous.
    """
    return _time_step(_cell_backward, gates, (cells, by_states, by_h, by_c), backwards)


def gru_cell(
    parts: Tensor, product: Tensor, bias: Tensor | None, recurrent_bias: Tensor | None, states: Tensor, backwards: bool
) -> Callable[[int], None]:
    """A function that runs a time step of a GRU, from the states before it to the next states.

    `parts` [clients, batch, time, 4 * hidden] begin with the products of the inputs, those for the new state first; a
    step adds the product of the last states [clients, batch, 3 * hidden], those for the new state last, and both
    biases [clients, 3 * hidden], and replaces the parts by the new state, the reset and update gate, and what the last
    state adds to the new one. `states` are [clients, batch, time + 1, hidden] with the initial ones. Everything is
    contiguous.
    """
    biases = [None if each is None else each.contiguous() for each in (bias, recurrent_bias)]
    return _time_step(_gru_cell, parts, (product, *biases, states, parts.shape[1]), backwards)


def gru_cell_backward(
    parts: Tensor, states: Tensor, by_states: Tensor | None, by_h: Tensor, backwards: bool
) -> Callable[[int], None]:
    """A function that runs the same time step backwards; gradients by the parts before activation replace the parts.

    Takes gradients by the states [clients, batch, time, hidden] or None, and by the h after a step [clients, batch,
    hidden], which is replaced by what reaches the h before the step other than through the product with it.
    """
    return _time_step(_gru_cell_backward, parts, (states, by_states, by_h), backwards)


def _time_step(kernel: Any, gates: Tensor, others: tuple[Any, ...], backwards: bool) -> Callable[[int], None]:
    clients, batch, steps, width = gates.shape
    rows, hidden = clients * batch, width // 4
    launch = kernel[(triton.cdiv(rows * hidden, _BLOCK), 1, 1)]
    return lambda t: launch(gates, *others, rows, steps, t, hidden, bool(backwards), _BLOCK)


@triton.jit
def _tanh(x):
    """Near zero as a polynomial (Cephes' `tanhf`), where the formula with exponentials would cancel."""
    square = x * x
    near = -5.70498872745e-3 * square + 2.06390887954e-2
    near = near * square - 5.37397155531e-2
    near = near * square + 1.33314422036e-1
    near = near * square - 3.33332819422e-1
    far = 1 - 2 / (tl.exp(2 * tl.abs(x)) + 1)
    return tl.where(tl.abs(x) < 0.625, near * square * x + x, tl.where(x < 0, -far, far))


@triton.jit
def _place(rows, HIDDEN: tl.constexpr, BLOCK: tl.constexpr):
    """This program's elements of a step: whether they exist, their rows, and their numbers within these."""
    element = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    return element < rows * HIDDEN, element // HIDDEN, element % HIDDEN


@triton.jit(do_not_specialize=["batch", "rows", "steps", "t"])
def _cell(
    gates, product, bias, cells, states, batch, rows, steps, t,
    HIDDEN: tl.constexpr, BACKWARDS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    here, row, unit = _place(rows, HIDDEN, BLOCK)
    client, row = row // batch, row.to(tl.int64)
    gate, added = gates + (row * steps + t) * (4 * HIDDEN) + unit, product + row * (4 * HIDDEN) + unit
    cell = cells + (row * (steps + 1) + t) * HIDDEN + unit
    i = tl.load(gate, here) + tl.load(added, here)
    f = tl.load(gate + HIDDEN, here) + tl.load(added + HIDDEN, here)
    g = tl.load(gate + 2 * HIDDEN, here) + tl.load(added + 2 * HIDDEN, here)
    o = tl.load(gate + 3 * HIDDEN, here) + tl.load(added + 3 * HIDDEN, here)
    if bias is not None:
        shift = bias + client.to(tl.int64) * (4 * HIDDEN) + unit
        i += tl.load(shift, here)
        f += tl.load(shift + HIDDEN, here)
        g += tl.load(shift + 2 * HIDDEN, here)
        o += tl.load(shift + 3 * HIDDEN, here)
    i, f, g, o = tl.sigmoid(i), tl.sigmoid(f), _tanh(g), tl.sigmoid(o)
    before = tl.load(cell + (HIDDEN if BACKWARDS else 0), here)
    after = f * before + i * g
    tl.store(gate, i, here)
    tl.store(gate + HIDDEN, f, here)
    tl.store(gate + 2 * HIDDEN, g, here)
    tl.store(gate + 3 * HIDDEN, o, here)
    tl.store(cell + (0 if BACKWARDS else HIDDEN), after, here)
    tl.store(states + (row * steps + t + client) * HIDDEN + unit, o * _tanh(after), here)


@triton.jit(do_not_specialize=["rows", "steps", "t"])
def _cell_backward(
    gates, cells, by_states, by_h, by_c, rows, steps, t,
    HIDDEN: tl.constexpr, BACKWARDS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    here, row, unit = _place(rows, HIDDEN, BLOCK)
    row = row.to(tl.int64)
    last = row * HIDDEN + unit
    gate = gates + (row * steps + t) * (4 * HIDDEN) + unit
    cell = cells + (row * (steps + 1) + t) * HIDDEN + unit
    grad_h = tl.load(by_h + last, here)
    if by_states is not None:
        grad_h += tl.load(by_states + (row * steps + t) * HIDDEN + unit, here)
    i = tl.load(gate, here)
    f = tl.load(gate + HIDDEN, here)
    g = tl.load(gate + 2 * HIDDEN, here)
    o = tl.load(gate + 3 * HIDDEN, here)
    before = tl.load(cell + (HIDDEN if BACKWARDS else 0), here)
    squashed = _tanh(tl.load(cell + (0 if BACKWARDS else HIDDEN), here))
    grad_c = tl.load(by_c + last, here) + grad_h * o * (1 - squashed * squashed)
    tl.store(gate, grad_c * g * i * (1 - i), here)
    tl.store(gate + HIDDEN, grad_c * before * f * (1 - f), here)
    tl.store(gate + 2 * HIDDEN, grad_c * i * (1 - g * g), here)
    tl.store(gate + 3 * HIDDEN, grad_h * squashed * o * (1 - o), here)
    tl.store(by_c + last, grad_c * f, here)


@triton.jit(do_not_specialize=["batch", "rows", "steps", "t"])
def _gru_cell(
    parts, product, bias, recurrent_bias, states, batch, rows, steps, t,
    HIDDEN: tl.constexpr, BACKWARDS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    here, row, unit = _place(rows, HIDDEN, BLOCK)
    client, row = (row // batch).to(tl.int64), row.to(tl.int64)
    part, added = parts + (row * steps + t) * (4 * HIDDEN) + unit, product + row * (3 * HIDDEN) + unit
    state = states + (row * (steps + 1) + t) * HIDDEN + unit
    new = tl.load(part, here)
    reset = tl.load(part + HIDDEN, here) + tl.load(added, here)
    update = tl.load(part + 2 * HIDDEN, here) + tl.load(added + HIDDEN, here)
    recurrent = tl.load(added + 2 * HIDDEN, here)
    if bias is not None:
        shift = bias + client * (3 * HIDDEN) + unit
        reset += tl.load(shift, here)
        update += tl.load(shift + HIDDEN, here)
        new += tl.load(shift + 2 * HIDDEN, here)
    if recurrent_bias is not None:
        shift = recurrent_bias + client * (3 * HIDDEN) + unit
        reset += tl.load(shift, here)
        update += tl.load(shift + HIDDEN, here)
        recurrent += tl.load(shift + 2 * HIDDEN, here)
    reset, update = tl.sigmoid(reset), tl.sigmoid(update)
    new = _tanh(new + reset * recurrent)
    before = tl.load(state + (HIDDEN if BACKWARDS else 0), here)
    tl.store(part, new, here)
    tl.store(part + HIDDEN, reset, here)
    tl.store(part + 2 * HIDDEN, update, here)
    tl.store(part + 3 * HIDDEN, recurrent, here)
    tl.store(state + (0 if BACKWARDS else HIDDEN), new + update * (before - new), here)


@triton.jit(do_not_specialize=["rows", "steps", "t"])
def _gru_cell_backward(
    parts, states, by_states, by_h, rows, steps, t,
    HIDDEN: tl.constexpr, BACKWARDS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    here, row, unit = _place(rows, HIDDEN, BLOCK)
    row = row.to(tl.int64)
    last, part = row * HIDDEN + unit, parts + (row * steps + t) * (4 * HIDDEN) + unit
    grad = tl.load(by_h + last, here)
    if by_states is not None:
        grad += tl.load(by_states + (row * steps + t) * HIDDEN + unit, here)
    new = tl.load(part, here)
    reset = tl.load(part + HIDDEN, here)
    update = tl.load(part + 2 * HIDDEN, here)
    recurrent = tl.load(part + 3 * HIDDEN, here)
    before = tl.load(states + (row * (steps + 1) + t + (1 if BACKWARDS else 0)) * HIDDEN + unit, here)
    by_new = grad * (1 - update) * (1 - new * new)
    tl.store(part, by_new, here)
    tl.store(part + HIDDEN, by_new * recurrent * reset * (1 - reset), here)
    tl.store(part + 2 * HIDDEN, grad * (before - new) * update * (1 - update), here)
    tl.store(part + 3 * HIDDEN, by_new * reset, here)
    tl.store(by_h + last, grad * update, here)
