"""Data sets of other libraries: what a row becomes, who owns it, and what is refused."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import IterableDataset, TensorDataset

from conftest import refusals, refused
from mmfl.data.adapters import from_huggingface, from_torch_dataset


class Items(TorchDataset):
    """A map-style data set of a list of items, which counts how often each is read."""

    def __init__(self, items):
        self.items = list(items)
        self.reads = [0] * len(self.items)

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, row: int):
        self.reads[row] += 1
        return self.items[row]


class Columns:
    """A data set with columns, as much of Hugging Face's as the adapter asks for."""

    def __init__(self, **columns):
        self.columns = columns
        self.column_names = list(columns)

    def __getitem__(self, column: str):
        return self.columns[column]


class Stream(IterableDataset):
    column_names = ("image", "label")

    def __iter__(self) -> Iterator[tuple[int, int]]:
        yield 0, 0


def in_both_ways(value):
    """Data sets of four equal rows, from PyTorch and from Hugging Face."""
    return from_torch_dataset(Items([(value, 0)] * 4)), from_huggingface(Columns(image=[value] * 4, label=[0] * 4))


X = torch.arange(30.0).reshape(10, 3)
Y = [n % 2 for n in range(10)]

# --- PyTorch -------------------------------------------------------------------------


def test_a_torch_data_set_is_read_once_row_by_row_and_split_by_owner():
    source = Items(zip(X, Y, strict=True))
    made = from_torch_dataset(source, owner=["ann", "bob"] * 5, name="mine")
    assert source.reads == [1] * 10
    assert (made.name, made.owners) == ("mine", 2)
    assert (made.x.dtype, made.y.dtype) == (torch.float32, torch.int64)
    rows = torch.cat([made.x, made.x_test])
    assert torch.equal(rows[rows[:, 0].argsort()], X)
    assert made.y.tolist() == made.owner.tolist() == [int(row[0]) // 3 % 2 for row in made.x]
    assert made.owner_test.tolist() == [0, 1]


def test_a_test_set_is_shared_or_by_owner_as_its_owners_are_given():
    source, test = TensorDataset(X, torch.tensor(Y)), TensorDataset(X[:2] + 100, torch.tensor([1, 0]))
    made = from_torch_dataset(source, test)
    assert torch.equal(made.x, X)
    assert torch.equal(made.x_test, X[:2] + 100)
    assert (made.owner, made.owner_test) == (None, None)
    made = from_torch_dataset(source, test, ["a", "b"] * 5, ["b", "a"])
    assert made.owner_test.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (torch.ones(2, dtype=torch.float64), torch.ones(2)),
        (np.ones((1, 2), dtype=np.uint8), torch.ones(1, 2, dtype=torch.uint8)),
        ([1, 2], torch.tensor([1, 2])),
        ((1, 2.5), torch.tensor([1, 2.5])),
        (3, torch.tensor(3)),
        (np.float64(0.5), torch.tensor(0.5)),
        (torch.ones(2, requires_grad=True), torch.ones(2)),
    ],
)
def test_a_row_may_be_anything_that_is_numbers(value, expected):
    for made in in_both_ways(value):
        assert made.x.dtype == expected.dtype
        assert torch.equal(made.x[0], expected)
        assert not made.x.requires_grad


@pytest.mark.parametrize(
    ("mode", "value", "expected"),
    [
        ("RGB", (9, 8, 7), [9, 8, 7]),
        ("L", 5, [5]),
        ("1", 1, [255]),
        ("RGBA", (9, 8, 7, 200), [9, 8, 7]),
        ("P", 0, [0, 0, 0]),
    ],
)
def test_a_pillow_image_becomes_bytes_with_the_channels_first(mode, value, expected):
    image = Image.new(mode, (4, 3), value)
    for made in in_both_ways(image):
        assert made.x.dtype == torch.uint8
        assert made.x.shape[1:] == (len(expected), 3, 4)
        assert made.x[0, :, 1, 2].tolist() == expected


def test_labels_may_be_real_numbers_from_any_row_on():
    made = from_torch_dataset(Items([(0, 1), (0, 2.5), (0, 3)]), test=Items([(0, 1.0)]))
    assert made.y.dtype == torch.float32
    assert made.y.tolist() == [1, 2.5, 3]


# --- Hugging Face --------------------------------------------------------------------


def columns(rows=10, start=0, **more) -> Columns:
    return Columns(
        pixels=[[float(n), 0.0] for n in range(start, start + rows)], digit=[n % 3 for n in range(rows)], **more
    )


def test_columns_become_inputs_targets_and_owners():
    made = from_huggingface(columns(writer=["eve", "ann"] * 5), x="pixels", y="digit", owner="writer", test_share=0.4)
    assert (made.owners, len(made.x), len(made.x_test)) == (2, 6, 4)
    assert made.owner.tolist() == [1 - int(row[0]) % 2 for row in made.x]
    assert made.y.tolist() == [int(row[0]) % 3 for row in made.x]
    assert sorted(made.owner_test.tolist()) == [0, 0, 1, 1]


def test_the_parts_of_a_dictionary_of_data_sets_are_found_or_named():
    parts = {"train": columns(), "test": columns(4, 50), "validation": columns(3, 80)}
    named = {"x": "pixels", "y": "digit"}
    assert from_huggingface(parts, **named).x_test[:, 0].tolist() == [50, 51, 52, 53]
    assert from_huggingface(parts, test="validation", **named).x_test[:, 0].tolist() == [80, 81, 82]
    assert from_huggingface(parts, test=columns(1, 99), **named).x_test[:, 0].tolist() == [99]
    assert from_huggingface(parts["train"], test=columns(1, 99), **named).x_test[:, 0].tolist() == [99]
    assert len(from_huggingface({"train": columns()}, **named).x_test) == 2


def test_test_rows_have_owners_where_they_have_that_column():
    train, named = columns(writer=["eve", "ann"] * 5), {"x": "pixels", "y": "digit", "owner": "writer"}
    made = from_huggingface(train, test=columns(2, writer=["eve", "ann"]), **named)
    assert made.owner_test.tolist() == [1, 0]
    made = from_huggingface(train, test=columns(2), **named)
    assert (made.owners, made.owner_test) == (2, None)


# --- refusals ------------------------------------------------------------------------

IMAGES = {"image": [[1.0], [2.0]], "label": [0, 1]}


class Torn(Items):
    """A file that vanishes while its rows are read."""

    def __getitem__(self, row):
        if row == 3:
            raise OSError("no such file")
        return super().__getitem__(row)


@refusals(
    (lambda: from_torch_dataset(Torn([(0, 0)] * 5), name="mine"), "data 'mine': row 3 cannot be read: no such file"),
    (lambda: from_torch_dataset(Torn([(0, 0)] * 5), lazy=True), "data 'data': row 3 cannot be read: no such file"),
    (lambda: from_torch_dataset(Items([]), name="mine"), "mine", "input", "no rows"),
    (lambda: from_torch_dataset(Items([(1, 2), 3])), "row 1 is a int", "a pair"),
    (lambda: from_torch_dataset(Stream()), "Stream has no length", "map-style"),
    (lambda: from_torch_dataset(Items([(X[0], 0), (X[0, :2], 0)])), "input at row 1", "(2,)", "(3,)"),
    (lambda: from_torch_dataset(Items([("cat", 0)])), "input at row 0 is 'cat'", "numbers or an image"),
    (lambda: from_torch_dataset(Items([(0, 0)] * 4), Items([])), "(test)", "no rows"),
    (lambda: from_torch_dataset(Items([(0, 0)] * 4), owner=[0, 1]), "4 examples", "2 owners"),
    (lambda: from_torch_dataset(Items([(0, 0)] * 4), owner_test=[0]), "owner_test", "no test set"),
    (lambda: from_huggingface(Columns(**IMAGES), x="imag"), "column 'imag'", "did you mean 'image'?"),
    (lambda: from_huggingface(Columns(**IMAGES), owner="who"), "column 'who'", "image, label"),
    (lambda: from_huggingface(Columns(**IMAGES), test=Columns(image=[[1.0]])), "(test)", "column 'label'"),
    (lambda: from_huggingface(Columns(image=[[1], [1, 2]], label=[0, 1])), "column 'image' at row 1", "(2,)", "(1,)"),
    (
        lambda: from_huggingface(Columns(image=[{"bytes": b"0" * 99}], label=[0])),
        "column 'image' at row 0, 'bytes' is a bytes",
    ),
    (lambda: from_huggingface(Columns(image=[[1.0]] * 2, label=[0])), "2 inputs", "1 targets"),
    (lambda: from_huggingface({"validation": Columns(**IMAGES)}), "no part 'train'", "validation"),
    (lambda: from_huggingface({"train": Columns(**IMAGES)}, test="tset"), "no part 'tset'", "train"),
    (lambda: from_huggingface(Columns(**IMAGES), test="test"), "test is 'test'", "no parts"),
    (lambda: from_huggingface(X), "Tensor has no column_names"),
    (lambda: from_huggingface(Stream()), "Stream", "a length"),
)
def test_what_cannot_become_a_data_set_is_refused_by_row_or_column(make, words):
    with refused(*words):
        make()
