"""Round: one round of one replica, step by step."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from mmfl.allocation import Allocation
from mmfl.engine import Evaluation, Training, Workload
from mmfl.federation import Federation, RoundView
from mmfl.training.clock import TimedRound
from mmfl.training.diagnostics import update_variance
from mmfl.training.replica import Replica
from mmfl.training.rule_checks import check_aggregation, check_allocation, check_finite, check_signals, check_state
from mmfl.updates import Trained, Updates
from mmfl.updates.batch_norm import LocalBatchNorm
from mmfl.updates.expected_residuals import by_pair
from mmfl.updates.partial_sum import add_up


@dataclass(frozen=True)
class Outcome:
    """What is known of a task's updates once they have gone into the weights: those drawn, how many of them were
    rejected, and the variance of the sampled update where every update is known."""

    drawn: Updates
    rejected: int
    variance: float | None


@dataclass(frozen=True)
class RoundTests:
    """What the tests of a round found, by task: of the current weights, and of the averaged ones where there are such.
    Nothing in a round that is not tested."""

    current: Mapping[int, Evaluation] = field(default_factory=dict)
    average: Mapping[int, Evaluation] = field(default_factory=dict)


@dataclass(eq=False)
class Round:
    """A round of one replica under way, with what is known of it so far.

    `given` is what a task's new weights were made of, until these are known to be finite: its weights, and the largest
    sum of an update. `arrived` is the part of the allocation whose updates are there when the round ends: all of it,
    unless the clients' devices take `timed` rounds.
    """

    replica: Replica
    view: RoundView
    asked: Mapping[str, NDArray[np.bool_]]
    allocation: Allocation = field(init=False)
    timed: TimedRound | None = None
    arrived: Allocation = field(init=False)
    decided: bool = False
    given: dict[int, tuple[Tensor, float]] = field(default_factory=dict)
    outcomes: dict[int, Outcome] = field(default_factory=dict)

    @classmethod
    def begin(cls, replica: Replica, round: int) -> "Round":
        """Who is there, and what must be measured before the decision: signals, by name, of pairs [clients, tasks].

        The local rule's memory follows who is there.
        """
        method, state, timed = replica.method, replica.state, None
        if state.clock is None:
            view = replica.view(round)
        else:
            timed, view = replica.timed_round(round, state.clock)
        asked = method.allocation.asks(view, state.allocation)
        check_signals(method.name, method.allocation, asked, view)
        for s, memory in enumerate(state.local):
            if memory is not None:
                state.local[s] = method.local.begin(view, s, memory)
        return cls(replica, view, dict(asked), timed)

    @property
    def federation(self) -> Federation:
        """The federation of the replica."""
        return self.replica.federation

    @property
    def weights(self) -> Sequence[Tensor]:
        """The global weights of each task."""
        return self.replica.state.weights

    @property
    def trained_anyway(self) -> NDArray[np.bool_] | None:
        """The pairs that train whether drawn or not: the decision rests on their updates, or the aggregation takes all
        updates. None where nobody does."""
        marks = [self.asked[name] for name in ("updates", "norms", "residuals") if name in self.asked]
        if self.replica.method.aggregation.needs_everyone:
            marks.append(self.view.able)
        return np.logical_or.reduce(marks) if marks else None

    @property
    def decides_by_updates(self) -> bool:
        """Whether the allocation asked for updates, or what only they tell."""
        return not {"updates", "norms", "residuals"}.isdisjoint(self.asked)

    def view_of(self, task: int) -> RoundView:
        """The view that the aggregation of a task gets."""
        return self.view

    def workload(self, task: int, client: NDArray[np.int64]) -> Workload:
        """Clients of a task, to be measured at the global weights."""
        batch_norm = self.replica.state.batch_norm[task]
        own = None if batch_norm is None else batch_norm.of(client)
        return Workload(self.federation, task, self.weights[task], client, batch_norm=own)

    def test(self, task: int) -> Workload:
        """A task to be tested: with the batch norm of every client, where it and the test examples are theirs."""
        batch_norm, shards = self.replica.state.batch_norm[task], self.federation.test_shards[task]
        client, own = np.zeros(0, dtype=np.int64), None if batch_norm is None else batch_norm.mean()[None]
        if isinstance(batch_norm, LocalBatchNorm) and shards is not None:
            client = np.flatnonzero(shards.sizes)
            own = batch_norm.of_all(client)
        return Workload(self.federation, task, self.weights[task], client, batch_norm=own)

    def test_average(self, current: Workload) -> Workload | None:
        """The same test with averaged weights; None where they are not averaged. Batch norm that is the clients' own is
        not averaged."""
        average, task = self.replica.state.average, current.task
        if average is None:
            return None
        statistics = average.statistics(task)
        batch_norm = current.batch_norm if statistics is None else statistics[None]
        return replace(current, weights=average.weights[task].value(), batch_norm=batch_norm)

    def training(self, task: int, client: NDArray[np.int64]) -> Training:
        """The request to train some clients on a task."""
        replica, local, rule = self.replica, self.replica.method.local, self.replica.method.aggregation
        state = replica.state
        correction = local.correction(client, state.local[task]) if len(client) else None
        compared = rule.needs_everyone or "residuals" in self.asked
        batch_norm, optimiser = state.batch_norm[task], state.optimiser[task]
        return Training(
            replica.federation,
            task,
            state.weights[task],
            client,
            self.view.round,
            replica.seed,
            local,
            correction,
            self._sends(task, client),
            rule.last_updates(state.aggregation[task]) if compared else None,
            None if optimiser is None else optimiser.held_rows(client),
            coefficients=self._coefficients(task, client),
            batch_norm=None if batch_norm is None else batch_norm.of(client),
        )

    def returned_values(self, task: int) -> int:
        """How many numbers a client's training of a task returns: the update, and the optimiser's state if kept."""
        optimiser = self.replica.state.optimiser[task]
        return len(self.weights[task]) + (0 if optimiser is None else optimiser.length)

    def _sends(self, task: int, client: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of these clients' updates of a task are needed as vectors: of those drawn, once that is decided."""
        rule = self.replica.method.aggregation
        if rule.needs_everyone and rule.reads_undrawn:
            return np.ones(len(client), dtype=bool)
        if not self.decided:
            return np.full(len(client), "updates" in self.asked)
        return np.isin(client, self.arrived.drawn_clients(task))

    def _coefficients(self, task: int, client: NDArray[np.int64]) -> NDArray[np.float64] | None:
        """What these clients' updates will count in the step; None where that is not known before they arrive."""
        rule = self.replica.method.aggregation
        if not self.decided or not rule.sums_updates or not len(client):
            return None
        return rule.coefficients(Updates.planned(task, client, self.weights[task], self.allocation), self.view)

    def allocate(self, trained: Mapping[int, Trained]) -> None:
        """Who trains what, given the updates that the decision rests on, by task. Those that were lost on the way here
        are not counted on."""
        method, state = self.replica.method, self.replica.state
        self.view = self.federation.without_lost_clients(self.view)
        if self.timed is not None:
            self.view = self.timed.measure(self.view, self.asked.get("losses"))
        updates = [Updates.of(s, returned) for s, returned in trained.items()]
        if "norms" in self.asked:
            self.view = self.view.with_signals(norms=self._by_pair(updates, [each.norms() for each in updates]))
        if "residuals" in self.asked:
            rule, memory = method.aggregation, state.aggregation
            residuals = [rule.residuals(each, self.view, memory[each.task]) for each in updates]
            self.view = self.view.with_signals(residuals=self._by_pair(updates, residuals))
        if "expected_residuals" in self.asked:
            self.view = self.view.with_signals(expected_residuals=self._expected_residuals())
        decided = method.allocation.allocate(self.view, state.allocation)
        check_allocation(method.name, method.allocation, decided, self.view, state.allocation)
        self.allocation, state.allocation = decided
        self.arrived = self.allocation
        if self.timed is not None:
            self.arrived = self.timed.end(self.allocation, self.trained_anyway, self.view)
        self.decided = True

    def aggregate(self, task: int, trained: Trained, finite: NDArray[np.bool_], largest: float) -> None:
        """The next global weights of a task, given which of the updates in this process are finite, and the largest sum
        of one of these; clients whose update is not finite count as absent."""
        completion = None
        if self.timed is not None:
            completion = self.timed.completion(self.allocation, trained.client, task)
        updates = Updates.of(task, trained, self.arrived, completion)
        returned = updates.valid(finite)
        received = returned if self.timed is None else self.timed.join(task, returned)
        asked = int((updates.count > 0).sum())
        rejected = asked - int((returned.count > 0).sum())
        drawn = self.step(received, asked if rejected == asked else 0, largest, returned)
        self.outcomes[task] = Outcome(drawn, rejected, update_variance(self.view, self.allocation, received))

    def step(self, received: Updates, asked: int, largest: float, returned: Updates | None = None) -> Updates:
        """The next global weights of a task, given the updates that are finite; returns those that were drawn, without
        their rows, of `asked` for. `returned` are those that were trained for this, where late ones are among them."""
        method, state, task = self.replica.method, self.replica.state, received.task
        view, returned = self.view_of(task), received if returned is None else returned
        taken = received if method.aggregation.needs_everyone else received.drawn()
        weights, memory, name = state.weights[task], state.aggregation[task], self.replica.federation.tasks[task].name
        expected, remembered = state.expected[task], method.aggregation.last_updates(memory)
        if expected is not None and remembered is not None:
            expected.observe(received.drawn(), remembered, view.round)
        aggregated = add_up(method.aggregation.aggregate(weights, taken, view, memory))
        check_aggregation(method.name, method.aggregation, aggregated, name, view.round, weights, memory)
        state.weights[task], state.aggregation[task] = aggregated
        self.given[task] = (weights, largest)
        if state.local[task] is not None:
            drawn = taken.drawn()
            rates = self.replica.federation.tasks[task].rate_sums(view.round, drawn.steps)
            observed = add_up(method.local.observe(drawn, rates, view, state.local[task]))
            check_state(method.name, method.local, "observe", view.round, state.local[task], observed)
            state.local[task] = observed
        if (batch_norm := state.batch_norm[task]) is not None:
            batch_norm.observe(returned, view.sizes_of(task))
        if (optimiser := state.optimiser[task]) is not None and returned.optimiser_state is not None:
            optimiser.put(returned.client, returned.optimiser_state)  # of those not drawn too: they did train
        drawn = received.without_rows().drawn()
        if asked and not len(drawn):
            self.replica.warn_of_rejected(task, view.round, asked)
        return drawn

    def end(self) -> None:
        """Tells the allocation the losses that were seen in training."""
        method, state = self.replica.method, self.replica.state
        state.round = self.view.round
        if self.timed is not None:
            self.timed.finish()
        if not method.allocation.observes_losses:
            return
        losses = np.full(self.view.sizes.shape, np.nan)
        for s, outcome in self.outcomes.items():
            losses[outcome.drawn.client, s] = outcome.drawn.loss
        observed = method.allocation.observe(losses, self.view, state.allocation)
        check_state(method.name, method.allocation, "observe", self.view.round, state.allocation, observed)
        state.allocation = observed

    def check_weights(self) -> None:
        """Makes sure that the aggregation gave finite weights."""
        method, state, tasks = self.replica.method, self.replica.state, self.federation.task_names
        for s, given in self.given.items():
            check_finite(method.name, method.aggregation, tasks[s], self.view.round, state.weights[s], *given)

    def _expected_residuals(self) -> NDArray[np.float64]:
        """What the memory of past updates is expected to leave unexplained, [clients, tasks]."""
        rule, state, view = self.replica.method.aggregation, self.replica.state, self.view
        residuals = [
            rule.expected_residuals(each, self.view_of(task), task, memory)
            for task, (each, memory) in enumerate(zip(state.expected, state.aggregation, strict=True))
            if each is not None
        ]
        return by_pair(residuals, view)

    def _by_pair(self, updates: Sequence[Updates], numbers: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
        """A number for every update, as a table [clients, tasks]."""
        table = np.zeros(self.view.sizes.shape)
        for each, column in zip(updates, numbers, strict=True):
            table[each.client, each.task] = column
        return table
