"""The quadratic federation of Bhuyan et al. 2022: strongly convex, with a known optimum, one 'example' per client."""

import numpy as np
import torch

from mmfl.checks import check_memory, check_whole
from mmfl.data.dataset import Dataset


def quadratic(clients: int = 24, block: int = 4) -> Dataset:
    """Client k has the objective F_k(w) = w'A_k w / 2 - b_k'w on a block of a tridiagonal chain, as the row (A_k |
    b_k).

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
