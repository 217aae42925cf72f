"""Drawing who trains what from given probabilities."""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from mmfl.federation import RoundView
from mmfl.randomness import Purpose


class Draw(Protocol):
    """Turns probabilities p[i, s] of one processor of client i taking task s into counts [clients, tasks]."""

    def __call__(self, probabilities: NDArray[np.float64], view: RoundView) -> NDArray[np.int64]:
        """How many processors of each client train each task; on average capacity * probabilities."""
        ...


def independent(probabilities: NDArray[np.float64], view: RoundView) -> NDArray[np.int64]:
    """Each processor takes task s with probability p[i, s], none with the rest, whatever the others do."""
    upper = np.cumsum(probabilities, axis=1)
    lower = np.hstack([np.zeros((len(upper), 1)), upper[:, :-1]])
    count = np.zeros(probabilities.shape, dtype=np.int64)
    chance = view.uniform(Purpose.TASKS, columns=int(view.capacity.max(initial=0)))
    for processor in range(chance.shape[1]):
        u = chance[:, processor, None]
        takes = (u < upper) & (u >= lower)
        count += takes & (processor < view.capacity)[:, None]
    return count
