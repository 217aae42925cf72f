"""Where examples come from: the data sources. Every source returns a `Dataset`.

A data set is a pair of tensors, a second pair for testing and, if the source knows it, the owner of every example.
Which client gets which rows is decided in `mmfl.partition`; nothing here depends on clients.
"""

from collections.abc import Callable

from mmfl.data.adapters import from_huggingface, from_torch_dataset
from mmfl.data.celeba import celeba
from mmfl.data.cifar10 import cifar10
from mmfl.data.dataset import Dataset, from_arrays
from mmfl.data.faces import faces
from mmfl.data.femnist import femnist
from mmfl.data.mnist import emnist, fashion_mnist, mnist
from mmfl.data.shakespeare import shakespeare
from mmfl.data.small import blobs, digits, images
from mmfl.data.synthetic import quadratic, synthetic, synthetic_iid

SOURCES: dict[str, Callable[..., Dataset]] = {
    "digits": digits,
    "mnist": mnist,
    "fashion-mnist": fashion_mnist,
    "emnist": emnist,
    "femnist": femnist,
    "cifar10": cifar10,
    "shakespeare": shakespeare,
    "celeba": celeba,
    "faces": faces,
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
    "celeba",
    "cifar10",
    "digits",
    "emnist",
    "faces",
    "fashion_mnist",
    "femnist",
    "from_arrays",
    "from_huggingface",
    "from_torch_dataset",
    "images",
    "mnist",
    "quadratic",
    "shakespeare",
    "synthetic",
    "synthetic_iid",
]
