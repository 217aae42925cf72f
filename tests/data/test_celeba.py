"""CelebA's folder and LEAF's: who is in which picture, what it shows, and one copy of the pictures."""

import gc
import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from test_text_and_face_sources import write_leaf

from conftest import refusals, refused
from mmfl.data import pictures
from mmfl.data.celeba import celeba

ATTRIBUTES = ["Bald", "Eyeglasses", "Male", "Smiling", "Young"]
OWNER = [2880, 7, 2880, 15, 7, 2880, 15, 7, 2880, 101, 2880, 7]
NAMES = [f"{number:06d}.jpg" for number in range(1, len(OWNER) + 1)]
SHOWS = np.random.default_rng(0).integers(0, 2, (len(OWNER), len(ATTRIBUTES)))
COLOUR = {name: (20 * n, 255 - 20 * n, 10 * (n % 3)) for n, name in enumerate(NAMES)}


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("MMFL_CACHE", str(tmp_path / "cache"))
    pictures._SHARED.clear()


def paint(path: Path, colour) -> None:
    Image.new("RGB", (178, 218), colour).save(path, quality=95)


def write_celeba(folder: Path) -> Path:
    """The official layout: aligned pictures, and text files with CelebA's heads and blanks."""
    (folder / "img_align_celeba").mkdir(parents=True)
    for name in NAMES:
        paint(folder / "img_align_celeba" / name, COLOUR[name])
    lines = [f"{name} " + " ".join(f"{2 * v - 1:2d}" for v in row) for name, row in zip(NAMES, SHOWS, strict=True)]
    head = [str(len(NAMES)), " ".join(ATTRIBUTES) + " "]
    (folder / "list_attr_celeba.txt").write_text("\n".join([*head, *lines]) + "\n")
    for file, numbers in (("identity_CelebA.txt", OWNER), ("list_eval_partition.txt", partition())):
        lines = [f"{name} {number}" for name, number in zip(NAMES, numbers, strict=True)]
        (folder / file).write_text("\n".join(lines) + "\n")
    return folder


def partition() -> list[int]:
    return [{2880: 0, 7: 0, 15: 1, 101: 2}[owner] for owner in OWNER]


def write_leaf_celeba(folder: Path, with_table=True) -> Path:
    """LEAF's layout: the official files under raw, names and labels (as LEAF computes them: real) by celebrity."""
    raw = write_celeba(folder / "raw")
    if not with_table:
        (raw / "list_attr_celeba.txt").unlink()
    users = {}
    for owner in (2880, 7, 15):
        mine = [n for n, other in enumerate(OWNER) if other == owner]
        users[str(owner)] = [NAMES[n] for n in mine], [float(SHOWS[n, ATTRIBUTES.index("Smiling")]) for n in mine]
    train = {user: (x[:-1], y[:-1]) for user, (x, y) in users.items()}
    return write_leaf(folder, train, {user: (x[-1:], y[-1:]) for user, (x, y) in users.items()})


def seen(x: torch.Tensor) -> list[int]:
    """Which picture each row is, by its colour."""
    colours = np.array(list(COLOUR.values()))
    mean = x.double().mean((2, 3)).numpy()
    distance = np.abs(mean[:, None] - colours).max(2)
    assert (distance.min(1) < 4).all()
    return distance.argmin(1).tolist()


@pytest.mark.parametrize("attribute", ["Smiling", "Bald"])
def test_the_official_folder_gives_every_picture_once_with_its_label_and_its_celebrity(tmp_path, attribute):
    made = celeba(attribute, write_celeba(tmp_path / "celeba"), size=(20, 16))
    assert (made.x.dtype, made.x.shape[1:], made.y.dtype) == (torch.uint8, (3, 20, 16), torch.int64)
    train, test = seen(made.x), seen(made.x_test)
    assert sorted(train + test) == list(range(len(NAMES)))
    column = SHOWS[:, ATTRIBUTES.index(attribute)]
    names = sorted(set(OWNER))
    for rows, y, owner in ((train, made.y, made.owner), (test, made.y_test, made.owner_test)):
        assert y.tolist() == column[rows].tolist()
        assert [names[number] for number in owner] == [OWNER[row] for row in rows]
    assert np.bincount(made.owner_test).tolist() == [1, 1, 0, 1]


def test_pictures_keep_their_channels_and_directions(tmp_path):
    folder = write_celeba(tmp_path / "celeba")
    picture = np.zeros((218, 178, 3), dtype=np.uint8)
    picture[:109, :, 0], picture[:, 89:, 2] = 255, 255
    for name in NAMES:
        Image.fromarray(picture).save(folder / "img_align_celeba" / name, quality=95)
    red, green, blue = celeba("Bald", folder, size=(8, 6)).x[0].double() / 255
    assert green.max() < 0.1
    for bright, dark in ((red[:3], red[5:]), (blue[:, 4:], blue[:, :2])):
        assert bright.min() > 0.9
        assert dark.max() < 0.1


def test_rare_celebrities_are_left_out_only_when_asked_and_their_pictures_are_not_read(tmp_path):
    folder = write_celeba(tmp_path / "celeba")
    (folder / "img_align_celeba" / NAMES[OWNER.index(101)]).unlink()
    made = celeba("Male", folder, size=(8, 8), least=4)
    assert made.owners == 2
    assert {OWNER[row] for row in seen(made.x)} == {7, 2880}


def test_unseen_celebrities_are_the_official_test_partition_shared_by_all(tmp_path):
    made = celeba("Male", write_celeba(tmp_path / "celeba"), size=(8, 8), unseen=True)
    assert {OWNER[row] for row in seen(made.x)} == {7, 2880}
    assert seen(made.x_test) == [OWNER.index(101)]
    assert (made.owners, made.owner_test) == (2, None)


@pytest.mark.parametrize("below", ["", "data"])
def test_leafs_folder_keeps_leafs_division_for_any_attribute(tmp_path, below):
    folder = tmp_path / "celeba"
    write_leaf_celeba(folder / below)
    for attribute in ("Smiling", "Young"):
        made = celeba(attribute, folder, size=(8, 8))
        rows = seen(made.x_test)
        last = [max(n for n, other in enumerate(OWNER) if other == owner) for owner in (15, 2880, 7)]
        assert rows == sorted(rows, key=[last[1], last[2], last[0]].index)
        assert sorted(rows + seen(made.x)) == [n for n, owner in enumerate(OWNER) if owner != 101]
        assert made.y_test.tolist() == SHOWS[rows, ATTRIBUTES.index(attribute)].tolist()
        assert made.owner_test.tolist() == [1, 2, 0]  # '2880', '7', '15' in the order of names


def test_leafs_own_labels_serve_where_the_table_of_attributes_is_not_there(tmp_path):
    folder = write_leaf_celeba(tmp_path / "celeba", with_table=False)
    made = celeba("Smiling", folder, size=(8, 8))
    assert made.y.tolist() == SHOWS[seen(made.x), ATTRIBUTES.index("Smiling")].tolist()
    with refused("'Smiling' only", "list_attr_celeba.txt"):
        celeba("Young", folder, size=(8, 8))


# --- one copy ------------------------------------------------------------------------


@pytest.fixture
def reads(monkeypatch) -> list[Path]:
    """The pictures that were opened."""
    opened: list[Path] = []
    genuine = Image.open
    monkeypatch.setattr(Image, "open", lambda path: opened.append(path) or genuine(path))
    return opened


def test_all_attributes_share_the_very_same_pictures_as_long_as_somebody_holds_them(tmp_path, reads):
    folder = write_celeba(tmp_path / "celeba")
    one, two = celeba("Smiling", folder, size=(8, 8)), celeba("Eyeglasses", str(folder), size=[8, 8])
    assert one.x is two.x
    assert one.x_test is two.x_test
    assert len(reads) == len(NAMES)
    assert celeba("Smiling", folder, size=(8, 9)).x is not one.x
    assert celeba("Smiling", folder, size=(8, 8), test_share=0.5).x is not one.x
    del one, two
    gc.collect()
    assert not pictures._SHARED


def test_pictures_are_read_once_and_again_only_after_one_has_changed(tmp_path, reads):
    folder = write_celeba(tmp_path / "celeba")
    first = celeba("Bald", folder, size=(8, 8))
    pictures._SHARED.clear()
    again = celeba("Bald", folder, size=(8, 8))
    assert again.x is not first.x
    assert torch.equal(again.x, first.x)
    assert len(reads) == len(NAMES)

    changed = folder / "img_align_celeba" / NAMES[seen(first.x)[0]]
    paint(changed, (0, 0, 255))
    os.utime(changed, ns=(1, 1))
    anew = celeba("Bald", folder, size=(8, 8))
    assert len(reads) == 2 * len(NAMES)
    assert anew.x[0, 2].min() > 250
    assert torch.equal(anew.x[1:], first.x[1:])
    assert len(list((tmp_path / "cache" / "celeba").iterdir())) == 1


@pytest.mark.parametrize(
    "harm",
    [lambda good: good[:-9], lambda good: good[:-9] + bytes([good[-9] ^ 1]) + good[-8:], lambda good: good + b"x"],
    ids=["cut", "flipped", "longer"],
)
def test_a_damaged_cache_file_is_made_anew(tmp_path, reads, harm):
    folder = write_celeba(tmp_path / "celeba")
    first = celeba("Bald", folder, size=(8, 8))
    pictures._SHARED.clear()
    (file,) = (tmp_path / "cache" / "celeba").iterdir()
    good = file.read_bytes()
    file.write_bytes(harm(good))
    again = celeba("Bald", folder, size=(8, 8))
    assert torch.equal(again.x, first.x)
    assert len(reads) == 2 * len(NAMES)
    assert file.read_bytes() == good


def test_without_a_place_for_the_cache_the_pictures_are_read_every_time(tmp_path, monkeypatch, reads):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MMFL_CACHE", str(tmp_path / "file"))
    made = celeba("Bald", write_celeba(tmp_path / "celeba"), size=(8, 8))
    assert sorted(seen(made.x) + seen(made.x_test)) == list(range(len(NAMES)))


# --- refusals ------------------------------------------------------------------------


def spoil(file, change, attribute="Smiling", **options):
    """A folder in which the lines of a text file went through `change`, or, with None, the file is gone."""

    def make(folder: Path):
        path = write_celeba(folder) / file
        if change is None:
            path.unlink()
        else:
            path.write_text("\n".join(change(path.read_text().splitlines())) + "\n")
        return celeba(attribute, folder, **options)

    return make


def spoil_picture(change):
    def make(folder: Path):
        change(write_celeba(folder) / "img_align_celeba" / NAMES[4])
        return celeba("Smiling", folder, size=(8, 8))

    return make


def spoil_leaf(key, value, with_table):
    """LEAF's folder with another label or name for the first picture of celebrity 2880."""

    def make(folder: Path):
        file = sorted((write_leaf_celeba(folder, with_table) / "train").glob("*.json"))[0]
        content = json.loads(file.read_text())
        content["user_data"]["2880"][key][0] = value
        file.write_text(json.dumps(content))
        return celeba("Smiling", folder, size=(8, 8))

    return make


TABLE = "list_attr_celeba.txt"


@refusals(
    (lambda folder: celeba("Smiling", folder), "celeba", "not found", "img_align_celeba", "identity_CelebA.txt"),
    (spoil(TABLE, None), "not found", TABLE),
    (spoil("identity_CelebA.txt", None), "not found", "identity_CelebA.txt"),
    (spoil(TABLE, list, attribute="Smilling"), "unknown attribute 'Smilling'", "did you mean 'Smiling'?"),
    (spoil(TABLE, lambda lines: lines[1:]), TABLE, "number of images"),
    (spoil(TABLE, lambda lines: lines[:-1]), TABLE, "11 images, but says 12"),
    (spoil(TABLE, lambda lines: [*lines[:6], lines[6][:-3], *lines[7:]]), TABLE, "line 7", "4 values for 5"),
    (spoil(TABLE, lambda lines: [*lines[:2], NAMES[0] + " 1 1 1 0 1", *lines[3:]]), TABLE, "line 3", "Smiling is '0'"),
    (spoil("identity_CelebA.txt", lambda lines: lines[1:]), "identity_CelebA.txt", "no line", "000001.jpg"),
    (spoil("identity_CelebA.txt", lambda lines: ["x", *lines]), "identity_CelebA.txt", "line 1 is 'x'"),
    (spoil_picture(lambda path: path.unlink()), "000005.jpg", "cannot be read"),
    (spoil_picture(lambda path: path.write_bytes(path.read_bytes()[:700])), "000005.jpg", "cannot be read"),
    (spoil_leaf("y", 2, with_table=False), "user '2880'", "not 0 or 1"),
    (spoil_leaf("x", "zed.jpg", with_table=True), "user '2880'", TABLE),
    (spoil_leaf("x", "zed.jpg", with_table=False), "zed.jpg", "cannot be read"),
    (spoil(TABLE, list, size=(84,)), "size is (84,)", "(height, width)"),
    (spoil(TABLE, list, least=0), "least is 0", "at least 1"),
    (spoil(TABLE, list, least=99), "no examples"),
)
def test_a_damaged_folder_is_refused_by_file_and_line_or_picture(tmp_path, make, words):
    with refused(*words):
        make(tmp_path / "celeba")
