"""The generated federations of Bhuyan et al. 2022.

Synthetic(alpha, beta), also of Li et al. (FedProx, 2020), and Synthetic-IID are logistic data: alpha is the spread of
the clients' true models, beta that of their inputs. The quadratic federation is strongly convex with a known optimum.
"""

import numpy as np
import torch
from numpy.typing import NDArray

from mmfl.checks import check, check_memory, check_whole, is_number, is_whole
from mmfl.data.dataset import Dataset, from_arrays
from mmfl.randomness import Purpose, generator

_WHERE = "data 'synthetic'"
_MIN_EXAMPLES = 50  # of a client, unless the cap is lower


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

    `cap` limits the lognormal number of examples per client. 90% are for training, 10% for testing, both with owners.
    """
    for name, spread in (("alpha", alpha), ("beta", beta)):
        check(is_number(spread, 0, np.inf), _WHERE, name, spread, "a standard deviation >= 0")
    rng = generator(seed, Purpose.DATA)
    sizes = _sizes(clients, inputs, classes, cap, rng)
    check_memory(f"{_WHERE} of {clients} clients", 8.0 * clients * inputs * classes)
    owner = np.repeat(np.arange(clients), sizes)
    model_mean = rng.normal(0.0, alpha, clients)
    input_mean = rng.normal(rng.normal(0.0, beta, clients)[:, None], 1.0, (clients, inputs))
    weights = rng.normal(model_mean[:, None, None], 1.0, (clients, inputs, classes))
    bias = rng.normal(model_mean[:, None], 1.0, (clients, classes))
    x = input_mean[owner] + _noise(len(owner), inputs, rng)
    bounds = np.cumsum(sizes)[:-1]
    logits = [part @ w + b for part, w, b in zip(np.split(x, bounds), weights, bias, strict=True)]
    y, name = np.concatenate(logits).argmax(1), f"synthetic({alpha:g},{beta:g})"
    return from_arrays(x, y, owner, test_share=0.1, name=name, seed=seed)


def synthetic_iid(
    clients: int = 100, inputs: int = 60, classes: int = 5, cap: int | None = None, seed: int = 0
) -> Dataset:
    """The same labelling model and input distribution for all clients; only their numbers of examples differ."""
    rng = generator(seed, Purpose.DATA)
    sizes = _sizes(clients, inputs, classes, cap, rng)
    owner = np.repeat(np.arange(clients), sizes)
    weights, bias = rng.normal(size=(inputs, classes)), rng.normal(size=classes)
    x = _noise(len(owner), inputs, rng)
    y = (x @ weights + bias).argmax(1)
    return from_arrays(x, y, owner, test_share=0.1, name="synthetic-iid", seed=seed)


def _sizes(clients: int, inputs: int, classes: int, cap: int | None, rng: np.random.Generator) -> NDArray[np.int64]:
    for name, value in (("clients", clients), ("inputs", inputs), ("classes", classes)):
        check_whole(_WHERE, name, value)
    if cap is not None:
        check(is_whole(cap, 2), _WHERE, "cap", cap, "at least 2 (one example to train on, one to test)")
    check_memory(
        f"{_WHERE} of {clients} clients",
        8.0 * clients * inputs * (_MIN_EXAMPLES if cap is None else min(cap, _MIN_EXAMPLES)),
    )
    sizes = rng.lognormal(4.0, 2.0, clients).astype(np.int64) + _MIN_EXAMPLES
    return sizes if cap is None else np.minimum(sizes, cap)


def _noise(rows: int, inputs: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Gaussian inputs whose j-th coordinate has variance j^-1.2."""
    return rng.normal(size=(rows, inputs)) * np.arange(1, inputs + 1) ** -0.6


def quadratic(clients: int = 24, block: int = 4) -> Dataset:
    """Client k's one example is the row (A_k | b_k) of F_k(w) = w'A_k w / 2 - b_k'w on a block of a tridiagonal chain.

    The sum of the A_k is tridiag(-1, 2, -1) of size clients * block + 1. Train it with `models.Quadratic` and the
    loss `value`; the mean over clients is the global objective, and so is the value on the (shared) test set.
    """
    for name, value in (("clients", clients), ("block", block)):
        check_whole("data 'quadratic'", name, value)
    size = clients * block + 1
    check_memory(f"data 'quadratic' of {clients} clients", 4.0 * clients * size**2)
    rows = np.zeros((clients, size, size + 1), dtype=np.float32)
    chain = 2 * np.eye(block + 1) - np.eye(block + 1, k=1) - np.eye(block + 1, k=-1)
    chain[0, 0] = chain[-1, -1] = 1.0
    for client in range(clients):
        rows_of_block = slice(client * block, (client + 1) * block + 1)
        rows[client, rows_of_block, rows_of_block] = chain
    rows[0, 0, 0] += 1.0
    rows[-1, -1, size - 1] += 1.0
    rows[0, 0, -1] = 1.0
    x, y = torch.from_numpy(rows), torch.zeros(clients)
    return Dataset("quadratic", x, y, x, y, owner=np.arange(clients))
