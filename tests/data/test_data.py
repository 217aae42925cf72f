"""Where examples come from: shapes, laws, splits, and what is refused."""

from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression

from conftest import refusals, refused
from mmfl import data, models
from mmfl.data import Dataset, from_arrays

# --- own arrays ----------------------------------------------------------------------

X, Y = np.arange(30.0).reshape(10, 3), np.arange(10) % 2


@given(st.lists(st.integers(0, 4), min_size=2, max_size=60), st.floats(0.05, 0.95), st.integers(0, 9))
def test_held_out_rows_are_the_share_of_every_owner_and_never_all_of_its_rows(owner, share, seed):
    counts = {name: owner.count(name) for name in owner}
    assume(any(n > 1 and share * n > 0.5 for n in counts.values()))
    made = from_arrays(np.arange(len(owner))[:, None], owner, owner, test_share=share, seed=seed)
    assert sorted([*made.x.flatten().tolist(), *made.x_test.flatten().tolist()]) == list(range(len(owner)))
    names = sorted(counts)
    for number, name in enumerate(names):
        mine, held = made.owner == number, made.owner_test == number
        assert abs(held.sum() - share * counts[name]) < 1
        assert mine.any()
        assert (made.y.numpy()[mine] == name).all()
        assert (made.y_test.numpy()[held] == name).all()
    assert made.owners == len(names)


@pytest.mark.parametrize(
    ("owner", "names"),
    [
        (["bob", "ann", "bob", "eve"], ["ann", "bob", "eve"]),
        (np.array(["bob", "ann", "bob", "eve"], dtype=object), ["ann", "bob", "eve"]),
        ([9, 7, 9, 30], [7, 9, 30]),
        ([9.0, 7.0, 9.0, 30.0], [7, 9, 30]),
        (torch.tensor([9, 7, 9, 30]), [7, 9, 30]),
        (np.array([9, 7, 9, 30], dtype=object), [7, 9, 30]),
    ],
)
def test_a_data_set_keeps_the_names_of_its_owners_and_test_rows_find_theirs(owner, names):
    made = from_arrays(X[:4], Y[:4], owner, test=(X[4:7], Y[4:7], owner[1:]))
    assert made.owner_names.tolist() == names
    assert (made.owner.tolist(), made.owner_test.tolist()) == ([1, 0, 1, 2], [0, 1, 2])


def test_owners_of_a_data_set_made_directly_are_known_by_their_numbers():
    made = owned([0, 0, 3, 3, 3, 3, 3, 3, 3, 3])
    assert made.owner_names.tolist() == [0, 1, 2, 3]
    assert made.owners == 2


@pytest.mark.parametrize("seed", range(4))
def test_a_row_that_is_no_number_is_named_as_it_was_given_wherever_the_split_puts_it(seed):
    with refused("data 'data': input at row 3 is not"):
        from_arrays(spoiled(3), Y, test_share=0.5, seed=seed)
    with refused("data 'data': target at row 3 is not"):
        from_arrays(X, spoiled(3)[:, 1], test_share=0.5, seed=seed)


def test_rows_without_owners_are_split_as_one_and_a_given_test_set_is_shared():
    made = from_arrays(X, Y, test_share=0.3)
    assert (len(made.x), len(made.x_test), made.owner, made.owner_test, made.owners) == (7, 3, None, None, 0)
    made = from_arrays(X, Y, Y, test=(X[:2], Y[:2]))
    assert (len(made.x), len(made.x_test), made.owner_test) == (10, 2, None)


def test_real_numbers_become_float32_and_labels_int64():
    made = from_arrays(X.astype(np.float64), Y.astype(np.int8), test_share=0.5)
    assert (made.x.dtype, made.y.dtype, made.y_test.dtype) == (torch.float32, torch.int64, torch.int64)
    made = from_arrays(X.astype(np.int64), Y.astype(float), test=(X, Y.astype(bool)))
    assert (made.x.dtype, made.y.dtype, made.y_test.dtype) == (torch.int64, torch.float32, torch.int64)


def spoiled(row, value=np.nan):
    wrong = X.copy()
    wrong[row, 1] = value
    return wrong


@refusals(
    (lambda: from_arrays(X, Y[:-1], name="mine"), "mine", "10 inputs", "9 targets"),
    (lambda: from_arrays(X, Y, Y[:-1]), "10 examples", "9 owners"),
    (lambda: from_arrays(X, Y, test=(X[:3], Y[:2])), "test", "3 inputs", "2 targets"),
    (lambda: from_arrays(X, Y, Y, test=(X[:3], Y[:3], Y[:2])), "test", "3 examples", "2 owners"),
    (lambda: from_arrays(spoiled(7), Y, test=(X, Y)), "training", "input", "row 7", "finite"),
    (lambda: from_arrays(X, Y, test=(spoiled(2, np.inf), Y)), "test", "input", "row 2", "finite"),
    (lambda: from_arrays(X[:0], Y[:0], test=(X, Y)), "training", "no examples"),
    (lambda: from_arrays(X[:1], Y[:1]), "test", "no examples"),
    (lambda: from_arrays([["a"], ["b"]], [0, 1]), "x", "numbers"),
    (lambda: from_arrays(3.0, [0]), "x", "single number"),
    (lambda: from_arrays(X, Y, test_share=1.0), "test_share", "1.0", "between 0 and 1"),
    (lambda: from_arrays(X, Y, ["a", "b"] * 5, test=(X[:1], Y[:1], ["zed"])), "test owner 'zed'"),
    (lambda: from_arrays(X, Y, Y[:, None]), "owner"),
    (lambda: from_arrays(X, Y, ["a", None] * 5), "owner None at row 1"),
    (lambda: from_arrays(X, Y, ["a", 3] * 5), "names ('a') and numbers (3)"),
    (lambda: from_arrays(X, Y, ["a", ""] * 5), "owner '' at row 1"),
    (lambda: from_arrays(X, Y, [0, 1, 2, np.nan, 4] * 2), "owner nan at row 3", "whole number"),
    (lambda: from_arrays(X, Y, np.array([0, 1, 2, 3, -1] * 2)), "owner -1 at row 4"),
    (lambda: from_arrays(X, Y, [0, True] * 5), "owner True at row 1"),
    (lambda: from_arrays(X, Y, [0, 2**64] * 5), "owner 18446744073709551616 at row 1"),
    (lambda: from_arrays(X, Y, Y, test=(X[:2], Y[:2], [0, np.nan])), "(test)", "owner nan at row 1"),
    (lambda: from_arrays(X, Y, Y, test=(X[:2], Y[:2], ["a", "b"])), "test owner 'a'", "no training"),
    (lambda: from_arrays(X, Y, test=X), "test has a ndarray", "(x, y)"),
    (lambda: from_arrays(X, Y, test=(X, Y[:, None])), "training targets have shape ()", "test targets (1,)"),
    (lambda: from_arrays(X, Y, seed=1.5), "seed is 1.5", "whole number"),
    (lambda: owned(np.full(10, np.nan)), "owner is float64", "whole numbers"),
    (lambda: owned([0] * 10, owner_names=np.array([], int)), "owner 0", "0 entries"),
    (lambda: owned([0, 1] * 5, owner_names=np.array(["b", "a"])), "not sorted"),
    (lambda: data.synthetic(beta=np.inf), "beta is inf"),
    (lambda: data.synthetic_iid(inputs=2.5), "inputs is 2.5", "whole number"),
    (lambda: data.blobs(examples=-1), "examples is -1", "at least 1"),
    (lambda: data.blobs(spread=np.nan), "spread is nan"),
    (lambda: data.images(side="8"), "side is '8'", "whole number"),
    (lambda: data.synthetic_iid(clients=10**12), "would take at least", "this machine has"),
    (lambda: data.blobs(10**12), "would take at least", "this machine has"),
    (lambda: data.images(10**12), "would take at least", "this machine has"),
    (lambda: data.faces(people=10**12), "would take at least", "this machine has"),
    (lambda: data.quadratic(clients=10**6), "would take at least", "this machine has"),
    (lambda: from_arrays(X, Y, test=(X, Y, Y)), "test", "owner"),
    (lambda: from_arrays(X, Y, test=(X[:, :2], Y)), "test", "shape"),
    (lambda: owned([0] * 9 + [-1]), "owner", "-1", "row 9"),
    (lambda: data.synthetic(clients=0), "clients is 0", "at least 1"),
    (lambda: data.synthetic(clients=2, cap=1), "cap is 1", "at least 2"),
    (lambda: data.synthetic(clients=2, alpha=-1), "alpha", "-1"),
    (lambda: data.quadratic(clients=0), "clients is 0", "at least 1"),
    (lambda: data.quadratic(block=0), "block is 0", "at least 1"),
)
def test_bad_data_is_refused_by_name_and_row(make, words):
    with refused(*words):
        make()


def owned(owner, **options) -> Dataset:
    x, y = torch.from_numpy(X), torch.from_numpy(Y)
    return Dataset("owned", x, y, x, y, owner=np.array(owner), **options)


# --- sources -------------------------------------------------------------------------


def test_digits_are_1797_images_of_8x8_in_the_unit_interval_with_all_ten_classes():
    made = data.digits(test_share=0.25)
    assert made.x.shape[1:] == made.x_test.shape[1:] == (1, 8, 8)
    assert (len(made.x), len(made.x_test)) == (1797 - 449, 449)
    assert (float(made.x.min()), float(made.x.max())) == (0.0, 1.0)
    assert sorted(made.y.unique().tolist()) == list(range(10))


@pytest.mark.parametrize("source", [data.synthetic, data.synthetic_iid])
def test_synthetic_sets_have_an_owner_per_row_the_right_sizes_and_a_tenth_for_testing(source):
    made = source(clients=12, inputs=7, classes=3, cap=400)
    train, test = np.bincount(made.owner, minlength=12), np.bincount(made.owner_test, minlength=12)
    assert made.x.shape == (train.sum(), 7)
    assert (train >= 45).all()
    assert ((train + test >= 50) & (train + test <= 400)).all()
    assert (train + test == 400).any()
    assert len(set(train)) > 3
    assert (np.abs(test - 0.1 * (train + test)) <= 0.5).all()
    assert set(made.y.tolist()) <= {0, 1, 2}
    assert np.bincount(source(clients=3, cap=2).owner_test, minlength=3).tolist() == [1, 1, 1]


def test_synthetic_inputs_spread_as_beta_between_clients_and_as_a_power_law_within_one():
    clients, inputs, beta = 300, 50, 3.0
    made = data.synthetic(0.0, beta, clients, inputs, cap=50)
    x = made.x.numpy()
    count = np.bincount(made.owner)[:, None]
    mean = np.stack([np.bincount(made.owner, x[:, j]) for j in range(inputs)], axis=1) / count
    assert mean.mean(1).std() == pytest.approx(np.sqrt(beta**2 + 1 / inputs), rel=0.15)
    assert (mean - mean.mean(1, keepdims=True)).std() == pytest.approx(1, rel=0.05)
    within = ((x - mean[made.owner]) ** 2).sum(0) / (len(x) - clients)
    np.testing.assert_allclose(within, np.arange(1, inputs + 1) ** -1.2, rtol=0.1)


def test_synthetic_iid_has_one_labelling_model_and_synthetic_one_per_client():
    def error(made, rows):
        x, y = made.x.numpy()[rows], made.y.numpy()[rows]
        return 1 - LogisticRegression(C=1e4, max_iter=300).fit(x, y).score(x, y)

    shape = {"clients": 6, "inputs": 6, "classes": 3, "cap": 200}
    iid, own = data.synthetic_iid(**shape), data.synthetic(**shape)
    assert error(iid, slice(None)) < 0.02
    assert error(own, slice(None)) > 0.05
    largest = own.owner == np.bincount(own.owner).argmax()
    assert error(own, largest) < 0.02


@pytest.mark.parametrize(
    "source",
    [
        partial(data.synthetic, clients=3),
        partial(data.synthetic_iid, clients=3),
        partial(data.blobs, 50),
        partial(data.images, 20),
        data.digits,
    ],
)
def test_the_same_seed_gives_the_same_data_and_another_seed_other_data(source):
    one, again, other = source(seed=3), source(seed=np.int64(3)), source(seed=4)
    assert torch.equal(one.x, again.x)
    assert torch.equal(one.y_test, again.y_test)
    assert not torch.equal(one.x_test[:1], other.x_test[:1])


def test_blobs_without_spread_are_their_class_centres():
    made = data.blobs(100, inputs=5, classes=3, spread=0.0, test_share=0.25)
    assert (made.x.shape, len(made.x_test)) == ((75, 5), 25)
    assert len(made.x.unique(dim=0)) == len(torch.cat([made.x, made.y[:, None].float()], 1).unique(dim=0)) == 3


def test_images_without_noise_are_one_template_of_flat_patches_per_class():
    made = data.images(40, side=10, channels=2, classes=5, noise=0.0)
    assert made.x.shape == (32, 2, 10, 10)
    templates = made.x.unique(dim=0)
    assert len(templates) == 5
    for start in (0, 3, 6):
        patch = templates[:, :, start : start + 3, start : start + 3]
        assert torch.equal(patch, patch[:, :, :1, :1].expand_as(patch))


def test_quadratic_federation_is_a_tridiagonal_chain_with_the_published_optimum():
    clients, block, curvature = 24, 4, 2e-4
    made = data.quadratic(clients, block)
    size = clients * block + 1
    A, b = made.x[:, :, :-1].sum(0).double().numpy(), made.x[:, :, -1].sum(0).double().numpy()
    np.testing.assert_array_equal(A, 2 * np.eye(size) - np.eye(size, k=1) - np.eye(size, k=-1))
    np.testing.assert_array_equal(b, np.eye(size)[0])

    model = models.Quadratic(size, curvature).double()
    at_zero = model(made.x.double()).mean().item()
    optimum = np.linalg.solve(A + clients * curvature * np.eye(size), b)
    model.load_state_dict({"point": torch.from_numpy(optimum)})
    best = model(made.x.double()).mean()
    assert best.item() == pytest.approx(-0.0194390882, abs=5e-11)
    assert np.log10(at_zero - best.item()) == pytest.approx(-1.7113, abs=5e-5)
    best.backward()
    assert model.point.grad.abs().max() < 1e-14
    assert made.owner.tolist() == list(range(clients))
