"""Data that is read when it is needed: the same numbers as in memory, never much of it at once, and what goes wrong."""

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import mmfl
from conftest import refusals, refused
from mmfl import Federation, Task, partition
from mmfl.data import from_arrays, from_huggingface, from_torch_dataset, image_folder, lazy
from mmfl.data.lazy import LazyArray, is_lazy, join, read
from mmfl.engine import device_data

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(120, 6)), np.arange(120) % 3


def mapped(path, values=X):
    """The values in a file, memory-mapped."""
    np.save(path, values)
    return np.load(path, mmap_mode="r")


class Pairs:
    """Items as torch gives them; notes what is read, and can break at the n-th read of training."""

    def __init__(self, x=X, y=Y, breaks_at=None):
        self.x, self.y, self.reads, self.breaks_at = x, y, [], breaks_at

    def __len__(self):
        return len(self.x)

    def __getitem__(self, row):
        self.reads.append(row)
        if self.breaks_at is not None and len(self.reads) >= self.breaks_at:
            raise FileNotFoundError(2, "No such file or directory", f"picture-{row}.png")
        return {"x": self.x[row]}, int(self.y[row])


class Named(nn.Linear):
    def __init__(self):
        super().__init__(6, 3)

    def forward(self, x):
        return super().forward(x)


def train(data, mode="vectorised", method="mmfl-lvr", **options):
    task = Task("t", Named, data, batch_size=4, epochs=2)
    federation = Federation([task], 6, partition=partition.labels(0.7))
    run = mmfl.train(federation, method, rounds=3, rate=0.5, engine=mode, checkpoint_every=1, **options)
    return torch.cat([weights.cpu() for weights in run.weights]), run.loss


@pytest.mark.parametrize("mode", ["vectorised", "sequential"])
def test_training_from_a_file_gives_the_same_bits_as_from_memory(mode, tmp_path):
    stored = from_arrays(mapped(tmp_path / "x.npy"), mapped(tmp_path / "y.npy", Y))
    assert isinstance(stored.x, LazyArray)
    assert not is_lazy(stored.y), "labels are in memory"
    (weights, losses), (expected, expected_losses) = train(stored, mode), train(from_arrays(X, Y), mode)
    assert torch.equal(weights, expected)
    assert losses.equals(expected_losses)


def test_tasks_in_a_file_and_in_memory_train_together(tmp_path):
    def run(second):
        tasks = [Task(n, Named, data, batch_size=4) for n, data in (("a", from_arrays(X, Y)), ("b", second))]
        return mmfl.train(Federation(tasks, 6, capacity=2), "full", rounds=2, engine="vectorised").weights

    stored = run(from_arrays(mapped(tmp_path / "x.npy", -X), Y))
    assert all(torch.equal(*pair) for pair in zip(stored, run(from_arrays(-X, Y)), strict=True))


def test_no_more_is_read_than_the_steps_under_way_need(monkeypatch):
    most = 0
    plain = device_data.read

    def counting(structure, rows):
        nonlocal most
        most = max(most, len(rows))
        return plain(structure, rows)

    monkeypatch.setattr(device_data, "read", counting)
    source = Pairs()
    train(from_torch_dataset(source, lazy=True), "sequential", method="random")
    assert len(source.reads) > 300
    assert most == 24  # the test examples, in one forward pass; a batch has 4


def test_a_torch_data_set_keeps_its_structure_and_gives_the_same_bits():
    weights, _ = train(from_torch_dataset(Pairs(), lazy=True))
    assert torch.equal(weights, train(from_torch_dataset(Pairs()))[0])


class Columns:
    """A data set with columns, as much of Hugging Face's as the adapter asks for."""

    def __init__(self, **columns):
        self.columns, self.column_names = columns, list(columns)

    def __getitem__(self, which):
        return self.columns[which] if isinstance(which, str) else {k: v[which] for k, v in self.columns.items()}

    def __len__(self):
        return len(self.columns[self.column_names[0]])

    def select_columns(self, names):
        return Columns(**{name: self.columns[name] for name in names})


def test_columns_become_a_dictionary_and_are_read_when_needed():
    table = Columns(ids=X.tolist(), mask=Y.tolist(), label=Y.tolist())
    one, other = (from_huggingface(table, x=["ids", "mask"], lazy=each) for each in (True, False))
    assert is_lazy(one.x)
    assert list(one.x) == ["ids", "mask"]
    assert all(torch.equal(one.x_test[name][:], other.x_test[name]) for name in one.x)


@pytest.fixture
def pictures(tmp_path):
    """Six red and six blue pictures, each with a line of its own."""
    for name, colour in (("red", (255, 0, 0)), ("blue", (0, 0, 255))):
        for n in range(6):
            image = Image.new("RGB", (8, 6), colour)
            image.putpixel((n, n % 6), (0, 255, 0))
            (tmp_path / name).mkdir(exist_ok=True)
            image.save(tmp_path / name / f"{n}.png")
    return tmp_path


def test_a_folder_of_images_is_decoded_when_needed(pictures):
    stored, memory = (image_folder(pictures, lazy=each) for each in (True, False))
    assert is_lazy(stored.x)
    assert stored.x.dtype == torch.uint8
    assert stored.x.shape == memory.x.shape == (10, 3, 6, 8)
    assert torch.equal(stored.x[:], memory.x)
    assert memory.y.tolist() == (memory.x[:, 0, 5, 7] == 255).long().tolist()  # blue is 0, red is 1
    assert image_folder(pictures, size=(3, 4), grey=True).x.shape[1:] == (1, 3, 4)


def test_a_folder_may_have_its_own_test_images(pictures, tmp_path_factory):
    root = tmp_path_factory.mktemp("both")
    for part in ("train", "test"):
        (root / part).symlink_to(pictures)
    made = image_folder(root)
    assert len(made.x) == len(made.x_test) == 12


def test_joined_arrays_are_read_part_by_part():
    parts = [{"a": torch.arange(4.0), "b": lazy(np.arange(4))}, {"a": lazy(np.arange(4.0, 9)), "b": torch.arange(4, 9)}]
    rows = np.array([8, 0, 3, 3, 5])
    assert {k: v.tolist() for k, v in read(join(*parts), rows).items()} == {"a": rows.tolist(), "b": rows.tolist()}


def test_parts_of_a_mapped_array_are_read_from_their_place(tmp_path):
    whole = mapped(tmp_path / "x.npy", np.arange(60.0).reshape(20, 3).astype(">f8"))
    for part in (whole, whole[5:], whole[5:, :], whole[::2], whole[:, 1:]):
        array = lazy(part)
        assert array.dtype == torch.float32
        np.testing.assert_array_equal(array[:], np.asarray(part))


def test_a_file_that_vanishes_or_shrinks_is_named(tmp_path):
    data = from_arrays(mapped(tmp_path / "x.npy"), Y, name="mine")
    (tmp_path / "x.npy").write_bytes((tmp_path / "x.npy").read_bytes()[:-400])
    with refused("data 'mine'", "cannot be read", "shorter than it was"):
        data.x[:]
    (tmp_path / "x.npy").unlink()
    with refused("data 'mine'", "cannot be read", "No such file", "x.npy"):
        train(data)


def test_nothing_is_lost_when_reading_fails(tmp_path):
    expected, _ = train(from_torch_dataset(whole := Pairs(), lazy=True), "sequential")
    broken, folder = Pairs(breaks_at=len(whole.reads) - 40), {"directory": tmp_path / "run"}
    with refused("data 'data', input at row", "cannot be read", "picture-", ".png"):
        train(from_torch_dataset(broken, lazy=True), "sequential", **folder)
    assert len(mmfl.load(tmp_path / "run").runs[0].loss) == 2, "the rounds before it are there"
    resumed, _ = train(from_torch_dataset(Pairs(), lazy=True), "sequential", **folder, resume=True)
    assert torch.equal(resumed, expected)


def uneven(row, value):
    """Items of which one is unlike the others."""
    source = Pairs(list(X), Y)
    source.x[row] = value
    return from_torch_dataset(source, lazy=True).x["x"]


def spoiled():
    x = X.copy()
    x[70, 2] = np.nan
    return x


class Jittering(Pairs):
    def __getitem__(self, row):
        return super().__getitem__(row)[0]["x"] + np.random.default_rng().normal(), 0


@refusals(
    (lambda: uneven(7, X[0, :4])[:], "input at row 7", "{x: (4,)}", "row 0 has {x: (6,)}"),
    (
        lambda: from_torch_dataset(Pairs([1, 2, 2.5], [0] * 3), test=Pairs([1], [0]), lazy=True).x["x"][:],
        "row 2",
        "int64",
    ),
    (lambda: from_torch_dataset(Jittering(), lazy=True), "row 0 differs", "Task(augment=...)"),
    (lambda: from_torch_dataset(Pairs([], []), lazy=True), "no rows"),
    (lambda: lazy(from_arrays(spoiled()[:60], Y[:60]).x.numpy()) and lazy(spoiled())[:], "row 70", "finite"),
    (lambda: lazy([1, 2]), "a list has no shape"),
    (lambda: image_folder("no-such-folder"), "no-such-folder", "cannot be read"),
    (lambda: image_folder(".", size=0), "size is 0", "at least 1"),
)
def test_what_cannot_be_read_is_named_by_row(make, words):
    with refused(*words):
        make()


def test_a_folder_without_images_is_refused(pictures, tmp_path_factory):
    empty = tmp_path_factory.mktemp("empty")
    with refused("no folders", "one for each class"):
        image_folder(empty)
    (empty / "cat").mkdir()
    with refused("no images", ".png"):
        image_folder(empty)
    (pictures / "red" / "3.png").write_text("not a picture")
    with refused("image at row", "cannot be read", "3.png"):
        image_folder(pictures, lazy=False)


def test_a_picture_that_is_cut_short_or_of_another_size_is_named_by_its_file(pictures):
    path = pictures / "red" / "3.png"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with refused("image at row", "3.png')", "cannot be read"):
        image_folder(pictures, lazy=False)
    Image.new("RGB", (9, 9)).save(path)
    with refused("image at row", "3.png')", "has shape (3, 9, 9)"):
        image_folder(pictures, lazy=False)
