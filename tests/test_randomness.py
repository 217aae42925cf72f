"""Addressed random numbers: a function of the address alone, and random to every test at hand."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from mmfl import randomness
from mmfl.randomness import Purpose, bits, clients_uniform, generator, uniform

words = st.integers(-(2**63), 2**63 - 1)
MANY = 1 << 17
STREAMS = {
    "clients": lambda n: uniform(1, Purpose.CLIENTS, 5, torch.arange(n)),
    "rounds": lambda n: uniform(1, Purpose.CLIENTS, torch.arange(n), 5),
    "seeds": lambda n: uniform(torch.arange(n), Purpose.CLIENTS, 5, 5),
    "clients far apart": lambda n: uniform(1, Purpose.CLIENTS, 5, torch.arange(n) << 32),
    "clients and tasks": lambda n: clients_uniform(n // 8, 1, Purpose.TASKS, 5, columns=8).flatten(),
}


@given(st.lists(st.tuples(words, st.sampled_from([int, np.int64, torch.tensor])), min_size=1, max_size=5))
def test_numbers_and_tensors_in_an_address_give_the_same_bits(address):
    mixed = [kind(part) for part, kind in address]
    plain = [part for part, _ in address]
    assert bits(*mixed) == bits(*plain)
    assert uniform(*mixed) == uniform(*plain)
    assert bits(*mixed).dtype == torch.int64
    assert uniform(*mixed).dtype == torch.float64


@given(st.integers(-(2**80), 2**80), words)
def test_a_seed_of_any_size_counts_by_its_last_64_bits(seed, client):
    assert bits(seed, client) == bits(seed % 2**64, client) == bits(seed, torch.tensor(client))


def test_tensors_in_an_address_broadcast():
    table = bits(7, torch.arange(3)[:, None], 2, torch.arange(4)[None, :])
    assert table.shape == (3, 4)
    for i, j in itertools.product(range(3), range(4)):
        assert table[i, j] == bits(7, i, 2, j)


def test_addresses_that_differ_anywhere_give_different_numbers():
    addresses = list(itertools.product((0, 1, 2, -1), list(Purpose), range(5), range(5)))
    longer = [(0,), (0, 0), (0, 0, 0), (1,), (1, 0), (0, 1)]
    seen = {int(bits(*address)) for address in [*addresses, *longer]}
    assert len(seen) == len(addresses) + len(longer)


@given(words, words, st.integers(0, 63))
def test_one_bit_of_an_address_changes_about_half_of_the_bits(seed, client, flipped):
    apart = int(bits(seed, client)) ^ int(bits(seed, client ^ (1 << flipped)))
    assert 8 <= (apart % 2**64).bit_count() <= 56


@pytest.mark.parametrize("stream", STREAMS)
def test_uniform_numbers_have_mean_variance_and_bins_of_a_uniform_law(stream):
    numbers = np.asarray(STREAMS[stream](MANY))
    assert numbers.min() >= 0
    assert numbers.max() < 1
    assert abs(numbers.mean() - 1 / 2) < 4 / np.sqrt(12 * MANY)
    assert abs(numbers.var() - 1 / 12) < 4 / np.sqrt(180 * MANY)
    assert 0.001 < chisquare(np.bincount((numbers * 256).astype(int), minlength=256)).pvalue < 0.999
    low = numbers * 2**32 % 1
    assert 0.001 < chisquare(np.bincount((low * 256).astype(int), minlength=256)).pvalue < 0.999


@pytest.mark.parametrize("stream", STREAMS)
def test_neighbours_are_independent(stream):
    numbers = (np.asarray(STREAMS[stream](MANY)) * 16).astype(int)
    pairs = numbers[:-1] * 16 + numbers[1:]
    assert 0.001 < chisquare(np.bincount(pairs[::2], minlength=256)).pvalue < 0.999


def test_uniform_numbers_reach_zero_but_never_one(monkeypatch):
    monkeypatch.setattr(randomness, "bits", lambda *address: torch.tensor([0, -1, 2**63 - 1, -(2**63)]))
    assert uniform(0).tolist() == [0.0, 1 - 2**-53, 0.5 - 2**-53, 0.5]


@given(st.integers(1, 50), st.integers(1, 50), st.integers(1, 4))
def test_a_clients_numbers_do_not_depend_on_how_many_clients_there_are(few, more, columns):
    here, crowded = (clients_uniform(n, 3, Purpose.CLIENTS, 8, columns=columns) for n in (few, few + more))
    assert here.shape == (few, columns)
    np.testing.assert_array_equal(here, crowded[:few])


def test_generators_start_at_their_address():
    draws = [generator(*address).random(4).tolist() for address in [(0, 3, 1), (0, 3, 1), (0, 3, 2), (1, 3, 1)]]
    assert draws[0] == draws[1]
    assert len({tuple(draw) for draw in draws}) == 3


def test_no_other_generator_is_touched():
    torch_state, numpy_state = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    uniform(0, torch.arange(10))
    generator(0, 1).random(10)
    assert torch.equal(torch.get_rng_state(), torch_state)
    assert (np.random.get_state()[1] == numpy_state).all()  # noqa: NPY002
