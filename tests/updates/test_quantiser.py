"""Vectors in a few bits a number: how much is lost, how much space they take, and what stays exact."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import mmfl
from mmfl.runs import checkpoint
from mmfl.updates import StorageOptions, Updates
from mmfl.updates.encoding import ENCODINGS
from mmfl.updates.memory import ClientMemory
from mmfl.updates.quantiser import LARGEST, LEVELS, pack, rotate, unpack

few_bits = pytest.mark.parametrize("bits", [2, 3, 4])
all_bits = pytest.mark.parametrize("bits", [2, 3, 4, 8])
THEORY = {2: 0.1175, 3: 0.03455, 4: 0.0095, 8: 0.00005}
LENGTHS = [1, 5, 8, 255, 256, 257, 1000, 4810]


def normal(rows, length, seed=0):
    return torch.randn(rows, length, generator=torch.Generator().manual_seed(seed))


def read_back(rows, bits):
    encoding = ENCODINGS[f"{bits}-bit"]
    encoded = encoding.encode(rows)
    assert encoded.shape == (len(rows), encoding.width(rows.shape[1]))
    return encoding.decode(encoded, rows.shape[1])


def lost(rows, bits):
    """The squared length of the error, as a share of that of the rows."""
    return float((read_back(rows, bits) - rows).square().sum() / rows.square().sum())


@few_bits
def test_every_level_is_the_mean_of_the_normal_numbers_nearest_to_it(bits):
    levels = LEVELS[bits]
    edges = [0, *((a + b) / 2 for a, b in pairwise(levels)), math.inf]
    for level, (low, high) in zip(levels, pairwise(edges), strict=True):
        share = (math.erf(high / math.sqrt(2)) - math.erf(low / math.sqrt(2))) / 2
        mean = (math.exp(-(low**2) / 2) - math.exp(-(high**2) / 2)) / math.sqrt(2 * math.pi) / share
        assert level == pytest.approx(mean, abs=2e-6)


@all_bits
@pytest.mark.parametrize("scale", [1e-30, 1e-3, 1e20])
def test_normal_numbers_lose_what_theory_says_whatever_their_scale(bits, scale):
    assert lost((scale * normal(20, 10_000)).double(), bits) == pytest.approx(THEORY[bits], rel=0.03)


@few_bits
@pytest.mark.parametrize("kept", [0.01, 0.1, 0.5])
def test_vectors_with_many_zeros_lose_no_more_than_normal_ones(bits, kept):
    sparse = normal(20, 10_100) * (torch.rand(20, 10_100, generator=torch.Generator().manual_seed(1)) < kept)
    assert lost(sparse, bits) < 1.05 * THEORY[bits]


@given(st.integers(2, 8), st.integers(1, 5), st.integers(1, 40), st.integers(0, 10**6))
def test_packed_codes_come_back(bits, rows, eights, seed):
    codes = np.random.default_rng(seed).integers(0, 2**bits, (rows, 8 * eights), dtype=np.uint8)
    planes = torch.cat(pack(torch.from_numpy(codes), bits), 1)
    assert planes.shape == (rows, bits * eights)
    assert torch.equal(unpack(planes, bits), torch.from_numpy(codes))


@pytest.mark.parametrize("length", LENGTHS)
def test_a_rotation_keeps_lengths_and_can_be_undone(length):
    rows = normal(7, length)
    torch.testing.assert_close(rotate(rows).norm(dim=1), rows.norm(dim=1))
    torch.testing.assert_close(rotate(rotate(rows), back=True), rows, rtol=1e-5, atol=1e-5)
    assert torch.equal(rotate(rows), rows) == (length < 256)
    if length >= 256:
        assert (rotate(rows) != rows).any(0).all()


@all_bits
@pytest.mark.parametrize("length", LENGTHS)
def test_a_row_has_the_same_bits_alone_and_among_others_and_zeros_stay_zeros(bits, length):
    rows = normal(9, length)
    rows[4] = 0
    together = read_back(rows, bits)
    for row in range(9):
        assert torch.equal(read_back(rows[row : row + 1], bits)[0], together[row])
    assert not together[4].any()
    assert together[3].any()


@given(st.integers(2_000, 10**7))
def test_three_bits_take_at_most_a_tenth_of_float32(length):
    assert ENCODINGS["3-bit"].width(length) <= 4 * length / 10


@all_bits
def test_what_is_not_finite_stays_in_its_block_and_does_not_go_unnoticed(bits):
    rows = normal(3, 1024)
    rows[0, 300], rows[1, 300], rows[2, 300] = math.inf, math.nan, -1e38
    found, expected = read_back(rows, bits), read_back(normal(3, 1024), bits)
    for block in (slice(0, 256), slice(512, 1024)):
        assert torch.equal(found[:, block], expected[:, block])
    assert found[1, 256:512].isnan().all()
    assert found[[0, 2]].isfinite().all()
    largest = found[[0, 2], 300] / torch.tensor([LARGEST, -LARGEST])
    assert ((largest > 0.5) & (largest < 1.6)).all()


@all_bits
def test_a_sum_beside_quantised_vectors_is_the_sum_of_what_is_read(bits):
    memory = ClientMemory.start(StorageOptions(precision=f"{bits}-bit"), 12, torch.zeros(700))
    sizes = np.arange(1, 13)
    for turn in range(6):
        client, ones = np.arange(turn, turn + 6), np.ones(6, dtype=np.int64)
        rows = normal(6, 700, turn)
        updates = Updates(0, client, ones, ones / 1, rows, ones / 1, ones)
        before = memory.stored.of(client).matrix()
        memory.replace(updates, before, updates.rows, sizes)
    everyone = memory.stored.rows(np.arange(12)).double()
    assert not everyone[11].any()  # never seen
    for present in (sizes, np.where(np.arange(12) % 3, sizes, 0), np.zeros(12, dtype=np.int64), sizes):
        memory.reweight(present)
        expected = torch.from_numpy(present).double() @ everyone
        torch.testing.assert_close(memory.total, expected, rtol=1e-12, atol=1e-12)


def test_a_checkpoint_in_another_precision_is_converted(tmp_path):
    clients, rows = np.arange(5), normal(5, 700)
    found = {}
    for precision in ("float32", "3-bit"):
        stored = StorageOptions(precision=precision).start(5, torch.zeros(700))
        stored.put(clients, rows)
        checkpoint.write(tmp_path / precision, 1, "mark", stored)
        for other in ("float32", "3-bit"):
            empty = StorageOptions(precision=other).start(5, torch.zeros(700))
            _, again = checkpoint.read(tmp_path / precision, "mark", empty)
            assert again.nbytes == 5 * ENCODINGS[other].width(700) * ENCODINGS[other].dtype.itemsize
            found[precision, other] = again.rows(clients)
    assert torch.equal(found["float32", "float32"], rows)
    for pair in (("float32", "3-bit"), ("3-bit", "3-bit"), ("3-bit", "float32")):
        assert torch.equal(found[pair], read_back(rows, 3)), pair


@pytest.mark.parametrize("method", ["fedvarp", "mifa", "mmfl-stalevre", "forecast"])
def test_a_run_with_three_bits_resumes_with_the_same_bits(method, tmp_path):
    task = mmfl.Task("digits", mmfl.models.Perceptron, mmfl.data.digits(), lr=0.1)
    federation = mmfl.Federation([task], clients=12)
    settings = {"method": method, "keep": {"precision": "3-bit"}}

    def train(rounds, directory, **options):
        run = mmfl.train(federation, settings, rounds, 0.4, directory=directory, checkpoint_every=3, **options)
        return run.weights[0]

    whole = train(7, tmp_path / "whole")
    train(3, tmp_path / "part")
    assert torch.equal(train(7, tmp_path / "part", resume=True), whole)
