"""Augmentation: random changes of training inputs, drawn anew whenever an example is used.

An augmentation is a function `f(x, random)` of a batch of inputs and its random numbers, which returns the changed
inputs. Each example has random numbers of its own, a function of seed, round, task, client, step and its place in the
batch: they are the same however clients are batched, on every engine and after a resume. So `f` must treat examples
one by one, as array code does: `x + 0.1 * random.normal(*x.shape[1:])`.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mmfl.checks import check, check_positive, check_whole, is_number
from mmfl.data.structure import Structure
from mmfl.randomness import bits


class Random:
    """The random numbers of a batch: each call draws new ones, for every example from its own key [examples].

    >>> random = Random(torch.arange(3))
    >>> random.uniform(2).shape, random.integers(0, 5).shape
    (torch.Size([3, 2]), torch.Size([3]))
    """

    def __init__(self, keys: Tensor):
        self.keys, self.draws = keys, 0

    def bits(self, *shape: int) -> Tensor:
        """64 random bits for each number, as int64 [examples, *shape]."""
        self.draws += 1
        element = torch.arange(torch.Size(shape).numel(), device=self.keys.device)
        return bits(self.keys[:, None], self.draws, element).view(-1, *shape)

    def uniform(self, *shape: int) -> Tensor:
        """Numbers in [0, 1), [examples, *shape]."""
        return ((self.bits(*shape) >> 40) & ((1 << 24) - 1)).float() * 2.0**-24

    def integers(self, low: int, high: int, *shape: int) -> Tensor:
        """Whole numbers from `low` to `high` - 1, [examples, *shape]."""
        return low + ((self.bits(*shape) >> 32) & ((1 << 32) - 1)) * (high - low) // (1 << 32)

    def normal(self, *shape: int) -> Tensor:
        """Standard normal numbers, [examples, *shape]."""
        chance = (((self.bits(*shape) >> 11) & ((1 << 53) - 1)).double() + 0.5) * 2.0**-53
        normal: Tensor = torch.special.ndtri(chance)
        return normal.float()


Augment = Callable[[Structure, Random], Structure]


@dataclass(frozen=True)
class Augmentation:
    """A change of one tensor: of the inputs themselves, or of their `part` where they are a dictionary or a tuple."""

    part: str | int | None = field(default=None, kw_only=True)

    def __call__(self, x: Structure, random: Random) -> Structure:
        """The inputs with the part changed."""
        if self.part is None:
            return self.change(x, random)
        if isinstance(x, Tensor):
            raise ValueError(f"part is {self.part!r}, but inputs have no parts: each is one tensor")
        if self.part not in (names := list(x) if isinstance(x, dict) else list(range(len(x)))):
            raise ValueError(f"part is {self.part!r}; expected one of: {', '.join(map(repr, names))}")
        if isinstance(x, dict):
            return {**x, self.part: self.change(x[self.part], random)}
        changed, place = list(x), int(self.part)
        changed[place] = self.change(changed[place], random)
        return type(x)(changed)

    def change(self, x: Tensor, random: Random) -> Tensor:
        """The tensor [examples, ...], changed."""
        raise TypeError(f"augmentation {type(self).__name__} does not say how to change inputs.")


@dataclass(frozen=True)
class Crop(Augmentation):
    """Shifts images [..., height, width] by up to `padding` pixels in each direction, and fills the border.

    >>> image = torch.ones(1, 1, 4, 4)
    >>> Crop(padding=2)(image, Random(torch.tensor([1]))).shape
    torch.Size([1, 1, 4, 4])
    """

    padding: int = 4
    fill: float = 0.0

    def __post_init__(self) -> None:
        check_whole("augmentation 'crop'", "padding", self.padding)

    def change(self, x: Tensor, random: Random) -> Tensor:
        """A window of the padded image, at a random place."""
        _check_image(x)
        height, width = x.shape[-2:]
        padded = F.pad(x, [self.padding] * 4, value=self.fill).flatten(1, -3)
        shift = random.integers(0, 2 * self.padding + 1, 2)
        row = shift[:, :1] + torch.arange(height, device=x.device)
        column = shift[:, 1:] + torch.arange(width, device=x.device)
        rows = padded.gather(-2, row[:, None, :, None].expand(-1, padded.shape[1], -1, padded.shape[-1]))
        return rows.gather(-1, column[:, None, None, :].expand(-1, padded.shape[1], height, -1)).view(x.shape)


@dataclass(frozen=True)
class Flip(Augmentation):
    """Mirrors images [..., height, width] with a probability: left and right, or, if `vertical`, top and bottom."""

    probability: float = 0.5
    vertical: bool = False

    def __post_init__(self) -> None:
        valid = is_number(self.probability, 0, 1)
        check(valid, "augmentation 'flip'", "probability", self.probability, "a number in [0, 1]")

    def change(self, x: Tensor, random: Random) -> Tensor:
        """The image or its mirror image."""
        _check_image(x)
        flipped = (random.uniform() < self.probability).view(-1, *(1 for _ in x.shape[1:]))
        return torch.where(flipped, x.flip(-2 if self.vertical else -1), x)


@dataclass(frozen=True)
class Noise(Augmentation):
    """Adds Gaussian noise of standard deviation `scale` to every number."""

    scale: float = 0.1

    def __post_init__(self) -> None:
        check_positive("augmentation 'noise'", "scale", self.scale)

    def change(self, x: Tensor, random: Random) -> Tensor:
        """x plus noise."""
        return x + self.scale * random.normal(*x.shape[1:])


_LOCK = threading.Lock()  # torch has one generator for all threads


@dataclass(frozen=True)
class PerExample(Augmentation):
    """Applies a function of a single example that draws from torch's generator, such as a transform of torchvision.

    The generator is seeded for every example, and left as it was. One example after another takes time: prefer array
    code where there is much data.
    """

    transform: Callable[[Tensor], Tensor]

    def change(self, x: Tensor, random: Random) -> Tensor:
        """One example after another."""
        seeds = (random.bits() & ((1 << 63) - 1)).tolist()
        changed = []
        with _LOCK, torch.random.fork_rng(devices=[x.device] if x.is_cuda else []):
            for example, seed in zip(x, seeds, strict=True):
                torch.manual_seed(seed)
                changed.append(self.transform(example))
        return torch.stack(changed)


@dataclass(frozen=True)
class AugmentationChain:
    """Several augmentations, one after another."""

    steps: tuple[Augment, ...]

    def __call__(self, x: Structure, random: Random) -> Structure:
        """The inputs after all steps."""
        for step in self.steps:
            x = step(x, random)
        return x


def chain(augment: Augment | Sequence[Augment] | None) -> Augment | None:
    """One augmentation, or several as one; None for none."""
    if augment is None or callable(augment):
        return augment
    return AugmentationChain(tuple(augment)) if augment else None


def _check_image(x: Any) -> None:
    if not isinstance(x, Tensor) or x.dim() < 3:
        given = f"shape {tuple(x.shape)}" if isinstance(x, Tensor) else f"a {type(x).__name__}"
        raise ValueError(f"{given} are no images [examples, ..., height, width]; choose the input with part=...")


AUGMENTATIONS: dict[str, Callable[..., Augment]] = {
    "crop": Crop,
    "flip": Flip,
    "noise": Noise,
}
