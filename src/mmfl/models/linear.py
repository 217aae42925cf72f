"""Networks without convolutions, for inputs of any shape, and the model of the quadratic federation."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmfl.models.options import require_counts


class LogisticRegression(nn.Module):
    """One linear layer over the flattened input."""

    def __init__(self, inputs: int = 64, classes: int = 10):
        super().__init__()
        require_counts(self, inputs=inputs, classes=classes)
        self.output = nn.Linear(inputs, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits [examples, classes]."""
        return self.output(x.flatten(1))  # type: ignore[no-any-return]


class Perceptron(nn.Module):
    """A hidden layer of rectified units between input and output."""

    def __init__(self, inputs: int = 64, hidden: int = 64, classes: int = 10):
        super().__init__()
        require_counts(self, inputs=inputs, hidden=hidden, classes=classes)
        self.hidden = nn.Linear(inputs, hidden)
        self.output = nn.Linear(hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits [examples, classes]."""
        return self.output(F.relu(self.hidden(x.flatten(1))))  # type: ignore[no-any-return]


class Quadratic(nn.Module):
    """The point w of the quadratic federation: an example (A_k | b_k) maps to F_k(w), its own loss."""

    def __init__(self, size: int, curvature: float = 2e-4):
        super().__init__()
        require_counts(self, size=size)
        self.point = nn.Parameter(torch.zeros(size))
        self.curvature = curvature

    def forward(self, x: Tensor) -> Tensor:
        """F_k(w) = w'A_k w / 2 - b_k'w + curvature |w|^2 / 2 for each example [size, size + 1]."""
        matrix, vector = x[..., :-1], x[..., -1]
        product = matrix @ self.point
        return 0.5 * product @ self.point - vector @ self.point + 0.5 * self.curvature * self.point.square().sum()
