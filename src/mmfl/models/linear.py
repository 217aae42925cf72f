"""Networks without convolutions, for inputs of any shape."""

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
