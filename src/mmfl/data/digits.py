"""scikit-learn's digits: 1,797 real handwritten digits of 8x8 pixels that come with the library."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

from mmfl.data.dataset import Dataset, from_arrays


def digits(test_share: float = 0.2, seed: int = 0) -> Dataset:
    """Real 8x8 digits, ten classes, no download; images [1, 8, 8] scaled to [0, 1]."""
    library = find_spec("sklearn")  # found, not imported, which takes a second
    assert library and library.origin
    table = np.loadtxt(Path(library.origin).with_name("datasets") / "data" / "digits.csv.gz", delimiter=",")
    x = torch.from_numpy(table[:, :-1]).float().view(-1, 1, 8, 8) / 16.0
    return from_arrays(x, table[:, -1].astype(np.int64), test_share=test_share, name="digits", seed=seed)
