"""AggregationRule: turns the updates of one task into its next global weights."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from mmfl.delegation import delegates
from mmfl.errors import UserError
from mmfl.federation import RoundView
from mmfl.privacy import PrivacySpent
from mmfl.updates import Updates
from mmfl.updates.expected_residuals import ExpectedResiduals
from mmfl.updates.store import ClientVectorStore


class AggregationRule:
    """Makes the next global weights of a task. Subclass it, write `aggregate`, and pass the object as a method's part.

    What the rule remembers of a task between rounds is a plain dataclass of arrays: `start` creates it, and `aggregate`
    returns a new one. A rule without memory uses None. `aggregate` is called every round, without rows if nobody was
    drawn. With `needs_everyone` every client trains, and the rule also gets the updates of clients that were not drawn.
    If the norms of these updates and their inner products with last updates (`StoredRows`) are enough, set
    `reads_undrawn = False`: then clients of a deployment need not send them. In asynchronous training a rule that says
    `needs_starts` gets the weights with which each client began, in `updates.sent`, and one that says
    `has_stale_mean` its `stale_mean` of that time.

    A rule whose step is a sum of updates with coefficients that follow from the draw sets `sums_updates = True` and
    says in `coefficients` what they are. Clients can then weight their updates themselves, and the server needs to see
    no more than their sum: `updates.combine` takes these coefficients or multiples of them, and all else is refused.
    """

    needs_everyone: bool = False
    reads_undrawn: bool = True
    sums_updates: bool = False
    needs_starts: bool = False
    has_stale_mean: bool = False

    def start(self, clients: int, weights: Tensor) -> Any:
        """The state of one task before the first round."""
        return None

    def aggregate(self, weights: Tensor, updates: Updates, view: RoundView, state: Any) -> tuple[Tensor, Any]:
        """The next weights [parameters] and the state after this round."""
        raise TypeError(f"{type(self).__name__} does not say how to aggregate.")

    def coefficients(self, updates: Updates, view: RoundView) -> NDArray[np.float64]:
        """What each update counts in the step, [rows], from who was drawn alone; for rules with `sums_updates`.

        If updates are lost on the way, the coefficients of the others may change by a common factor and no more.
        """
        raise TypeError(f"{type(self).__name__} does not say what an update counts.")

    def last_updates(self, state: Any) -> ClientVectorStore | None:
        """The clients' last updates, for rules that compare new ones with them."""
        return None

    def stale_mean(self, view: RoundView, task: int, state: Any) -> Tensor:
        """What the memory contributes to a step before updates correct it, [parameters], for rules that say
        `has_stale_mean`."""
        raise TypeError(f"{type(self).__name__} has no memory that stands for all clients.")

    def residuals(self, updates: Updates, view: RoundView, state: Any) -> NDArray[np.float64]:
        """Norms of what the rule's memory does not explain of each update, [rows]; without memory, of the updates."""
        return updates.norms()

    def expected_residuals(
        self, expected: ExpectedResiduals, view: RoundView, task: int, state: Any
    ) -> NDArray[np.float64]:
        """What these are expected to be for the next update of each client, before the draw, [clients]."""
        return expected.expected(view.round)

    def spent(self, states: Sequence[Any]) -> PrivacySpent | None:
        """What the run has cost each client in privacy so far, given the states of all tasks; None if unknown."""
        return None

    def report(self, view: RoundView, task: int, state: Any) -> Mapping[str, float]:
        """Numbers about the state that a round's record should show."""
        return {}


@delegates(AggregationRule)
class AggregationWrapper(AggregationRule):
    """A rule around another, `inner`, which answers whatever a subclass does not override.

    The state of a subclass has the inner rule's state in its field `inner`; that is what the inner rule is handed.
    """

    def __init__(self, inner: AggregationRule):
        if not isinstance(inner, AggregationRule):
            kind = type(self).__name__.lower()
            raise UserError(f"aggregation '{kind}': inner is {inner!r}; expected an aggregation.")
        self.inner = inner

    def to_inner(self, name: str, value: Any) -> Any:
        """An argument as the inner rule gets it."""
        if name == "states":
            return [state.inner for state in value]
        return value.inner if name == "state" else value
