"""AggregationRule: turns the updates of one task into its next global weights."""

from typing import Any

from torch import Tensor

from mmfl.federation import RoundView
from mmfl.updates import Updates


class AggregationRule:
    """Makes the next global weights of a task. Subclass it, write `aggregate`, and pass the object as a method's part.

    What the rule must remember between rounds, per task, is the plain dataclass of arrays that `start` makes and
    `aggregate` returns renewed; without memory it is None. It is called every round, with no rows where nobody was
    drawn.
    """

    def start(self, clients: int, weights: Tensor) -> Any:
        """The state of one task before the first round."""
        return None

    def aggregate(self, weights: Tensor, updates: Updates, view: RoundView, state: Any) -> tuple[Tensor, Any]:
        """The next weights [parameters] and the state after this round."""
        raise TypeError(f"{type(self).__name__} does not say how to aggregate.")
