"""scikit-learn's digits: 1,797 real handwritten digits of 8x8 pixels that come with the library."""

from importlib.metadata import distribution

import numpy as np
import torch

from mmfl.data.dataset import Dataset, from_arrays


def digits(test_share: float = 0.2, seed: int = 0) -> Dataset:
    """Real 8x8 digits, ten classes, no download; images [1, 8, 8] scaled to [0, 1]."""
    library = distribution("scikit-learn")  # found, not imported, which takes a second
    table = np.loadtxt(str(library.locate_file("sklearn/datasets/data/digits.csv.gz")), delimiter=",")
    x = torch.from_numpy(table[:, :-1]).float().view(-1, 1, 8, 8) / 16.0
    return from_arrays(x, table[:, -1].astype(np.int64), test_share=test_share, name="digits", seed=seed)
