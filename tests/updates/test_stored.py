"""Stored vectors: what goes in comes out, wherever it is kept, and only for clients ever seen."""

import os

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import refusals, refused
from mmfl.runs import checkpoint
from mmfl.updates.encoding import ENCODINGS
from mmfl.updates.store import ClientVectorStore, StorageOptions

CLIENTS, PARAMETERS = 200, 5

places = pytest.mark.parametrize("where", ["device", "host", "file"])
precisions = pytest.mark.parametrize("precision", ["float32", "float16", "8-bit", "3-bit"])


def start(
    where="device", precision="float32", clients=CLIENTS, parameters=PARAMETERS, folder=None
) -> ClientVectorStore:
    return StorageOptions(where, precision, folder).start(clients, torch.zeros(parameters))


def vectors(count, seed=0, parameters=PARAMETERS):
    return torch.randn(count, parameters, generator=torch.Generator().manual_seed(seed))


def same(a, b):
    return a.dtype == b.dtype and torch.equal(a, b)


class Plain:
    """The same in the plainest way: a dictionary from client to vector."""

    def __init__(self, precision):
        self.encoding = ENCODINGS[precision]
        self.vector: dict[int, torch.Tensor] = {}

    def put(self, client, rows):
        for one, row in zip(client.tolist(), rows, strict=True):
            self.vector[one] = self.encoding.decode(self.encoding.encode(row[None]), PARAMETERS)[0]

    def rows(self, client):
        return torch.stack([self.vector.get(c, torch.zeros(PARAMETERS)) for c in client.tolist()])


some_clients = st.lists(st.integers(0, CLIENTS - 1), min_size=1, max_size=60).map(np.array)
steps = st.lists(st.tuples(st.sampled_from(["put", "rows"]), some_clients), max_size=12)


@places
@precisions
@given(steps=steps)
@settings(max_examples=25)
def test_any_sequence_of_puts_and_reads_agrees_with_a_dictionary(where, precision, steps):
    stored, plain = start(where, precision), Plain(precision)
    for seed, (what, client) in enumerate(steps):
        if what == "put":
            client = np.unique(client)[::-1].copy()
            kept = stored.put(client, vectors(len(client), seed))
            plain.put(client, vectors(len(client), seed))
            assert same(kept, plain.rows(client))
        assert same(stored.rows(client), plain.rows(client))
        assert stored.has(client).tolist() == [c in plain.vector for c in client.tolist()]
        assert len(stored) == len(plain.vector)
    everyone = np.arange(CLIENTS)
    assert same(stored.rows(everyone), plain.rows(everyone))


@places
@precisions
def test_combine_is_the_weighted_sum_of_the_vectors_as_they_are_kept(where, precision):
    stored, client = start(where, precision), np.array([150, 3, 77])
    kept, coefficients = stored.put(client, vectors(3)), np.array([0.5, -2.0, 3.0, 7.0])
    expected = 0.5 * kept[2] - 2 * kept[0] + 3 * kept[1]
    combined = stored.combine(np.array([77, 150, 3, 9]), coefficients)  # nothing is stored for client 9
    assert combined.dtype == torch.float32
    torch.testing.assert_close(combined, expected)


@places
def test_float16_keeps_its_largest_value_for_what_is_beyond_it(where):
    stored, client = start(where, "float16", parameters=4), np.array([5])
    kept = stored.put(client, torch.tensor([[1e6, -1e30, 65519.0, 65504.0]]))
    assert kept.tolist() == [[65504.0, -65504.0, 65504.0, 65504.0]]
    assert same(stored.rows(client), kept)


def test_a_setting_is_a_table_of_options_or_itself_or_nothing():
    assert StorageOptions.of({"where": "host", "precision": "float16"}) == StorageOptions("host", "float16")
    assert StorageOptions.of(StorageOptions("file")) == StorageOptions("file")
    assert StorageOptions.of(None) == StorageOptions.of({}) == StorageOptions("device", "float32", None)


def test_stored_vectors_share_nothing_with_what_came_out_or_went_in():
    stored, client, rows = start(), np.array([1, 2]), vectors(2)
    assert not stored.put(client, rows.requires_grad_()).requires_grad
    stored.rows(client).zero_()
    rows.detach().zero_()
    assert same(stored.rows(client), vectors(2))


@places
def test_no_clients_are_no_rows(where):
    stored, nobody = start(where), np.zeros(0, dtype=np.int64)
    assert stored.put(nobody, vectors(0)).shape == (0, PARAMETERS)
    assert stored.rows(nobody).shape == (0, PARAMETERS)
    assert stored.rows(np.array([4])).tolist() == [[0.0] * PARAMETERS]
    assert (len(stored), stored.nbytes, list(stored.batches())) == (0, 0, [])


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_batches_pass_over_everything_once_in_the_order_of_first_storing(size):
    stored = start()
    stored.put(np.arange(60, 20, -1), vectors(40))
    stored.put(np.array([30, 199, 0]), vectors(3, seed=1))
    batches = list(stored.batches(size))
    assert all(0 < len(client) == len(rows) <= size for client, rows in batches)
    client = np.concatenate([client for client, _ in batches])
    assert client.tolist() == [*range(60, 20, -1), 199, 0]
    assert same(torch.cat([rows for _, rows in batches]), stored.rows(client))


@places
@precisions
@pytest.mark.parametrize("at_once", [1, 10, 1000])
def test_memory_follows_the_clients_seen_not_all_clients(where, precision, at_once):
    stored = start(where, precision, clients=1_000_000, parameters=100)
    row = {"float32": 400, "float16": 200, "8-bit": 4 + 104, "3-bit": 4 + 3 * 13}[precision]
    for first in range(0, 1000, at_once):
        stored.put(np.arange(first, first + at_once), vectors(at_once, parameters=100))
        assert len(stored) * row <= stored.nbytes <= max(2 * len(stored), 16) * row
    assert len(stored.blocks) < 10


def test_blocks_of_large_models_stay_small():
    parameters = 2**21
    stored = start("host", parameters=parameters)
    stored.put(np.arange(1), torch.ones(1, parameters))
    stored.put(np.arange(1, 6), torch.full((5, parameters), 2.0))
    assert [block.nbytes for block in stored.blocks] == [2**25, 2**25]
    assert stored.rows(np.arange(7))[:, -1].tolist() == [1, 2, 2, 2, 2, 2, 0]


@places
def test_growing_moves_no_block_and_storing_touches_only_blocks_of_its_clients(where):
    stored = start(where)
    before: list[int] = []
    for first in range(0, CLIENTS, 10):
        stored.put(np.arange(first, first + 10), vectors(10))
        now = [block.data_ptr() for block in stored.blocks]
        assert now[: len(before)] == before
        before = now
    assert len(before) > 3
    versions = [block._version for block in stored.blocks]
    stored.put(np.array([0, 1]), vectors(2))
    assert [block._version for block in stored.blocks] == [versions[0] + 1, *versions[1:]]


@places
@precisions
@pytest.mark.parametrize("seen", [0, 1, 50])
def test_a_checkpoint_brings_back_the_same_vectors_in_the_same_place_and_room(where, precision, seen, tmp_path):
    stored = start(where, precision)
    for client in np.array_split(np.arange(150, 150 - seen, -1), 3):
        stored.put(client, vectors(len(client)))
    checkpoint.write(tmp_path, 3, "mark", {"task": [stored]})
    found = checkpoint.read(tmp_path, "mark", {"task": [start(where, precision)]})
    assert found is not None
    again = found[1]["task"][0]
    assert (again.keep, len(again), again.nbytes) == (stored.keep, len(stored), stored.nbytes)
    assert again.starts.tolist() == stored.starts.tolist()
    for seed in range(4):
        everyone = np.arange(CLIENTS)
        assert again.slot.tolist() == stored.slot.tolist()
        assert same(again.rows(everyone), stored.rows(everyone))
        client = np.arange(seed * 45, seed * 45 + 30)
        assert same(again.put(client, vectors(30, seed)), stored.put(client, vectors(30, seed)))


@places
def test_a_checkpoint_can_be_taken_up_in_another_place(where, tmp_path):
    stored = start("host")
    stored.put(np.arange(40), vectors(40))
    checkpoint.write(tmp_path, 1, "mark", stored)
    found = checkpoint.read(tmp_path, "mark", start(where))
    assert found is not None
    assert found[1].keep.where == where
    assert same(found[1].rows(np.arange(40)), vectors(40))


def test_a_checkpoint_holds_used_rows_only_and_leaves_the_state_alone(tmp_path):
    stored = start(parameters=10_000)
    stored.put(np.arange(16), vectors(16, parameters=10_000))
    stored.put(np.array([16]), vectors(1, parameters=10_000))
    checkpoint.write(tmp_path, 1, "mark", stored)
    size = (tmp_path / "round-000001.safetensors").stat().st_size
    assert 17 * 40_000 < size < 18 * 40_000 < stored.nbytes
    assert [len(block) for block in stored.blocks] == [16, 16]


def test_files_leave_nothing_in_their_folder(tmp_path):
    stored = start("file", folder=str(tmp_path))
    stored.put(np.arange(100), vectors(100))
    assert list(tmp_path.iterdir()) == []
    assert same(stored.rows(np.arange(100)), vectors(100))


@refusals(
    (lambda: StorageOptions("hosts"), "unknown where 'hosts'", "did you mean 'host'?"),
    (lambda: StorageOptions("cloud"), "unknown where 'cloud'", "expected one of: device, file, host."),
    (lambda: StorageOptions(precision="float61"), "unknown precision 'float61'", "did you mean 'float16'?"),
    (lambda: StorageOptions(precision="3-bits"), "unknown precision '3-bits'", "did you mean '3-bit'?"),
    (
        lambda: StorageOptions(precision=3),
        "unknown precision '3': expected one of: 2-bit, 3-bit, 4-bit, 8-bit, float16",
    ),
    (lambda: StorageOptions(precision=["3-bit"]), "unknown precision '['3-bit']'", "did you mean '3-bit'?"),
    (lambda: start("file", folder="/missing"), "cannot write to folder '/missing'", "No such file or directory."),
    (lambda: start("file", folder=__file__), "cannot write to folder", "Not a directory."),
)
def test_a_bad_setting_is_refused_with_what_was_expected(make, words):
    with refused(*words):
        make()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_is_read_only_is_refused(tmp_path):
    tmp_path.chmod(0o500)
    with refused("cannot write to folder", "Permission denied."):
        start("file", folder=str(tmp_path))


def test_a_full_disk_is_an_error_of_the_folder(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    stored = start("file", folder=str(tmp_path))
    monkeypatch.setattr("os.posix_fallocate", full, raising=False)
    with refused("no room for 320 more bytes"):
        stored.put(np.arange(2), vectors(2))


def test_a_client_cannot_be_stored_twice_at_once_nor_with_rows_of_another_shape():
    stored = start()
    with pytest.raises(ValueError, match="occurs twice"):
        stored.put(np.array([3, 4, 3]), vectors(3))
    with pytest.raises(ValueError, match=r"\[2, 5\]; expected \[3, 5\]"):
        stored.put(np.array([3, 4, 5]), vectors(2))
    assert len(stored) == 0


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@places
@precisions
def test_rows_come_to_the_device_of_the_weights_from_wherever_they_are_kept(where, precision, tmp_path):
    stored = StorageOptions(where, precision).start(CLIENTS, torch.zeros(PARAMETERS, device="cuda"))
    beside, client = start(where, precision), np.arange(90, 40, -1)
    for part in (client[:20], client):
        kept = stored.put(part, vectors(len(part)).cuda())
        assert kept.is_cuda
        assert same(kept.cpu(), beside.put(part, vectors(len(part))))
    assert all(block.is_cuda == (where == "device") for block in stored.blocks)
    checkpoint.write(tmp_path, 1, "mark", stored)
    found = checkpoint.read(tmp_path, "mark", stored)
    assert found is not None
    assert all(block.is_cuda == (where == "device") for block in found[1].blocks)
    for again in (stored, found[1]):
        rows = again.rows(np.arange(CLIENTS))
        assert rows.is_cuda
        assert same(rows.cpu(), beside.rows(np.arange(CLIENTS)))
