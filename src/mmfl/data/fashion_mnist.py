"""Fashion-MNIST: 70,000 articles of clothing of 28x28 pixels (Xiao, Rasul, Vollgraf 2017)."""

from pathlib import Path

from mmfl.data import idx
from mmfl.data.dataset import Dataset

FILES = idx.published_files(
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
    (
        "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    ),
)


def fashion_mnist(folder: str | Path | None = None) -> Dataset:
    """Articles of clothing, ten classes: bytes [1, 28, 28], 60,000 for training and 10,000 for testing.

    Read from idx files in the folder (compressed or not) or `fashion_mnist.npz`; downloaded if missing (31 MB).
    """
    return idx.load_mnist_like("fashion-mnist", "fashion_mnist.npz", folder, FILES)
