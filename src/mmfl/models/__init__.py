"""Networks of the papers' experiments, one family per file, and low-rank adapters (`lora`) for any network; any other
`nn.Module` works the same way.

They have no running statistics, since clients only exchange parameters. The defaults of their options fit the data set
for which the paper uses the network. Nothing here trains.
"""

from collections.abc import Callable

from torch import nn

from mmfl.models.adapters import lora
from mmfl.models.convolutional import CelebACNN, LargerCNN, SmallCNN
from mmfl.models.linear import LogisticRegression, Perceptron, Quadratic
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
    "lora",
]
