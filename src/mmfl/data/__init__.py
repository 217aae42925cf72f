"""Where examples come from: the data sources. Every source returns a `Dataset`.

A data set has inputs and targets (tensors, structures of tensors, or arrays whose rows are read when needed), the same
for testing and, if the source knows it, the owner of every example. What changes inputs during training is here too.
Which client gets which rows is decided in `mmfl.partition`; nothing here depends on clients.
"""

from collections.abc import Callable

from mmfl.data import augmentation
from mmfl.data.adapters import from_huggingface, from_torch_dataset
from mmfl.data.celeba import celeba
from mmfl.data.cifar10 import cifar10
from mmfl.data.dataset import Dataset, from_arrays
from mmfl.data.faces import faces
from mmfl.data.features import features
from mmfl.data.femnist import femnist
from mmfl.data.image_folder import image_folder
from mmfl.data.lazy import lazy
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
    "image-folder": image_folder,
}

__all__ = [
    "SOURCES",
    "Dataset",
    "augmentation",
    "blobs",
    "celeba",
    "cifar10",
    "digits",
    "emnist",
    "faces",
    "fashion_mnist",
    "features",
    "femnist",
    "from_arrays",
    "from_huggingface",
    "from_torch_dataset",
    "image_folder",
    "images",
    "lazy",
    "mnist",
    "quadratic",
    "shakespeare",
    "synthetic",
    "synthetic_iid",
]
