"""Plain convolutional networks: small ones for characters and clothes, and LEAF's network for faces."""

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from mmfl.models.options import Norm, model_error, norm_layer, require_counts


class SmallCNN(nn.Module):
    """Two 3x3 convolutions, each pooled, and two linear layers: the papers' network for 28x28 images.

    Works on square images of `side` pixels; small ones, such as 8x8 digits, need `padding=1`.

    >>> sum(p.numel() for p in SmallCNN().parameters())
    843658
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
        if len(widths) != 2:
            raise model_error(self, f"widths are {list(widths)}; expected one for each of the two convolutions.")
        first, second = widths
        require_counts(self, side=side, channels=channels, hidden=hidden, classes=classes)
        require_counts(self, **{"the first width": first, "the second width": second})
        if padding not in (0, 1):
            raise model_error(self, f"padding is {padding!r}; expected 0 or 1.")
        shrunk = 2 - 2 * padding
        min_side = 4 + 3 * shrunk
        if side < min_side:
            hint = "" if padding else ", or padding=1"
            raise model_error(
                self, f"nothing is left of {side}x{side} images; expected a side of at least {min_side}{hint}."
            )
        final_side = ((side - shrunk) // 2 - shrunk) // 2
        self.first = nn.Conv2d(channels, first, 3, padding=padding)
        self.second = nn.Conv2d(first, second, 3, padding=padding)
        self.hidden = nn.Linear(second * final_side * final_side, hidden)
        self.output = nn.Linear(hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits [examples, classes] for images [examples, channels, side, side]."""
        # Rectifying after pooling gives the same values as before it, on a quarter of the numbers.
        x = F.relu(F.max_pool2d(self.first(x), 2))
        x = F.relu(F.max_pool2d(self.second(x), 2))
        return self.output(F.relu(self.hidden(x.flatten(1))))  # type: ignore[no-any-return]


class LargerCNN(SmallCNN):
    """`SmallCNN` with twice the channels and hidden units, for the many classes of EMNIST: 47 balanced, 62 by writer.

    >>> LargerCNN(classes=62).output
    Linear(in_features=1024, out_features=62, bias=True)
    """

    def __init__(
        self,
        side: int = 28,
        channels: int = 1,
        widths: Sequence[int] = (64, 128),
        hidden: int = 1024,
        classes: int = 47,
        padding: int = 0,
    ):
        super().__init__(side, channels, widths, hidden, classes, padding)


class CelebACNN(nn.Module):
    """LEAF's network for faces: four 3x3 convolutions, each normalised, pooled and rectified, and a linear layer.

    As published (Caldas et al. 2018) it uses batch norm, also when testing, and its convolutions have a bias although
    batch norm cancels it. With `norm="group"` an example's output does not depend on its batch.

    >>> sum(p.numel() for p in CelebACNN().parameters())
    31202
    """

    def __init__(
        self,
        side: int = 84,
        channels: int = 3,
        width: int = 32,
        classes: int = 2,
        norm: Norm = "batch",
        groups: int = 2,
    ):
        super().__init__()
        require_counts(self, side=side, channels=channels, width=width, classes=classes)
        make_norm = norm_layer(self, norm, groups, width)
        inputs = (channels, width, width, width)
        self.convolutions = nn.ModuleList(nn.Conv2d(n, width, 3, padding=1) for n in inputs)
        self.norms = nn.ModuleList(make_norm(width) for _ in inputs)
        final_side = -(-side // 16)
        self.output = nn.Linear(width * final_side * final_side, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits [examples, classes] for images [examples, channels, side, side]."""
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            x = F.relu(F.max_pool2d(norm(convolution(x)), 2, ceil_mode=True))
        return self.output(x.flatten(1))  # type: ignore[no-any-return]
