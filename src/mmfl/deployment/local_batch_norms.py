"""LocalBatchNorms: the batch norm of a node's clients, where it stays with them."""

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from mmfl.deployment.payload import Pair
from mmfl.runs.files import write_atomically


class LocalBatchNorms:
    """Scales, shifts and statistics of every client and task of a node that has trained in the server's run.

    They are kept in a file of `folder`, if there is one, so that they outlive the process.
    """

    def __init__(self, folder: Path | None):
        self._path = None if folder is None else folder / "batch_norm.safetensors"
        self._run = ""
        self.values: dict[Pair, Tensor] = {}
        if self._path is not None and self._path.exists():
            with safe_open(self._path, "pt") as file:
                self._run = (file.metadata() or {}).get("run", "")
                for key in file.keys():  # noqa: SIM118  # it is no mapping
                    client, _, name = key.partition(".")
                    self.values[name, int(client)] = file.get_tensor(key)

    def of(self, name: str, client: NDArray[np.int64], initial: Tensor, run: str) -> Tensor:
        """What these clients have, a row each: `initial` before their first training in a run."""
        if run != self._run:
            self._run, self.values = run, {}
        if not len(client):
            return initial[None]
        return torch.stack([self.values.get((name, i), initial).to(initial) for i in client.tolist()])

    def save(self) -> None:
        """Writes them to the file."""
        if self._path is not None and self.values:
            vectors = {f"{client}.{name}": values for (name, client), values in self.values.items()}
            write_atomically(self._path, save(vectors, {"run": self._run}))
