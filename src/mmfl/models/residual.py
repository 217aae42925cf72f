"""The residual network for small colour images."""

import torch.nn.functional as F
from torch import Tensor, nn

from mmfl.models.options import Norm, NormLayer, norm_layer, require_counts


class PreActResNet18(nn.Module):
    """Pre-activation ResNet-18 for 32x32 images (He et al. 2016): four stages of two blocks, each with twice the
    channels and half the resolution of the one before.

    `width` is the number of channels of the first stage and scales all stages; parameters grow with its square. Group
    norm, in two groups as usual in federated learning, treats every example separately; batch norm uses the statistics
    of the current batch, also when testing, and keeps no running statistics.

    >>> [round(sum(p.numel() for p in PreActResNet18(width=width).parameters()) / 1e6, 2) for width in (16, 32, 64)]
    [0.7, 2.8, 11.17]
    """

    def __init__(self, classes: int = 10, width: int = 64, channels: int = 3, norm: Norm = "group", groups: int = 2):
        super().__init__()
        require_counts(self, classes=classes, width=width, channels=channels)
        make_norm = norm_layer(self, norm, groups, width)
        self.first = nn.Conv2d(channels, width, 3, padding=1, bias=False)
        blocks, inputs = [], width
        for stride, outputs in ((1, width), (2, 2 * width), (2, 4 * width), (2, 8 * width)):
            blocks += [_Block(inputs, outputs, stride, make_norm), _Block(outputs, outputs, 1, make_norm)]
            inputs = outputs
        self.blocks = nn.Sequential(*blocks)
        self.norm = make_norm(inputs)
        self.output = nn.Linear(inputs, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits [examples, classes] for images [examples, channels, height, width]."""
        x = F.relu(self.norm(self.blocks(self.first(x))))
        return self.output(x.mean((2, 3)))  # type: ignore[no-any-return]


class _Block(nn.Module):
    """Two times norm, rectifier and 3x3 convolution, added to the input or, if the shape changes, to a 1x1 projection
    of the activated input."""

    def __init__(self, inputs: int, outputs: int, stride: int, make_norm: NormLayer):
        super().__init__()
        self.stride = stride
        self.first_norm = make_norm(inputs)
        self.first = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.second_norm = make_norm(outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        changes = stride != 1 or inputs != outputs
        self.projection = nn.Conv2d(inputs, outputs, 1, bias=False) if changes else None

    def forward(self, x: Tensor) -> Tensor:
        active = F.relu(self.first_norm(x))
        if self.projection is not None:
            # The stride is applied here and not in the projection: in the backward pass of strided 1x1
            # convolutions with fewer than 16 channels, channels last, oneDNN 3.12 writes past its buffers.
            x = self.projection(active[:, :, :: self.stride, :: self.stride])
        return x + self.second(F.relu(self.second_norm(self.first(active))))  # type: ignore[no-any-return]
