"""scikit-learn's digits: 1,797 real handwritten digits of 8x8 pixels that come with the library."""

import torch

from mmfl.data.dataset import Dataset, from_arrays


def digits(test_share: float = 0.2, seed: int = 0) -> Dataset:
    """Real 8x8 digits, ten classes, no download; images [1, 8, 8] scaled to [0, 1]."""
    from sklearn.datasets import load_digits  # takes a second to import

    source = load_digits()
    x = torch.from_numpy(source.images).float()[:, None] / 16.0
    return from_arrays(x, source.target, test_share=test_share, name="digits", seed=seed)
