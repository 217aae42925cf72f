"""MNIST (LeCun, Cortes, Burges) and Fashion-MNIST (Xiao, Rasul, Vollgraf 2017): 70,000 images of 28x28 pixels each."""

from collections.abc import Sequence
from pathlib import Path

from mmfl.data import byte_images, files, idx
from mmfl.data.dataset import Dataset
from mmfl.data.remote import RemoteFile


def published_files(address: str, contents: Sequence[str | None]) -> list[RemoteFile]:
    """The four files of a data set at an address, with the sha256 of their uncompressed contents."""
    return [
        RemoteFile(f"{part}.gz", f"{address}/{part}.gz", content=content, also=idx.spellings(part)[1:])
        for part, content in zip(idx.PARTS, contents, strict=True)
    ]


FILES = {
    "mnist": published_files(
        "https://ossci-datasets.s3.amazonaws.com/mnist",  # the authors' address no longer has them
        (
            "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
            "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
            "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
            "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
        ),
    ),
    "fashion-mnist": published_files(
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
        (
            "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
            "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
            "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
            "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
        ),
    ),
}


def mnist(folder: str | Path | None = None) -> Dataset:
    """Handwritten digits, ten classes: bytes [1, 28, 28], 60,000 for training and 10,000 for testing.

    Read from idx files in the folder (compressed or not) or `mnist.npz`; downloaded if missing (12 MB).
    """
    return _load("mnist", "mnist.npz", folder)


def fashion_mnist(folder: str | Path | None = None) -> Dataset:
    """Articles of clothing, ten classes: bytes [1, 28, 28], 60,000 for training and 10,000 for testing.

    Read from idx files in the folder (compressed or not) or `fashion_mnist.npz`; downloaded if missing (31 MB).
    """
    return _load("fashion-mnist", "fashion_mnist.npz", folder)


def _load(source: str, npz: str, folder: str | Path | None) -> Dataset:
    """From idx files in the folder, else from the `.npz` file, else downloaded."""
    place = files.folder_of(source, folder)
    path = files.find(place, npz)
    if path and not files.find_all(place, [file.names for file in FILES[source]]):
        return byte_images.from_npz(source, path, (1, idx.SIDE, idx.SIDE), 10)
    return idx.dataset(source, place, files.fetch(source, place, FILES[source]), 10)
