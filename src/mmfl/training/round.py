"""Round: one round of one replica, step by step."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from mmfl.allocation import Allocation
from mmfl.engine import Training
from mmfl.federation import RoundView
from mmfl.training.diagnostics import update_variance
from mmfl.training.replica import Replica
from mmfl.training.rule_checks import check_aggregation, check_allocation, check_signals, check_state
from mmfl.updates import Trained, Updates


@dataclass(frozen=True)
class Outcome:
    """What is known of a task's updates once they have gone into the weights: those drawn, how many of them were
    rejected, and the variance of the sampled update where every update is known."""

    drawn: Updates
    rejected: int
    variance: float | None


@dataclass(eq=False)
class Round:
    """A round of one replica under way, with what is known of it so far.

    `trained` holds the updates of tasks that have not gone into their weights yet, `given` what a task's new weights
    were made of, until these are known to be finite: its weights, and the largest sum of an update. An engine that is
    `eager` has those that train in any case do so before the draw.
    """

    replica: Replica
    view: RoundView
    asked: Mapping[str, NDArray[np.bool_]]
    allocation: Allocation = field(init=False)
    decided: bool = False
    eager: bool = False
    trained: dict[int, Trained] = field(default_factory=dict)
    given: dict[int, tuple[Tensor, float]] = field(default_factory=dict)
    outcomes: dict[int, Outcome] = field(default_factory=dict)

    @classmethod
    def begin(cls, replica: Replica, round: int, eager: bool = False) -> "Round":
        """Who is there, and what must be measured before the decision: signals, by name, of pairs [clients, tasks]."""
        view, rule = replica.view(round), replica.method.allocation
        asked = rule.asks(view, replica.state.allocation)
        check_signals(replica.method.name, rule, asked, view)
        return cls(replica, view, dict(asked), eager=eager)

    def prepare(self) -> None:
        """Lets the local rule's memory follow who is there."""
        local, memory = self.replica.method.local, self.replica.state.local
        for s, state in enumerate(memory):
            if state is not None:
                memory[s] = local.begin(self.view, s, state)

    @property
    def early(self) -> NDArray[np.bool_] | None:
        """The pairs that train before the decision, because it rests on their updates or they train in any case; None
        where nobody does."""
        masks = [self.asked[name] for name in ("updates", "norms", "residuals") if name in self.asked]
        if (masks or self.eager) and self.replica.method.aggregation.needs_everyone:
            masks.append(self.view.able)
        return np.logical_or.reduce(masks) if masks else None

    @property
    def late(self) -> NDArray[np.bool_]:
        """The pairs that train after the decision: those that were drawn, or all where the aggregation takes all."""
        if self.early is not None:
            return np.zeros_like(self.view.able)
        if self.replica.method.aggregation.needs_everyone:
            return self.view.able
        return self.drawn

    @property
    def undrawn(self) -> NDArray[np.bool_] | None:
        """The pairs that train whether drawn or not; None where nobody does."""
        return self.view.able if self.early is None and self.replica.method.aggregation.needs_everyone else self.early

    def training(self, task: int, client: NDArray[np.int64]) -> Training:
        """The request to train some clients on a task."""
        replica, local, rule = self.replica, self.replica.method.local, self.replica.method.aggregation
        state = replica.state
        correction = local.correction(client, state.local[task]) if len(client) else None
        compared = rule.needs_everyone or "residuals" in self.asked
        return Training(
            replica.federation,
            task,
            state.weights[task],
            client,
            self.view.round,
            replica.seed,
            local,
            correction,
            self.sending(task)[client],
            rule.remembered(state.aggregation[task]) if compared else None,
        )

    def sending(self, task: int) -> NDArray[np.bool_]:
        """Whose updates of a task are needed as vectors: of those drawn, once that is decided, [clients]."""
        rule = self.replica.method.aggregation
        if rule.needs_everyone and rule.reads_undrawn:
            return np.ones(len(self.view.sizes), dtype=bool)
        return self.drawn[:, task] if self.decided else np.full(len(self.view.sizes), "updates" in self.asked)

    @property
    def drawn(self) -> NDArray[np.bool_]:
        """The pairs that were drawn."""
        drawn = np.zeros(self.view.sizes.shape, dtype=bool)
        drawn[self.allocation.client, self.allocation.task] = True
        return drawn

    def allocate(self) -> None:
        """Who trains what; those that were lost on the way here are not counted on."""
        method, state = self.replica.method, self.replica.state
        self.view = self.replica.federation.without_lost_clients(self.view)
        if "norms" in self.asked:
            self.view = self.view.with_signals(norms=self._sizes(lambda updates: updates.norms()))
        if "residuals" in self.asked:
            rule, memory = method.aggregation, state.aggregation
            residuals = self._sizes(lambda updates: rule.residuals(updates, self.view, memory[updates.task]))
            self.view = self.view.with_signals(residuals=residuals)
        decided = method.allocation.allocate(self.view, state.allocation)
        check_allocation(method.name, method.allocation, decided, self.view, state.allocation)
        self.allocation, state.allocation = decided
        self.decided = True

    def aggregate(self, task: int, finite: NDArray[np.bool_], largest: float) -> None:
        """The next global weights of a task, whose updates are let go of; some of their rows are `finite`, and no sum
        of one is beyond `largest`."""
        method, state, view = self.replica.method, self.replica.state, self.view
        returned = Updates.of(task, self.trained.pop(task), self.allocation)
        received = returned.valid(finite)
        taken = received if method.aggregation.needs_everyone else received.drawn()
        weights, memory, name = state.weights[task], state.aggregation[task], self.replica.federation.tasks[task].name
        aggregated = method.aggregation.aggregate(weights, taken, view, memory)
        check_aggregation(method.name, method.aggregation, aggregated, name, view.round, weights, memory)
        state.weights[task], state.aggregation[task] = aggregated
        self.given[task] = (weights, largest)
        if state.local[task] is not None:
            rate = self.replica.federation.tasks[task].learning_rate(view.round)
            observed = method.local.observe(taken.drawn(), rate, view, state.local[task])
            check_state(method.name, method.local, "observe", view.round, state.local[task], observed)
            state.local[task] = observed
        drawn = received.without_rows().drawn()
        rejected = int((returned.count > 0).sum()) - len(drawn)
        variance = update_variance(view, self.allocation, received)
        self.outcomes[task] = Outcome(drawn, rejected, variance)

    def end(self) -> None:
        """The allocation learns of the losses that were seen in training."""
        losses = np.full(self.view.sizes.shape, np.nan)
        for s, outcome in self.outcomes.items():
            losses[outcome.drawn.client, s] = outcome.drawn.loss
        method, state = self.replica.method, self.replica.state
        observed = method.allocation.observe(losses, self.view, state.allocation)
        check_state(method.name, method.allocation, "observe", self.view.round, state.allocation, observed)
        state.allocation = observed
        state.round = self.view.round

    def _sizes(self, size: Callable[[Updates], NDArray[np.float64]]) -> NDArray[np.float64]:
        """A number for every update that came before the decision, [clients, tasks]."""
        sizes = np.zeros(self.view.sizes.shape)
        for s, trained in self.trained.items():
            sizes[trained.client, s] = size(Updates.undrawn(s, trained))
        return sizes
