"""Full participation: the reference, without budget."""

from typing import Any

import numpy as np

from mmfl.allocation.base import Allocation, AllocationRule
from mmfl.federation import RoundView


class Full(AllocationRule):
    """Every client trains every task it has, once."""

    def allocate(self, view: RoundView, state: Any) -> tuple[Allocation, Any]:
        """All pairs that can train; the expected count is 1, so p = 1 / capacity."""
        probabilities = view.able / np.maximum(view.capacity, 1)[:, None]
        return Allocation.of(view.able.astype(np.int64), probabilities, certain=True, beyond_capacity=True), state
