"""Networks ready to use in a task, one family a file; any other `nn.Module` class works the same way.

They follow the papers' experiments and keep no running statistics, so that a network is its parameters and nothing
else: that is what clients send. Options have defaults for the data set a network is named for.
"""

from collections.abc import Callable

from torch import nn

from mmfl.models.convolutional import CelebACNN, LargerCNN, SmallCNN
from mmfl.models.linear import LogisticRegression, Perceptron
from mmfl.models.quadratic import Quadratic
from mmfl.models.recurrent import CharacterLSTM
from mmfl.models.residual import PreActResNet18

MODELS: dict[str, Callable[..., nn.Module]] = {
    "logistic": LogisticRegression,
    "perceptron": Perceptron,
    "small-cnn": SmallCNN,
    "larger-cnn": LargerCNN,
    "preact-resnet18": PreActResNet18,
    "character-lstm": CharacterLSTM,
    "celeba-cnn": CelebACNN,
    "quadratic": Quadratic,
}

__all__ = [
    "MODELS",
    "CelebACNN",
    "CharacterLSTM",
    "LargerCNN",
    "LogisticRegression",
    "Perceptron",
    "PreActResNet18",
    "Quadratic",
    "SmallCNN",
]
