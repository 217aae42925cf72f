"""EMNIST: handwritten digits and letters of 28x28 pixels (Cohen, Afshar, Tapson, van Schaik 2017)."""

import zipfile
from pathlib import Path

from mmfl.data import byte_images, files, idx
from mmfl.data.dataset import Dataset
from mmfl.data.remote import RemoteFile
from mmfl.errors import UserError, nearest

ARCHIVE = RemoteFile(
    "gzip.zip",
    "https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip",
    sha256="fb9bb67e33772a9cc0b895e4ecf36d2cf35be8b709693c3564cea2a019fcda8e",
    size=561_753_746,
)
CLASSES = {"balanced": 47, "byclass": 62}
STAND_IN = "femnist47"


def emnist(folder: str | Path | None = None, split: str = "balanced") -> Dataset:
    """Handwritten characters, turned upright: bytes [1, 28, 28].

    `split` is "balanced" (47 classes, 112,800 for training and 18,800 for testing) or "byclass" (62 classes, 697,932
    and 116,323). It reads the idx files in the folder, compressed or not, or `gzip.zip`, which is downloaded (562 MB)
    if it is missing. If the folder has `femnist47.npz`, this replaces the balanced split: the same kind of images and
    classes, but not EMNIST, which the name of the data set then says.
    """
    if split not in CLASSES:
        raise UserError(f"data 'emnist': unknown split '{split}': {nearest(str(split), CLASSES)}")
    name, classes = f"emnist-{split}", CLASSES[split]
    place = files.folder_of("emnist", folder)
    parts = [f"{name}-{part.replace('t10k', 'test')}" for part in idx.PARTS]
    choices = [idx.spellings(part) for part in parts]
    if unpacked := files.find_all(place, [(*names, *(f"gzip/{name}" for name in names)) for names in choices]):
        return idx.dataset(name, place, unpacked, classes, transposed=True)
    stand_in = files.find(place, f"{STAND_IN}.npz") if split == "balanced" else None
    if stand_in and not files.find(place, ARCHIVE.name):
        return byte_images.from_npz(f"{STAND_IN} (in place of emnist)", stand_in, (1, idx.SIDE, idx.SIDE), classes)
    (archive,) = files.fetch("emnist", place, [ARCHIVE])
    with files.reading("emnist", archive):
        members = [zipfile.Path(archive, f"gzip/{part}.gz") for part in parts]
    return idx.dataset(name, archive, members, classes, transposed=True)
