"""Secure sums: masks cancel, a single vector stays hidden, and whoever is lost when, the sum is right or none."""

import random
from itertools import combinations, product

import numpy as np
import pytest
import torch
from scipy import stats

pytest.importorskip("flwr", reason="flwr is not installed")
from cryptography.hazmat.primitives.asymmetric import ec

from mmfl.deployment import secure_node
from mmfl.deployment.masks import BITS, Grid, derive, from_tensor, keystream, pair_mask, to_tensor
from mmfl.deployment.payload import InvalidPayloadError
from mmfl.deployment.secure_node import SecureNode, pair_seed
from mmfl.deployment.secure_sums import CannotOpenError, MaskedSum

NAMES = ["10", "11", "12", "9"]
LENGTH = 5


@pytest.fixture(scope="module")
def nodes() -> dict[str, SecureNode]:
    return {name: SecureNode() for name in NAMES}


@pytest.fixture
def session(request) -> str:
    """A name that no other test uses: nodes refuse to mask twice for the same sum."""
    return f"{request.node.name}"


def keys_of(nodes) -> dict[str, str]:
    return {name: node.public_key for name, node in nodes.items()}


def vectors(bits: int) -> dict[str, torch.Tensor]:
    """Whole numbers, which rounding leaves as they are."""
    rng = np.random.default_rng(0)
    return {name: torch.from_numpy(rng.integers(-50, 50, LENGTH).astype(float)) for name in NAMES}


@pytest.mark.parametrize("bits", BITS)
def test_masks_cancel_to_the_last_bit_in_the_sum_over_all_nodes(bits):
    seeds = {pair: derive(bytes(32), str(pair)) for pair in combinations(sorted(NAMES), 2)}
    masks = []
    for name in NAMES:
        own = {other: seeds[min(name, other), max(name, other)] for other in NAMES if other != name}
        masks.append(pair_mask(name, own, 1000, bits))
        assert masks[-1].any()
    assert not sum(masks[1:], masks[0]).any()


@pytest.mark.parametrize("bits", BITS)
def test_the_sum_of_whole_numbers_is_exact(nodes, bits, session):
    given = vectors(bits)
    total = summed(nodes, given, session + str(bits), Grid(bits, 1.0), dict.fromkeys(NAMES, "never"))
    assert torch.equal(total, sum(given.values()))


def test_a_grid_holds_the_largest_sum_and_rounds_right_on_average():
    grid = Grid.covering(16, 10.0, nodes=4)
    values = torch.full((100_000,), 2.5 + 0.3 * grid.step)
    words = [grid.round(values, derive(bytes([n]), "")) for n in range(4)]
    total = grid.values(sum(words[1:], words[0]))
    assert (total - 4 * values).abs().max() <= 4 * grid.step
    error = float((total - 4 * values).mean() / grid.step)
    assert abs(error) < 5 * np.sqrt(4 * 0.25 / 100_000)  # standard errors of a fraction's mean, at most
    extreme = [grid.round(torch.full((1000,), sign * 2.5), derive(b"x", "")) for sign in (1, -1) for _ in range(4)]
    assert (grid.values(sum(extreme[1:4], extreme[0])) > 9.9).all()
    assert (grid.values(sum(extreme[5:], extreme[4])) < -9.9).all()


@pytest.mark.parametrize("bits", BITS)
def test_what_the_server_sees_of_one_node_is_uniform(bits, monkeypatch, session):
    source = random.Random(1)
    monkeypatch.setattr(secure_node.os, "urandom", source.randbytes)
    private = (ec.derive_private_key(source.randrange(2, 2**300), ec.SECP384R1()) for _ in NAMES)
    monkeypatch.setattr(secure_node.ec, "generate_private_key", lambda curve: next(private))
    few = {name: SecureNode() for name in NAMES}
    words = few["9"].mask(session, "9", keys_of(few), 3, Grid(bits, 1.0), torch.zeros(2**18)).words
    for byte in range(bits // 8):
        counts = np.bincount((words >> (8 * byte)) & 255, minlength=256)
        assert stats.chisquare(counts).pvalue > 0.001
    both = words.astype(float)
    assert abs(np.corrcoef(both[1:], both[:-1])[0, 1]) < 5 / 2**9


def summed(nodes, given, session, grid, lost_at, threshold=3):
    """The protocol as the server drives it; nodes are lost before they mask, tell seeds or open, or never."""
    keys = keys_of(nodes)
    masked = MaskedSum(session, keys, threshold, grid, LENGTH)
    for name in NAMES:
        vector = nodes[name].mask(session, name, keys, threshold, grid, given[name])
        if lost_at[name] != "mask":
            masked.receive(name, vector)
    masked.check_enough()
    while wanted := masked.wanted_seeds():
        for name, lost in wanted.items():
            if lost_at[name] == "seeds":
                masked.drop(name)
            else:
                masked.seeds |= {(name, other): seed for other, seed in nodes[name].tell_seeds(session, lost).items()}
        masked.check_enough()
    for name in sorted(masked.left):
        if lost_at[name] not in ("seeds", "open"):
            shares = nodes[name].open(session, masked.shares_for(name))
            masked.shares |= {(name, other): share for other, share in shares.items()}
    return masked.open()


@pytest.mark.parametrize("threshold", [3, 4])
def test_whoever_is_lost_when_the_sum_is_that_of_the_nodes_that_sent_or_none(nodes, threshold, session):
    given, opened = vectors(32), 0
    for pattern in product(["mask", "seeds", "open", "never"], repeat=len(NAMES)):
        lost_at = dict(zip(NAMES, pattern, strict=True))
        lost_early = "mask" in pattern  # otherwise no seeds are asked for, and those are lost when they should open
        summands = [n for n in NAMES if lost_at[n] != "mask" and not (lost_early and lost_at[n] == "seeds")]
        openers = [n for n in summands if lost_at[n] == "never"]
        name = f"{session} {pattern}"
        if len(summands) >= threshold and len(openers) >= threshold:
            total = summed(nodes, given, name, Grid(32, 1.0), lost_at, threshold)
            assert torch.equal(total, sum(given[n] for n in summands))
            opened += 1
        else:
            with pytest.raises(CannotOpenError):
                summed(nodes, given, name, Grid(32, 1.0), lost_at, threshold)
    assert opened == {3: 13, 4: 1}[threshold]


def test_a_server_that_lies_about_who_was_lost_learns_no_sum_of_fewer_than_two_thresholds_less_all(nodes, session):
    threshold, grid, keys, given = 3, Grid(32, 1.0), keys_of(nodes), vectors(32)
    smallest = len(NAMES)
    views = {n: [set(), *({other} for other in NAMES if other != n)] for n in NAMES}  # lost, as it is told to each
    for number, told in enumerate(product(*views.values())):
        lost = dict(zip(NAMES, told, strict=True))
        name = f"{session} {number}"
        sent = {n: nodes[n].mask(name, n, keys, threshold, grid, given[n]) for n in NAMES}
        seeds = {(n, other): seed for n in NAMES for other, seed in nodes[n].tell_seeds(name, sorted(lost[n])).items()}
        shares: dict[str, list[bytes]] = {n: [] for n in NAMES}
        for n in NAMES:
            kept = {other: sent[other].shares[n] for other in NAMES if other not in lost[n] | {n}}
            for other, share in nodes[n].open(name, kept).items():
                shares[other].append(share)
        for size in range(1, len(NAMES)):
            for group in combinations(NAMES, size):
                outside = [n for n in NAMES if n not in group]
                known = all((a, b) in seeds or (b, a) in seeds for a in group for b in outside)
                if known and all(len(shares[n]) >= threshold for n in group):
                    smallest = min(smallest, size)
    assert smallest == 2 * threshold - len(NAMES) == 2


# --- what a node refuses ---


def mask(node, session, **changes):
    told = {"own": "9", "public_keys": changes.pop("keys"), "threshold": 3, "grid": Grid(32, 1.0)} | changes
    return node.mask(session, vector=torch.zeros(LENGTH), **told)


def test_a_node_masks_once_for_a_sum_and_never_again(nodes, session):
    mask(nodes["9"], session, keys=keys_of(nodes))
    with pytest.raises(InvalidPayloadError, match="sent before"):
        mask(nodes["9"], session, keys=keys_of(nodes))


@pytest.mark.parametrize("threshold", [0, 1, 2, 5])
def test_a_node_insists_on_more_than_half_of_the_nodes(nodes, threshold, session):
    with pytest.raises(InvalidPayloadError, match=f"with {threshold} of them"):
        mask(nodes["9"], session, keys=keys_of(nodes), threshold=threshold)


def test_a_node_masks_for_its_own_key_and_keys_that_can_be_read(nodes, session):
    with pytest.raises(InvalidPayloadError, match="restarted"):
        mask(nodes["9"], session, keys=keys_of(nodes) | {"9": nodes["10"].public_key})
    for wrong in ("no base64 !", "AAAA"):
        with pytest.raises(InvalidPayloadError):
            mask(nodes["9"], session, keys=keys_of(nodes) | {"10": wrong})


def test_a_node_tells_of_another_either_the_shared_mask_or_its_share_and_nothing_twice(nodes, session):
    keys = keys_of(nodes)
    sent = {n: mask(nodes[n], session, keys=keys, own=n) for n in NAMES}
    node = nodes["9"]
    shares = {other: sent[other].shares["9"] for other in NAMES[:3]}
    with pytest.raises(InvalidPayloadError, match="too few"):
        node.tell_seeds(session, ["10", "11"])
    node.tell_seeds(session, ["10"])
    with pytest.raises(InvalidPayloadError, match="too few"):
        node.tell_seeds(session, ["11"])
    with pytest.raises(InvalidPayloadError, match="no part"):
        node.tell_seeds(session, ["77"])
    with pytest.raises(InvalidPayloadError, match="the nodes that are left"):
        node.open(session, shares)
    del shares["10"]
    assert set(node.open(session, shares)) == {"9", "11", "12"}
    for again in (lambda: node.open(session, shares), lambda: node.tell_seeds(session, ["10"])):
        with pytest.raises(InvalidPayloadError, match="over"):
            again()


def test_shares_of_other_sums_or_other_nodes_are_refused(nodes, session):
    keys = keys_of(nodes)
    one, two = ({n: mask(nodes[n], name, keys=keys, own=n) for n in NAMES} for name in (session, session + " 2"))
    own = {other: one[other].shares["9"] for other in NAMES[:3]}
    for wrong in (two["10"].shares["9"], one["10"].shares["11"], b"nonsense"):
        again = f"{session} {wrong[-9:]}"
        sent = {n: mask(nodes[n], again, keys=keys, own=n).shares.get("9") for n in NAMES[:3]}
        mask(nodes["9"], again, keys=keys)
        with pytest.raises(InvalidPayloadError, match="a share"):
            nodes["9"].open(again, sent | {"10": wrong})
    assert len(nodes["9"].open(session, own)) == 4


def test_shares_that_do_not_fit_together_open_nothing(nodes, session):
    keys, given = keys_of(nodes), vectors(32)
    masked = MaskedSum(session, keys, 3, Grid(32, 1.0), LENGTH)
    for n in NAMES:
        masked.receive(n, nodes[n].mask(session, n, keys, 3, masked.grid, given[n]))
    for n in NAMES:
        masked.shares |= {(n, other): share for other, share in nodes[n].open(session, masked.shares_for(n)).items()}
    masked.shares["10", "9"] = masked.shares["10", "9"][:-1] + bytes([masked.shares["10", "9"][-1] ^ 1])
    with pytest.raises(CannotOpenError, match="do not fit together"):
        masked.open()


def test_the_mask_of_a_pair_is_the_same_for_both_and_another_in_every_sum(nodes):
    first, second = nodes["9"], nodes["10"]
    shared = first._shared_key(second.public_key)
    assert shared == second._shared_key(first.public_key)
    assert pair_seed(shared, "a") != pair_seed(shared, "b")
    words = keystream(pair_seed(shared, "a"), 100, 32)
    assert (words == keystream(pair_seed(shared, "a"), 100, 32)).all()


@pytest.mark.parametrize("bits", BITS)
def test_words_travel_as_tensors_of_their_size_and_nothing_else_is_taken(bits):
    words = keystream(bytes(32), 10, bits).copy()
    assert (from_tensor(to_tensor(words), 10, bits) == words).all()
    for wrong in (torch.zeros(10), to_tensor(words)[:9], torch.zeros(10, dtype=torch.int64)):
        with pytest.raises(InvalidPayloadError, match="masked sum"):
            from_tensor(wrong, 10, bits)
