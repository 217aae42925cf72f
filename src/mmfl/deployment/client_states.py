"""ClientStates: what the clients of a node keep for themselves between trainings, and never send."""

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from mmfl.runs.files import write_atomically


class ClientStates:
    """Vectors of every client and task of a node that has trained in the server's run, by kind: local batch norm
    (scales, shifts and statistics) and the state of optimisers.

    They are kept in a file of `folder`, if there is one, so that they outlive the process.
    """

    def __init__(self, folder: Path | None):
        self._path = None if folder is None else folder / "client_states.safetensors"
        self._run = ""
        self._vectors: dict[tuple[str, int, str], Tensor] = {}  # by kind, client and task
        if self._path is not None and self._path.exists():
            with safe_open(self._path, "pt") as file:
                self._run = (file.metadata() or {}).get("run", "")
                for key in file.keys():  # noqa: SIM118  # it is no mapping
                    kind, client, name = key.split(".", 2)
                    self._vectors[kind, int(client), name] = file.get_tensor(key)

    def of(self, kind: str, name: str, client: NDArray[np.int64], initial: Tensor, run: str) -> Tensor:
        """What these clients of a task have, a row each: `initial` before their first training in a run."""
        if run != self._run:
            self._run, self._vectors = run, {}
        if not len(client):
            return initial[None]
        return torch.stack([self._vectors.get((kind, i, name), initial).to(initial) for i in client.tolist()])

    def put(self, kind: str, name: str, client: NDArray[np.int64], rows: Tensor) -> None:
        """Keeps a row of each of these clients, in place of what it had."""
        for i, row in zip(client.tolist(), rows.cpu(), strict=True):
            self._vectors[kind, i, name] = row.clone()

    def save(self) -> None:
        """Writes them to the file."""
        if self._path is not None and self._vectors:
            vectors = {f"{kind}.{client}.{name}": vector for (kind, client, name), vector in self._vectors.items()}
            write_atomically(self._path, save(vectors, {"run": self._run}))
