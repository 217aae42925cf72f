"""Batch norm in a federation: where its statistics live, and which layers have them."""

from collections.abc import Iterator
from typing import Literal

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

BatchNormMode = Literal["shared", "local", "frozen"]
"""Where the statistics of batch norm live.

- "shared": the server has them. After a round they are the mean of those of the drawn clients, weighted by examples.
- "local" (FedBN, Li et al. 2021): they, and batch norm's scales and shifts, stay with each client.
- "frozen": they never change, and layers use them in training too, as in fine-tuning. Scales and shifts are trained.
"""


def batch_norm_layers(module: nn.Module) -> Iterator[tuple[str, _NormBase]]:
    """Layers of batch norm, and of instance norm with running statistics, by name."""
    for name, part in module.named_modules():
        if isinstance(part, _BatchNorm) or (isinstance(part, _NormBase) and part.running_mean is not None):
            yield name, part


def set_training(module: nn.Module, mode: BatchNormMode) -> nn.Module:
    """Puts a module into training mode; frozen layers of batch norm stay as in evaluation."""
    module.train()
    if mode == "frozen":
        for _, layer in batch_norm_layers(module):
            layer.eval()
    return module
