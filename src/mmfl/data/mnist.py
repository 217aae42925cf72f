"""MNIST: 70,000 handwritten digits of 28x28 pixels (LeCun, Cortes, Burges)."""

from pathlib import Path

from mmfl.data import idx
from mmfl.data.dataset import Dataset

FILES = idx.published_files(
    "https://ossci-datasets.s3.amazonaws.com/mnist",  # the authors' address no longer has them
    (
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    ),
)


def mnist(folder: str | Path | None = None) -> Dataset:
    """Handwritten digits, ten classes: bytes [1, 28, 28], 60,000 for training and 10,000 for testing.

    Read from idx files in the folder (compressed or not) or `mnist.npz`; downloaded if missing (12 MB).
    """
    return idx.load_mnist_like("mnist", "mnist.npz", folder, FILES)
