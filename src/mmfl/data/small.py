"""Small data sets that need no files: scikit-learn's digits, Gaussian blobs, and images with one template per class."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from mmfl.checks import check, check_memory, check_whole, is_number
from mmfl.data.dataset import Dataset, from_arrays
from mmfl.randomness import Purpose, generator


def digits(test_share: float = 0.2, seed: int = 0) -> Dataset:
    """1,797 real handwritten digits, ten classes, no download; images [1, 8, 8] scaled to [0, 1]."""
    table = _digits_table()
    x = torch.from_numpy(table[:, :-1].reshape(-1, 1, 8, 8)).float() / 16.0
    return from_arrays(x, table[:, -1].astype(np.int64), test_share=test_share, name="digits", seed=seed)


def _digits_table() -> NDArray[np.float64]:
    """A row for each digit: 64 pixels and the class, from scikit-learn's file, since importing that takes a second."""
    found = find_spec("sklearn")
    file = Path(found.origin).parent / "datasets" / "data" / "digits.csv.gz" if found and found.origin else Path()
    if file.is_file():
        return np.loadtxt(file, delimiter=",")
    from sklearn.datasets import load_digits  # a version that keeps its file elsewhere

    source = load_digits()
    return np.column_stack([source.data, source.target])


def blobs(
    examples: int = 1000,
    inputs: int = 10,
    classes: int = 4,
    spread: float = 1.0,
    test_share: float = 0.2,
    seed: int = 0,
) -> Dataset:
    """Classes as Gaussian clouds around random centres; `spread` is their standard deviation."""
    where = "data 'blobs'"
    for name, value in (("examples", examples), ("inputs", inputs), ("classes", classes)):
        check_whole(where, name, value)
    check(is_number(spread, 0, np.inf), where, "spread", spread, "a standard deviation >= 0")
    check_memory(f"{where} of {examples} examples", 8.0 * examples * inputs)
    rng = generator(seed, Purpose.DATA)
    centres = rng.normal(size=(classes, inputs)) * 2
    y = np.arange(examples) % classes
    x = centres[y] + spread * rng.normal(size=(examples, inputs))
    return from_arrays(x, y, test_share=test_share, name="blobs", seed=seed)


def images(
    examples: int = 1000,
    side: int = 28,
    channels: int = 1,
    classes: int = 10,
    noise: float = 0.5,
    test_share: float = 0.2,
    seed: int = 0,
) -> Dataset:
    """Images [channels, side, side]: a smooth random template per class plus pixel noise."""
    where = "data 'images'"
    for name, value in (("examples", examples), ("side", side), ("channels", channels), ("classes", classes)):
        check_whole(where, name, value)
    check(is_number(noise, 0, np.inf), where, "noise", noise, "a standard deviation >= 0")
    check_memory(f"{where} of {examples} examples", 8.0 * examples * channels * side**2)
    rng = generator(seed, Purpose.DATA)
    coarse = rng.normal(size=(classes, channels, 4, 4))
    scale = -(-side // 4)
    templates = coarse.repeat(scale, axis=2).repeat(scale, axis=3)[:, :, :side, :side]
    y = np.arange(examples) % classes
    x = templates[y] + noise * rng.normal(size=(examples, channels, side, side))
    return from_arrays(x, y, test_share=test_share, name="images", seed=seed)
