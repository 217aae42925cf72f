"""Sources with owners of their own: LEAF's JSON, handwriting by writer, lines by role, generated faces."""

import gzip
import json
import os
from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from conftest import refusals, refused
from mmfl import Task, models
from mmfl.data.faces import ATTRIBUTES, faces
from mmfl.data.femnist import femnist
from mmfl.data.shakespeare import CHARACTERS, decode, encode, shakespeare
from mmfl.federation import objectives

real_data = pytest.mark.skipif("MMFL_TEST_DATA" not in os.environ, reason="MMFL_TEST_DATA names no folder of real data")


def write_leaf(folder: Path, train, test, per_file=2) -> Path:
    """LEAF's folders, with `per_file` users in each file; users as {name: (x, y)}."""
    for part, users in (("train", train), ("test", test)):
        (folder / part).mkdir(parents=True, exist_ok=True)
        names = list(users)
        for start in range(0, len(names), per_file):
            own = names[start : start + per_file]
            content = {
                "users": own,
                "num_samples": [len(users[name][1]) for name in own],
                "user_data": {name: {"x": list(users[name][0]), "y": list(users[name][1])} for name in own},
            }
            file = folder / part / f"all_data_{start}_niid_0_keep_0_{part}_9.json"
            file.write_text(json.dumps(content))
    return folder


def rows_of(made, owner: int, test=False):
    mine = torch.from_numpy((made.owner_test if test else made.owner) == owner)
    return (made.x_test[mine], made.y_test[mine]) if test else (made.x[mine], made.y[mine])


# --- handwriting ---------------------------------------------------------------------

WRITERS = {"f0000_14": 3, "f0001_41": 5, "f0002_08": 2, "f0003_42": 4, "f0004_25": 2}


def handwriting(sizes, seed) -> dict[str, tuple[np.ndarray, list[int]]]:
    rng = np.random.default_rng(seed)
    return {
        user: (rng.integers(0, 256, (n, 784), dtype=np.uint8), rng.integers(0, 62, n).tolist())
        for user, n in sizes.items()
    }


def leaf_femnist(folder: Path, train, test) -> Path:
    scaled = ({user: ((x / 255).round(4).tolist(), y) for user, (x, y) in part.items()} for part in (train, test))
    return write_leaf(folder, *scaled)


def stored_femnist(folder: Path, train, test, heldout) -> Path:
    writers = sorted(train) + sorted(heldout)
    arrays: dict[str, np.ndarray] = {"writers": np.array(writers)}
    for part, users in (("train", train), ("test", test), ("heldout", heldout)):
        arrays[f"x_{part}"] = np.concatenate([x for x, _ in users.values()]).reshape(-1, 28, 28)
        arrays[f"y_{part}"] = np.concatenate([y for _, y in users.values()]).astype(np.uint8)
        owner = [writers.index(user) for user, (_, y) in users.items() for _ in y]
        arrays[f"writer_{part}"] = np.array(owner, dtype=np.int16)
    np.savez_compressed(folder / "femnist62.npz", **arrays)
    return folder


@pytest.mark.parametrize("layout", ["leaf", "leaf's data folder", "stored"])
def test_femnist_is_every_writers_pixels_as_bytes_with_a_test_set_of_its_own(tmp_path, layout):
    train, test = handwriting(WRITERS, 0), handwriting(dict.fromkeys(WRITERS, 2), 1)
    if layout == "stored":
        stored_femnist(tmp_path, train, test, handwriting({"f0009_00": 1}, 2))
    else:
        leaf_femnist(tmp_path / "data" if "data" in layout else tmp_path, train, test)
    made = femnist(tmp_path)
    assert (made.x.dtype, made.y.dtype, made.x.shape[1:]) == (torch.uint8, torch.int64, (1, 28, 28))
    assert made.owners == len(WRITERS)
    for number, user in enumerate(sorted(WRITERS)):
        for part, is_test in ((train, False), (test, True)):
            x, y = rows_of(made, number, is_test)
            np.testing.assert_array_equal(x.flatten(1), part[user][0])
            assert y.tolist() == part[user][1]


def test_writers_with_fewer_images_than_asked_for_are_left_out_of_training_and_test(tmp_path):
    leaf_femnist(tmp_path, handwriting(WRITERS, 0), handwriting(dict.fromkeys(WRITERS, 1), 1))
    made = femnist(tmp_path, least=5)
    assert np.bincount(made.owner).tolist() == [5, 4]
    assert np.bincount(made.owner_test).tolist() == [1, 1]
    with refused("no owner", "7", "6"):
        femnist(tmp_path, least=7)


def test_writers_unseen_in_training_are_one_test_set_for_all(tmp_path):
    train, strangers = handwriting(WRITERS, 0), handwriting({"f0100_00": 3, "f0101_00": 1}, 1)
    by_user = femnist(leaf_femnist(tmp_path / "leaf", train, strangers))
    (tmp_path / "stored").mkdir()
    stored = femnist(stored_femnist(tmp_path / "stored", train, train, strangers), unseen=True)
    for made in (by_user, stored):
        assert (made.owners, made.owner_test, len(made.x_test)) == (len(WRITERS), None, 4)
    with refused("test", "train", "-t user"):
        femnist(leaf_femnist(tmp_path / "sample", train, train), unseen=True)


def spoil_leaf(spoil):
    """A femnist folder whose first training file went through `spoil`, a function of its content."""

    def make(folder: Path):
        leaf_femnist(folder, handwriting({"ann": 2, "bob": 1}, 0), handwriting({"ann": 1, "bob": 1}, 1))
        file = next((folder / "train").glob("*.json"))
        content = json.loads(file.read_text())
        spoiled = spoil(content)
        file.write_text(spoiled if isinstance(spoiled, str) else json.dumps(content))
        return femnist(folder)

    return make


def spoil_npz(spoil):
    def make(folder: Path):
        some = handwriting({"ann": 2}, 0)
        path = stored_femnist(folder, some, some, handwriting({"eve": 1}, 1)) / "femnist62.npz"
        with np.load(path) as file:
            arrays = dict(file)
        spoil(arrays)
        np.savez(path, **arrays)
        return femnist(folder)

    return make


def of_ann(content) -> dict:
    return content["user_data"]["ann"]


@refusals(
    (femnist, "femnist", "not found", "train and test", "femnist62.npz"),
    (spoil_leaf(lambda c: json.dumps(c)[:-40]), "train_9.json", "not LEAF's JSON"),
    (spoil_leaf(lambda c: c.pop("num_samples")), "train_9.json", "has no 'num_samples'"),
    (spoil_leaf(lambda c: c["user_data"].pop("bob")), "train_9.json", "has no 'bob'"),
    (spoil_leaf(lambda c: c["num_samples"].pop()), "train_9.json", "'num_samples'", "2 users"),
    (spoil_leaf(lambda c: c["num_samples"].__setitem__(0, 3)), "user 'ann'", "'num_samples' is 3"),
    (spoil_leaf(lambda c: of_ann(c)["y"].pop()), "user 'ann'", "x has 2, y has 1"),
    (spoil_leaf(lambda c: of_ann(c)["x"][1].pop()), "user 'ann'", "784"),
    (spoil_leaf(lambda c: of_ann(c)["x"][1].__setitem__(3, 255)), "user 'ann'", "[0, 1]"),
    (spoil_leaf(lambda c: of_ann(c)["y"].__setitem__(0, 62)), "user 'ann'", "0 to 61"),
    (spoil_npz(lambda a: a.pop("writer_train")), "femnist62.npz", "writer_train"),
    (spoil_npz(lambda a: a.update(x_test=a["x_test"][:, :27])), "femnist62.npz", "x_test", "28"),
    (spoil_npz(lambda a: a.update(y_train=a["y_train"] + 62)), "femnist62.npz", "0 to 61"),
    (spoil_npz(lambda a: a["writer_train"].__setitem__(1, -1)), "writer_train is -1 at row 1", "writers 0 to"),
    (spoil_npz(lambda a: a.update(writer_train=a["writer_train"] * np.nan)), "writer_train is nan at row 0"),
    (spoil_leaf(lambda c: c.update(users=["ann", "ann"], num_samples=[2, 2])), "user 'ann' again"),
    (lambda folder: femnist(spoil_npz(dict)(folder) and folder, least=0), "least is 0", "at least 1"),
)
def test_a_femnist_folder_that_is_damaged_is_refused_by_file_and_writer(tmp_path, make, words):
    with refused(*words):
        make(tmp_path)


# --- lines ---------------------------------------------------------------------------


def random_text(length: int, seed: int) -> str:
    """Random enough that a piece of it is found in one place only."""
    return "".join(np.random.default_rng(seed).choice(list(CHARACTERS), length))


def write_roles(folder: Path, texts: dict[str, str]) -> Path:
    with gzip.open(folder / "shakespeare.jsonl.gz", "wt", encoding="utf-8") as out:
        for user, text in texts.items():
            play, _, role = user.partition("_")
            out.write(json.dumps({"user": user, "play": play, "role": role, "text": text}) + "\n")
    return folder


def test_the_vocabulary_is_leafs_80_characters_and_all_else_reads_as_a_space():
    assert len(set(CHARACTERS)) == len(CHARACTERS) == 80
    assert decode(encode(CHARACTERS)) == CHARACTERS
    assert encode(CHARACTERS).tolist() == list(range(80))
    assert decode(encode("{é@\x7f😀\ud800}")) == " " * 6 + "}"
    assert decode(encode("")) == ""


@given(
    length=st.integers(0, 400),
    window=st.integers(8, 40),
    stride=st.none() | st.integers(1, 50),
    share=st.floats(0.01, 0.99),
)
@example(length=2 * 21, window=20, stride=None, share=0.5)
@example(length=2 * 21 - 1, window=20, stride=None, share=0.5)
def test_windows_are_pieces_of_the_text_and_those_of_the_test_share_nothing_with_training(
    tmp_path_factory, length, window, stride, share
):
    texts = {"HAMLET_GHOST": random_text(200, 1), "LEAR_FOOL": random_text(length, 2)}
    folder = write_roles(tmp_path_factory.mktemp("roles"), texts)
    made = shakespeare(folder, window=window, stride=stride, test_share=share)
    assert (made.x.dtype, made.y.dtype) == (torch.int32, torch.int64)
    assert made.owners == 1 + (length > window)
    step = stride or window
    for number, text in list(enumerate(texts.values()))[: made.owners]:
        starts: dict[bool, list[int]] = {}
        for test in (False, True):
            x, y = rows_of(made, number, test)
            starts[test] = [text.index(decode(row)) for row in x]
            for row, start in enumerate(starts[test]):
                assert start == starts[test][0] + row * step
                assert decode(y[row]) == text[start + 1 : start + 1 + window]
        end, cut = starts[False][-1] + window + 1, len(text)
        assert starts[False][0] == 0
        assert bool(starts[True]) == (len(text) >= 2 * (window + 1))
        if starts[True]:
            cut = starts[True][0]
            assert len(text) - cut == max(window + 1, min(round(share * len(text)), len(text) - window - 1))
        assert end <= cut < end + step  # no character in common, and no room for another window


def test_a_cap_bounds_every_roles_windows_and_small_roles_are_dropped_only_when_asked(tmp_path):
    folder = write_roles(tmp_path, {"A": random_text(2000, 1), "B": random_text(400, 2), "C": random_text(30, 3)})
    made = shakespeare(folder, window=20)
    assert np.bincount(made.owner).tolist() == [79, 15, 1]
    assert np.bincount(made.owner_test).tolist() == [19, 3]
    made = shakespeare(folder, window=20, most=12)
    assert np.bincount(made.owner).tolist() == [12, 12, 1]
    assert np.bincount(made.owner_test).tolist() == [12, 3]
    made = shakespeare(folder, window=20, least=2)
    assert np.bincount(made.owner).tolist() == [79, 15]


def leaf_shakespeare(folder: Path, texts: dict[str, tuple[str, str]], window=80) -> Path:
    """LEAF's rows: windows that slide by one character, and the character after each."""
    slide = {
        part: {
            user: ([t[i : i + window] for i in range(len(t) - window)], list(t[window:]))
            for user, t in ((user, pair[part]) for user, pair in texts.items())
        }
        for part in (0, 1)
    }
    return write_leaf(folder, slide[0], slide[1])


def test_leafs_rows_become_windows_with_a_target_at_every_place(tmp_path):
    texts = {"KING": (random_text(300, 0), random_text(170, 1)), "FOOL": (random_text(100, 2), random_text(81, 3))}
    made = shakespeare(leaf_shakespeare(tmp_path, texts))
    for number, user in enumerate(sorted(texts)):
        for part, test in ((0, False), (1, True)):
            text = texts[user][part]
            x, y = rows_of(made, number, test)
            assert [decode(row) for row in x] == [text[i : i + 80] for i in range(0, len(text) - 80, 80)]
            assert [decode(row) for row in y] == [text[i + 1 : i + 81] for i in range(0, len(text) - 80, 80)]
    narrow = shakespeare(tmp_path, window=30, stride=7, most=5)
    x, y = rows_of(narrow, 1)
    assert [decode(row) for row in x] == [texts["KING"][0][i + 50 : i + 80] for i in range(0, 35, 7)]
    assert decode(y[0]) == texts["KING"][0][51:81]
    with refused("user 'KING'", "80 characters", "expected 81"):
        shakespeare(tmp_path, window=81)


def test_windows_fit_the_character_network_and_the_loss_of_next_tokens(tmp_path):
    made = shakespeare(write_roles(tmp_path, {"A": CHARACTERS * 20}), window=20)
    model = partial(models.CharacterLSTM, embedding=4, hidden=8, layers=1)
    Task("lines", model, made, loss=objectives.next_token).check()


def spoil_roles(spoil):
    """A folder whose file of roles went through `spoil`, a function of its lines or, at last, of its bytes."""

    def make(folder: Path):
        path = write_roles(folder, {"A": "x" * 90, "B": "y" * 90}) / "shakespeare.jsonl.gz"
        lines = gzip.decompress(path.read_bytes()).decode().splitlines()
        spoiled = spoil(lines)
        if isinstance(spoiled, slice):
            path.write_bytes(path.read_bytes()[spoiled])
        else:
            path.write_bytes(gzip.compress("\n".join(spoiled).encode()))
        return shakespeare(folder)

    return make


def spoil_rows(x, y):
    return lambda folder: shakespeare(write_leaf(folder, {"KING": (x, y)}, {"KING": (["a" * 80], ["b"])}))


@refusals(
    (shakespeare, "shakespeare", "not found", "shakespeare.jsonl.gz", "train and test"),
    (spoil_roles(lambda lines: slice(0, -20)), "shakespeare.jsonl.gz", "damaged"),
    (spoil_roles(lambda lines: [lines[0], lines[1][:-5]]), "shakespeare.jsonl.gz", "line 2"),
    (spoil_roles(lambda lines: [lines[0], '{"user": "B", "text": 3}']), "line 2", "strings"),
    (spoil_roles(lambda lines: [*lines, lines[0]]), "line 3", "role 'A' again"),
    (spoil_roles(lambda lines: ['{"user": "A", "text": "brief"}']), "no owner has 1 examples"),
    (spoil_rows(["a" * 80], ["bc"]), "user 'KING'", "single characters"),
    (spoil_rows(["a" * 80, "a" * 79], ["b", "b"]), "user 'KING'", "79 characters", "expected 80"),
    (lambda folder: shakespeare(folder, window=0), "window is 0", "at least 1"),
    (lambda folder: shakespeare(folder, stride=0), "stride is 0", "at least 1"),
    (lambda folder: shakespeare(folder, most=0), "most is 0", "at least 1"),
    (lambda folder: shakespeare(write_roles(folder, {"A": "x" * 99}), least=0), "least is 0", "at least 1"),
    (lambda folder: shakespeare(folder, test_share=1.0), "test_share is 1.0", "between 0 and 1"),
)
def test_a_folder_of_lines_that_is_damaged_is_refused_by_file_and_line(tmp_path, make, words):
    with refused(*words):
        make(tmp_path)


# --- generated faces -----------------------------------------------------------------


def test_generated_faces_are_bytes_by_person_and_all_attributes_share_them():
    one, two = faces("Smiling", people=5, images=10, side=16), faces(1, people=5, images=10, side=16)
    assert one.x is two.x
    assert one.x_test is two.x_test
    assert (one.x.dtype, one.x.shape, one.x_test.shape) == (torch.uint8, (40, 3, 16, 16), (10, 3, 16, 16))
    assert (np.bincount(one.owner).tolist(), np.bincount(one.owner_test).tolist()) == ([8] * 5, [2] * 5)
    assert one.y.dtype == torch.int64
    assert (one.name, two.name) == ("generated faces, Smiling", "generated faces, Eyeglasses")
    assert one.y.tolist() != two.y.tolist()


def test_generated_faces_are_a_function_of_the_seed():
    shape = {"people": 3, "images": 4, "side": 12}
    first = faces(**shape, seed=1)
    others = [faces(**shape, seed=seed) for seed in (2, 3, 4)]
    again = faces(**shape, seed=1)
    assert again.x is not first.x
    assert torch.equal(again.x, first.x)
    assert torch.equal(again.y, first.y)
    assert all(not torch.equal(other.x, first.x) for other in others)


def test_every_attribute_of_a_generated_face_can_be_learned_but_not_read_off_and_none_tells_another():
    shape = {"people": 80, "images": 25, "side": 20}
    every = [faces(name, **shape) for name in ATTRIBUTES]
    x, x_test = (part.flatten(1).double().numpy() / 255 - 0.5 for part in (every[0].x, every[0].x_test))
    y, y_test = (np.stack([getattr(made, part).numpy() for made in every], 1) for part in ("y", "y_test"))
    weights = np.linalg.solve(x.T @ x + 30 * np.eye(x.shape[1]), x.T @ (2 * y - 1))
    right = ((x_test @ weights > 0) == y_test).mean(0)
    assert (right > 0.62).all(), dict(zip(ATTRIBUTES, right, strict=True))
    assert (right < 0.995).all(), dict(zip(ATTRIBUTES, right, strict=True))
    assert np.abs(np.corrcoef(y.T) - np.eye(len(ATTRIBUTES))).max() < 0.15
    rate = np.stack([np.bincount(every[0].owner, column) / np.bincount(every[0].owner) for column in y.T])
    assert (rate.std(1) > 0.14).all()  # people's own habits: 20 tosses of one coin would spread by 0.11 at most


@refusals(
    (lambda: faces("smiling"), "faces", "did you mean 'Smiling'?"),
    (lambda: faces(9), "attribute is 9", "0 to 8"),
    (lambda: faces(1.5), "attribute is 1.5"),
    (lambda: faces(people=0), "people is 0", "at least 1"),
    (lambda: faces(images=1), "images is 1", "at least 2"),
    (lambda: faces(side=7), "side is 7", "at least 8"),
)
def test_generated_faces_refuse_what_cannot_be_drawn(make, words):
    with refused(*words):
        make()


# --- real files ----------------------------------------------------------------------


@real_data
def test_the_real_handwriting_has_294_writers_with_43971_and_4886_images():
    folder = os.environ["MMFL_TEST_DATA"]
    made = femnist(folder)
    assert (made.owners, len(made.x), len(made.x_test)) == (294, 43_971, 4_886)
    assert len(np.unique(made.owner_test)) == 294
    assert sorted(made.y.unique().tolist()) == list(range(62))
    assert int(made.x.median()) == 255
    strangers = femnist(folder, unseen=True)
    assert (strangers.owners, len(strangers.x_test), strangers.owner_test) == (294, 7_093, None)


@real_data
def test_the_real_lines_have_1129_roles_and_windows_of_their_own_words():
    folder = Path(os.environ["MMFL_TEST_DATA"])
    made = shakespeare(folder, most=256)
    sizes = np.bincount(made.owner)
    assert (made.owners, sizes.min(), sizes.max()) == (1129, 1, 256)
    with gzip.open(folder / "shakespeare.jsonl.gz", "rt", encoding="utf-8") as lines:
        texts = {role["user"]: role["text"] for role in map(json.loads, lines)}
    outside = Counter("".join(texts.values())).keys() - set(CHARACTERS)
    assert outside == set("{@/")
    table = str.maketrans(dict.fromkeys(outside, " "))
    for number in (0, 500, 1128):
        text = texts[sorted(texts)[number]].translate(table)
        x, y = rows_of(made, number)
        for row in range(len(x)):
            assert decode(x[row]) == text[80 * row : 80 * row + 80]
            assert decode(y[row]) == text[80 * row + 1 : 80 * row + 81]
