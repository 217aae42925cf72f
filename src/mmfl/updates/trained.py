"""Trained: what an engine returns of local trainings."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from mmfl.updates.rows import ClientRows
from mmfl.updates.world import SINGLE_PROCESS, World


@dataclass(frozen=True, eq=False)
class Trained:
    """Local updates [rows, parameters] (start minus end), the mean loss seen on the way and the steps taken, [rows].

    Row n belongs to `client[n]`: an engine may return the clients in another order than they were given, and leave out
    those that failed. Where several processes share a run, `client`, `loss` and `steps` are those of all of them, and
    `flat` has the rows `here` alone. So it is where clients keep updates that nobody needs: then `norm` and `inner` are
    what they say of all rows, ||G|| and `<G, h>`.
    """

    client: NDArray[np.int64]
    flat: Tensor
    loss: NDArray[np.float64]
    steps: NDArray[np.int64]
    here: NDArray[np.int64] | None = None
    world: World = SINGLE_PROCESS
    norm: NDArray[np.float64] | None = None
    inner: NDArray[np.float64] | None = None

    @property
    def client_rows(self) -> ClientRows:
        """The updates, wherever they are."""
        return ClientRows(self.flat, self.here, len(self.client), self.world, self.norm, self.inner)
