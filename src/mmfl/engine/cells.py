"""The cell of an LSTM, in place on the buffers of a whole layer, in torch's own operations."""

from torch import Tensor, cat, mul


class Cell:
    """One step after another, each from the cells it finds to the next cells and states.

    A step's gates are the inputs' share of them, of all steps [clients, batch, time, 4 * hidden], plus the product of
    the last states, [clients, batch, 4 * hidden], plus a bias [clients, 4 * hidden]; activated, they replace the
    inputs' share. Cells are [clients, batch, time + 1, hidden], the first ones included; states [clients, batch * time,
    hidden].
    """

    def __init__(
        self, gates: Tensor, product: Tensor, bias: Tensor | None, cells: Tensor, states: Tensor, backwards: bool
    ):
        self.gates, self.product, self.bias = gates, product, bias
        self.cells, self.backwards = cells, backwards
        self.states = states.unflatten(1, gates.shape[1:3])

    def __call__(self, t: int) -> None:
        """One step."""
        gates, before = self.gates[:, :, t], self.cells[:, :, t + self.backwards]
        gates += self.product
        if self.bias is not None:
            gates += self.bias[:, None]
        i, f, g, o = gates.chunk(4, -1)
        for gate in (i, f, o):
            gate.sigmoid_()
        g.tanh_()
        cell = mul(f, before, out=self.cells[:, :, t + 1 - self.backwards]).addcmul_(i, g)
        mul(o, cell.tanh(), out=self.states[:, :, t])


class CellBackward:
    """The same steps back: gradients by the gates before activation replace the gates.

    Takes gradients by the states [clients, batch * time, hidden], or none, and by the h and c that a step leaves,
    [clients, batch, hidden]; of these, c's is replaced by the gradient by what the step found.
    """

    def __init__(
        self, gates: Tensor, cells: Tensor, by_states: Tensor | None, by_h: Tensor, by_c: Tensor, backwards: bool
    ):
        self.gates, self.cells, self.backwards = gates, cells, backwards
        self.by_states = None if by_states is None else by_states.unflatten(1, gates.shape[1:3])
        self.by_h, self.by_c = by_h, by_c

    def __call__(self, t: int) -> None:
        """One step."""
        gates, before = self.gates[:, :, t], self.cells[:, :, t + self.backwards]
        i, f, g, o = gates.chunk(4, -1)
        squashed = self.cells[:, :, t + 1 - self.backwards].tanh()
        by_h = self.by_h if self.by_states is None else self.by_h + self.by_states[:, :, t]
        by_c = self.by_c.add_(by_h * o * (1 - squashed**2))
        by_gates = (
            by_c * g * i * (1 - i),
            by_c * before * f * (1 - f),
            by_c * i * (1 - g**2),
            by_h * squashed * o * (1 - o),
        )
        by_c *= f
        gates.copy_(cat(by_gates, -1))
