"""Networks ready to use in a task; any other `nn.Module` class works the same way."""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class LogisticRegression(nn.Module):
    """One linear layer over the flattened input."""

    def __init__(self, inputs: int = 64, classes: int = 10):
        super().__init__()
        self.output = nn.Linear(inputs, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits [examples, classes]."""
        return self.output(x.flatten(1))  # type: ignore[no-any-return]


class Perceptron(nn.Module):
    """A hidden layer of rectified units between input and output."""

    def __init__(self, inputs: int = 64, hidden: int = 64, classes: int = 10):
        super().__init__()
        self.hidden = nn.Linear(inputs, hidden)
        self.output = nn.Linear(hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits [examples, classes]."""
        return self.output(F.relu(self.hidden(x.flatten(1))))  # type: ignore[no-any-return]


class SmallCNN(nn.Module):
    """Two 3x3 convolutions, each pooled, and two linear layers: the papers' network for 28x28 images.

    Works on square images of `side` pixels; small ones, such as 8x8 digits, need `padding=1`.
    """

    def __init__(
        self,
        side: int = 28,
        channels: int = 1,
        widths: Sequence[int] = (32, 64),
        hidden: int = 512,
        classes: int = 10,
        padding: int = 0,
    ):
        super().__init__()
        self.first = nn.Conv2d(channels, widths[0], 3, padding=padding)
        self.second = nn.Conv2d(widths[0], widths[1], 3, padding=padding)
        shrunk = 2 - 2 * padding
        left = ((side - shrunk) // 2 - shrunk) // 2
        self.hidden = nn.Linear(widths[1] * left * left, hidden)
        self.output = nn.Linear(hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits [examples, classes] for images [examples, channels, side, side]."""
        # Rectifying after pooling gives the same values as before it, on a quarter of the numbers.
        x = F.relu(F.max_pool2d(self.first(x), 2))
        x = F.relu(F.max_pool2d(self.second(x), 2))
        return self.output(F.relu(self.hidden(x.flatten(1))))  # type: ignore[no-any-return]


class CharacterLSTM(nn.Module):
    """Embedding, two LSTM layers and a linear layer: logits for the next token at every position."""

    def __init__(self, vocabulary: int = 80, embedding: int = 128, hidden: int = 256, layers: int = 2):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, embedding)
        self.recurrent = nn.LSTM(embedding, hidden, layers, batch_first=True)
        self.output = nn.Linear(hidden, vocabulary)

    def forward(self, x: Tensor) -> Tensor:
        """Logits [examples, time, vocabulary] for tokens [examples, time]."""
        states, _ = self.recurrent(self.embedding(x))
        return self.output(states)  # type: ignore[no-any-return]


class Quadratic(nn.Module):
    """The point w of the quadratic federation: an example (A_k | b_k) maps to F_k(w), its own loss."""

    def __init__(self, size: int, curvature: float = 2e-4):
        super().__init__()
        self.point = nn.Parameter(torch.zeros(size))
        self.curvature = curvature

    def forward(self, x: Tensor) -> Tensor:
        """F_k(w) = w'A_k w / 2 - b_k'w + curvature |w|^2 / 2 for each example [size, size + 1]."""
        matrix, vector = x[..., :-1], x[..., -1]
        product = matrix @ self.point
        return 0.5 * product @ self.point - vector @ self.point + 0.5 * self.curvature * self.point.square().sum()


MODELS: dict[str, Callable[..., nn.Module]] = {
    "logistic": LogisticRegression,
    "perceptron": Perceptron,
    "small-cnn": SmallCNN,
    "character-lstm": CharacterLSTM,
    "quadratic": Quadratic,
}
