"""Where examples come from: one file per source, all giving a `Dataset`.

A data set is a pair of base tensors (and a pair for testing) with, where the source knows it, the owner of every
example. Who holds which rows is the business of `mmfl.partition`; nothing here copies data per client.
"""

from collections.abc import Callable

from mmfl.data.dataset import Dataset, from_arrays
from mmfl.data.digits import digits
from mmfl.data.generated import blobs, images
from mmfl.data.quadratic import quadratic
from mmfl.data.synthetic import synthetic, synthetic_iid

SOURCES: dict[str, Callable[..., Dataset]] = {
    "digits": digits,
    "synthetic": synthetic,
    "synthetic-iid": synthetic_iid,
    "quadratic": quadratic,
    "blobs": blobs,
    "images": images,
}

__all__ = [
    "SOURCES",
    "Dataset",
    "blobs",
    "digits",
    "from_arrays",
    "images",
    "quadratic",
    "synthetic",
    "synthetic_iid",
]
