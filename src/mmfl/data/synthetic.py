"""Synthetic(alpha, beta) and Synthetic-IID: logistic data with a model and an input cloud of its own per client.

The recipe of Li et al. (FedProx, 2020) as used by Bhuyan et al. 2022: alpha spreads the clients' true models,
beta their inputs.
"""

import numpy as np
from numpy.typing import NDArray

from mmfl.data.dataset import Dataset, from_arrays
from mmfl.errors import UserError
from mmfl.randomness import Purpose, generator


def synthetic(
    alpha: float = 1.0,
    beta: float = 1.0,
    clients: int = 100,
    inputs: int = 60,
    classes: int = 5,
    cap: int | None = None,
    seed: int = 0,
) -> Dataset:
    """Every client k has its own labelling model (spread alpha) and its own input mean (spread beta).

    `cap` bounds the lognormal number of examples per client. 90% train, 10% test, both with owners.
    """
    for name, spread in (("alpha", alpha), ("beta", beta)):
        if not spread >= 0:
            raise UserError(f"data 'synthetic': {name} is {spread}; expected a standard deviation >= 0.")
    if inputs < 1 or classes < 1:
        raise UserError(f"data 'synthetic': inputs={inputs}, classes={classes}; expected both to be at least 1.")
    rng = generator(seed, Purpose.DATA)
    sizes = _sizes(clients, cap, rng)
    owner = np.repeat(np.arange(clients), sizes)
    model_mean = rng.normal(0.0, alpha, clients)
    input_mean = rng.normal(rng.normal(0.0, beta, clients)[:, None], 1.0, (clients, inputs))
    weights = rng.normal(model_mean[:, None, None], 1.0, (clients, inputs, classes))
    bias = rng.normal(model_mean[:, None], 1.0, (clients, classes))
    x = input_mean[owner] + _noise(len(owner), inputs, rng)
    bounds = np.cumsum(sizes)[:-1]
    logits = [part @ w + b for part, w, b in zip(np.split(x, bounds), weights, bias, strict=True)]
    return _dataset(f"synthetic({alpha:g},{beta:g})", x, np.concatenate(logits), owner, seed)


def synthetic_iid(
    clients: int = 100, inputs: int = 60, classes: int = 5, cap: int | None = None, seed: int = 0
) -> Dataset:
    """One labelling model and one input cloud for all clients; only their numbers of examples differ."""
    rng = generator(seed, Purpose.DATA)
    sizes = _sizes(clients, cap, rng)
    owner = np.repeat(np.arange(clients), sizes)
    weights, bias = rng.normal(size=(inputs, classes)), rng.normal(size=classes)
    x = _noise(len(owner), inputs, rng)
    return _dataset("synthetic-iid", x, x @ weights + bias, owner, seed)


def _sizes(clients: int, cap: int | None, rng: np.random.Generator) -> NDArray[np.int64]:
    if clients < 1:
        raise UserError(f"data 'synthetic': clients is {clients}; expected at least 1.")
    if cap is not None and cap < 2:
        raise UserError(f"data 'synthetic': cap is {cap}; expected at least 2 (one example to train on, one to test).")
    sizes = rng.lognormal(4.0, 2.0, clients).astype(np.int64) + 50
    return sizes if cap is None else np.minimum(sizes, cap)


def _noise(rows: int, inputs: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Gaussian inputs whose j-th coordinate has variance j^-1.2."""
    return rng.normal(size=(rows, inputs)) * np.arange(1, inputs + 1) ** -0.6


def _dataset(
    name: str, x: NDArray[np.float64], logits: NDArray[np.float64], owner: NDArray[np.int64], seed: int
) -> Dataset:
    return from_arrays(x, logits.argmax(1), owner, test_share=0.1, name=name, seed=seed)
