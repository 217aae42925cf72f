"""MNIST, Fashion-MNIST, EMNIST and CIFAR-10: read from small files in their own formats, refused when something is off.

With the environment variable MMFL_TEST_DATA naming a folder of real `.npz` files, those are loaded too.
"""

import gzip
import io
import os
import struct
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from conftest import refusals, refused
from mmfl.data.cifar10 import ARCHIVE, cifar10
from mmfl.data.dataset import as_inputs
from mmfl.data.mnist import FILES, emnist, fashion_mnist, mnist, published_files

ROWS, ROWS_TEST = 20, 10
LIKE_MNIST = {"mnist": mnist, "fashion-mnist": fashion_mnist}
ALL = {**LIKE_MNIST, "emnist": emnist, "cifar10": cifar10}
WANTED = {**FILES, "cifar10": [ARCHIVE]}
rng = np.random.default_rng(1)


def drawn(*shape, high=256):
    return rng.integers(0, high, shape).astype(np.uint8)


X, X_TEST = drawn(ROWS, 28, 28), drawn(ROWS_TEST, 28, 28)
Y, Y_TEST = np.arange(ROWS, dtype=np.uint8) % 10, np.arange(ROWS_TEST, dtype=np.uint8)
COLOUR, COLOUR_TEST = drawn(5 * 4, 3, 32, 32), drawn(4, 3, 32, 32)


@pytest.fixture(autouse=True)
def without_a_network(monkeypatch):
    monkeypatch.delenv("MMFL_DATA", raising=False)
    monkeypatch.setenv("MMFL_OFFLINE", "1")


@pytest.fixture
def unchecked(monkeypatch):
    """Files written here cannot have the published checksums: their structure alone is checked."""
    for name in LIKE_MNIST:
        monkeypatch.setitem(FILES, name, published_files("http://nowhere", [None] * 4))
    monkeypatch.setitem(FILES, "emnist", [replace(FILES["emnist"][0], sha256=None, size=None)])
    monkeypatch.setitem(cifar10.__globals__, "ARCHIVE", replace(ARCHIVE, sha256=None, size=None))


# --- files in the formats of their authors -------------------------------------------


def as_idx(array) -> bytes:
    return struct.pack(f">4B{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


def idx_files(folder, spelling="{}-{}.gz", x=X, y=Y, x_test=X_TEST, y_test=Y_TEST, names=("train", "t10k")):
    """Writes four idx files; returns the folder."""
    folder.mkdir(exist_ok=True)
    for name, images, labels in ((names[0], x, y), (names[1], x_test, y_test)):
        for part, array in (("images", images), ("labels", labels)):
            path = folder / spelling.format(f"{name}-{part}", f"idx{array.ndim}-ubyte")
            content = as_idx(array)
            path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return folder


def npz_file(folder, name="mnist", **changes):
    arrays = {"x_train": X, "y_train": Y, "x_test": X_TEST, "y_test": Y_TEST}
    if name == "cifar10":
        arrays |= {"x_train": COLOUR.transpose(0, 2, 3, 1), "x_test": COLOUR_TEST.transpose(0, 2, 3, 1)}
        arrays |= {"y_test": Y_TEST[:4]}
    np.savez(folder / f"{name}.npz", **(arrays | changes))
    return folder


def cifar_batches() -> dict[str, bytes]:
    records = np.hstack([Y[:, None], COLOUR.reshape(20, -1)])
    batches = {f"data_batch_{n + 1}.bin": records[4 * n : 4 * n + 4].tobytes() for n in range(5)}
    return {**batches, "test_batch.bin": np.hstack([Y_TEST[:4, None], COLOUR_TEST.reshape(4, -1)]).tobytes()}


def cifar_files(folder, **changes):
    folder.mkdir(exist_ok=True)
    for name, content in (cifar_batches() | changes).items():
        if content is not None:
            (folder / name).write_bytes(content)
    return folder


def cifar_archive(folder, batches=None):
    with tarfile.open(folder / "cifar-10-binary.tar.gz", "w:gz") as tar:
        for name, content in {"readme.html": b"about", **(batches or cifar_batches())}.items():
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return folder


def emnist_archive(folder, split="balanced"):
    """EMNIST's zip of idx.gz files, in which images lie on their side."""
    turned = {"x": X.transpose(0, 2, 1), "x_test": X_TEST.transpose(0, 2, 1)}
    parts = idx_files(folder / "parts", f"emnist-{split}-{{}}-{{}}.gz", **turned, names=("train", "test"))
    with zipfile.ZipFile(folder / "gzip.zip", "w") as archive:
        for path in parts.iterdir():
            archive.write(path, f"gzip/{path.name}")
    return folder


def check(made, name, x=X[:, None], x_test=X_TEST[:, None], y_test=Y_TEST):
    assert made.name == name
    assert made.x.dtype == made.x_test.dtype == torch.uint8
    assert made.y.dtype == made.y_test.dtype == torch.int64
    assert made.x.is_contiguous()
    np.testing.assert_array_equal(made.x, x)
    np.testing.assert_array_equal(made.x_test, x_test)
    assert made.y.tolist() == Y.tolist()
    assert made.y_test.tolist() == y_test.tolist()
    assert made.owner is None


def check_colour(made):
    check(made, "cifar10", COLOUR, COLOUR_TEST, Y_TEST[:4])


# --- what is read --------------------------------------------------------------------


@pytest.mark.parametrize("spelling", ["{}-{}.gz", "{}-{}", "{}.{}.gz", "{}.{}"])
@pytest.mark.parametrize("name", LIKE_MNIST)
def test_idx_files_are_read_packed_or_not_with_dash_or_dot(name, spelling, tmp_path, unchecked):
    check(LIKE_MNIST[name](idx_files(tmp_path, spelling)), name)


@pytest.mark.parametrize("name", LIKE_MNIST)
def test_npz_files_are_read_where_there_are_no_idx_files(name, tmp_path, unchecked):
    other = npz_file(tmp_path, name.replace("-", "_"), x_train=255 - X)
    assert torch.equal(LIKE_MNIST[name](other).x[:, 0], 255 - torch.from_numpy(X))
    check(LIKE_MNIST[name](idx_files(tmp_path)), name)


def test_files_are_found_in_mmfl_data_and_in_its_sub_folder(tmp_path, monkeypatch, unchecked):
    monkeypatch.setenv("MMFL_DATA", str(tmp_path))
    check(mnist(npz_file(tmp_path)), "mnist")
    check(mnist(), "mnist")
    idx_files(tmp_path / "fashion-mnist")
    check(fashion_mnist(), "fashion-mnist")
    npz_file(tmp_path, "cifar10")
    check_colour(cifar10())


@pytest.mark.parametrize("split", ["balanced", "byclass"])
def test_emnist_is_turned_upright_pixel_by_pixel(split, tmp_path, unchecked):
    check(emnist(emnist_archive(tmp_path, split), split), f"emnist-{split}")
    (tmp_path / "gzip.zip").unlink()
    check(emnist(tmp_path / "parts", split), f"emnist-{split}")
    (tmp_path / "parts").rename(tmp_path / "gzip")
    check(emnist(tmp_path, split), f"emnist-{split}")


def test_the_stand_in_for_emnist_says_what_it_is_and_gives_way_to_emnist_itself(tmp_path, unchecked):
    npz_file(tmp_path, "femnist47")
    check(emnist(tmp_path), "femnist47 (in place of emnist)")
    with refused("gzip.zip", "MMFL_OFFLINE"):
        emnist(tmp_path, "byclass")
    check(emnist(emnist_archive(tmp_path)), "emnist-balanced")


@pytest.mark.parametrize(
    "write",
    [
        lambda folder: cifar_files(folder),
        lambda folder: cifar_files(folder / "cifar-10-batches-bin").parent,
        lambda folder: cifar_archive(folder),
        lambda folder: npz_file(folder, "cifar10"),
    ],
    ids=["batches", "sub-folder", "archive", "npz"],
)
def test_cifar_is_read_from_its_batches_its_archive_and_an_npz_file_and_unpacks_nothing(write, tmp_path, unchecked):
    written = sorted(write(tmp_path).rglob("*"))
    check_colour(cifar10(tmp_path))
    assert sorted(tmp_path.rglob("*")) == written


def test_bytes_are_shown_to_a_model_as_numbers_from_0_to_1():
    assert as_inputs(torch.tensor([0, 51, 255], dtype=torch.uint8)).tolist() == [0.0, pytest.approx(0.2), 1.0]


# --- what is refused -----------------------------------------------------------------


def spoil(folder, name, change):
    (folder / name).write_bytes(change((folder / name).read_bytes()))
    return folder


IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"


def spoiled(name, change):
    return lambda folder: spoil(idx_files(folder, "{}-{}"), name, change)


def cut(name, count):
    return {name: cifar_batches()[name][:count]}


@refusals(
    (spoiled(IMAGES, lambda content: content[:-1]), IMAGES, "cut short", "15,679", "15,680"),
    (spoiled(IMAGES, lambda content: content[:10]), IMAGES, "starts with"),
    (spoiled(IMAGES, lambda content: b""), IMAGES, "starts with nothing"),
    (spoiled(IMAGES, lambda content: content + b"x"), IMAGES, "15,681 bytes for 20 entries"),
    (spoiled(IMAGES, lambda content: b"\0\0\x0d\3" + content[4:]), IMAGES, "00 00 0d 03", "00 00 08 03"),
    (spoiled(LABELS, lambda content: b"\0\0\x08\3" + content[4:]), LABELS, "00 00 08 03", "00 00 08 01"),
    (spoiled(IMAGES, lambda content: content[:4] + b"\xff" * 4 + content[8:]), IMAGES, "4,294,967,295"),
    (spoiled(IMAGES, lambda content: content[:11] + b"\x1b" + content[12:]), IMAGES, "00 00 00 1b", "(28, 28)"),
    (spoiled(LABELS, lambda content: content[:-1] + b"\x0a"), "label 10", "row 19", "training", "0 to 9"),
    (lambda folder: idx_files(folder, y=Y[:-1]), "20 training images", "(19,)"),
    (lambda folder: idx_files(folder, x=X[:0], y=Y[:0]), "training", "no examples"),
    (lambda folder: npz_file(folder, x_train=X / 255), "x_train", "float64", "uint8"),
    (lambda folder: npz_file(folder, x_test=X_TEST[:, :27]), "x_test", "(10, 27, 28)", "(rows, 28, 28)"),
    (lambda folder: npz_file(folder, y_test=Y_TEST[:, None]), "10 test images", "(10, 1)"),
    (lambda folder: npz_file(folder, y_train=Y / 1), "labels are float64"),
    (lambda folder: npz_file(folder, y_train=Y.astype(int) - 1), "label -1", "row 0"),
)
def test_a_file_of_mnist_whose_header_length_arrays_or_labels_do_not_fit_is_refused(make, words, tmp_path, unchecked):
    with refused("'mnist'", *words):
        mnist(make(tmp_path))


def test_a_gzip_file_that_was_cut_short_or_changed_is_refused_by_name(tmp_path, unchecked):
    path = idx_files(tmp_path) / f"{IMAGES}.gz"
    whole = path.read_bytes()
    for wrong in (whole[: len(whole) // 2], whole[:2000] + b"\0" * 50 + whole[2050:], whole[:5]):
        path.write_bytes(wrong)
        with refused("'mnist'", path.name, "damaged"):
            mnist(tmp_path)


@pytest.mark.parametrize("spelling", ["{}-{}.gz", "{}-{}"])
def test_files_of_another_data_set_under_the_same_names_are_refused(spelling, tmp_path):
    with refused("'mnist'", IMAGES, "not the published file", "content", FILES["mnist"][0].content):
        mnist(idx_files(tmp_path, spelling))


@refusals(
    (lambda folder: cifar_files(folder, **cut("data_batch_3.bin", -5)), "data_batch_3.bin has 12,287 bytes", "3,073"),
    (lambda folder: cifar_files(folder, **cut("data_batch_3.bin", -3073)), "data_batch_3.bin has 9,219 bytes"),
    (lambda folder: cifar_files(folder, **{"data_batch_2.bin": b"\x0a" * 3073 * 4}), "label 10", "row 4", "0 to 9"),
    (lambda folder: cifar_files(folder, **{"test_batch.bin": None}), "cifar-10-binary.tar.gz", "MMFL_OFFLINE"),
    (lambda folder: cifar_archive(folder, cut("test_batch.bin", None)), "has no data_batch_1.bin"),
    (lambda folder: cifar_archive(folder, cifar_batches() | cut("test_batch.bin", 9)), "test_batch.bin has 9 bytes"),
    (
        lambda folder: spoil(cifar_archive(folder), "cifar-10-binary.tar.gz", lambda content: content[:9000]),
        "cifar-10-binary.tar.gz",
        "damaged",
    ),
    (lambda folder: npz_file(folder, "cifar10", x_train=COLOUR), "(20, 3, 32, 32)", "(rows, 32, 32, 3)"),
)
def test_cifar_batches_that_do_not_fit_are_refused(make, words, tmp_path, unchecked):
    with refused("'cifar10'", *words):
        cifar10(make(tmp_path))


def test_an_emnist_archive_that_is_damaged_or_lacks_a_part_is_refused(tmp_path, unchecked):
    archive = emnist_archive(tmp_path) / "gzip.zip"
    with refused("gzip.zip", "emnist-byclass-train-images-idx3-ubyte.gz"):
        emnist(tmp_path, "byclass")
    archive.write_bytes(archive.read_bytes()[:-200])
    with refused("'emnist'", "gzip.zip", "damaged"):
        emnist(tmp_path)


@pytest.mark.parametrize(("name", "write"), [("emnist", emnist_archive), ("cifar10", cifar_archive)])
def test_an_archive_that_is_not_the_published_one_is_refused_and_left_alone(name, write, tmp_path):
    archive = write(tmp_path) / WANTED[name][0].name
    before = archive.read_bytes()
    with refused(f"'{name}'", archive.name, "not the published file", "bytes instead of"):
        ALL[name](tmp_path)
    assert archive.read_bytes() == before


def test_an_unknown_split_of_emnist_is_refused():
    with refused("split 'balance'", "did you mean 'balanced'"):
        emnist(split="balance")


@pytest.mark.parametrize("name", ALL)
def test_a_folder_without_the_data_is_refused_in_two_lines_that_say_what_to_put_where(name, tmp_path):
    with pytest.raises(Exception, match="not found in") as caught:
        ALL[name](tmp_path / "none")
    _, second = str(caught.value).splitlines()
    assert all(file.name in second for file in WANTED[name])
    assert second.endswith(f"into {tmp_path / 'none'}.")


# --- real data -----------------------------------------------------------------------

real = pytest.mark.skipif("MMFL_TEST_DATA" not in os.environ, reason="MMFL_TEST_DATA names no folder of real data")


@real
@pytest.mark.parametrize(
    ("source", "name", "shape", "train", "test", "mean"),
    [
        (mnist, "mnist", (1, 28, 28), [2000] * 10, 10_000, [0.1307]),
        (fashion_mnist, "fashion-mnist", (1, 28, 28), [2000] * 10, 10_000, [0.2860]),
        (emnist, "femnist47 (in place of emnist)", (1, 28, 28), [200] * 47, 1410, None),
        (cifar10, "cifar10", (3, 32, 32), [600] * 10, 2000, [0.4914, 0.4822, 0.4465]),
    ],
    ids=list(ALL),
)
def test_real_files_have_the_known_sizes_classes_and_mean_pixels(source, name, shape, train, test, mean):
    made = source(Path(os.environ["MMFL_TEST_DATA"]))
    assert made.name == name
    assert made.x.shape == (sum(train), *shape)
    assert made.x_test.shape == (test, *shape)
    assert made.y.bincount().tolist() == train
    assert made.y_test.unique().tolist() == list(range(len(train)))
    assert (made.x.dtype, int(made.x.min()), int(made.x.max())) == (torch.uint8, 0, 255)
    if mean is not None:
        np.testing.assert_allclose(as_inputs(made.x).mean((0, 2, 3)), mean, atol=0.01)
