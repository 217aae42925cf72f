"""The round loop: Algorithm 1 of Zhang et al. 2025, for one replica or many in lockstep."""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils import get_total_norm

from mmfl.allocation import Allocation
from mmfl.engine import Engine, Evaluation, Training, Workload
from mmfl.errors import UserError
from mmfl.federation import Federation, RoundView
from mmfl.federation.objectives import lower_is_better
from mmfl.methods import Method
from mmfl.training.diagnostics import (
    Tally,
    loss_variance,
    memory_of,
    probability_quantiles,
    round_cost,
    step_size,
    update_variance,
)
from mmfl.training.rule_checks import check_aggregation, check_allocation, check_finite, check_signals, check_state
from mmfl.updates import Trained
from mmfl.updates.updates import Updates, finite_rows, row_sums
from mmfl.updates.world import World

Record = dict[str, Any]
Wanted = tuple["Round", int, NDArray[np.bool_]]
"""A replica's round, a task, and marks on the clients that are to train it."""


@dataclass
class TrainingState:
    """All that a replica remembers from round to round; a checkpoint is this and nothing else."""

    round: int
    weights: list[Tensor]
    allocation: Any
    aggregation: list[Any]
    local: list[Any]
    tally: Tally

    @property
    def memories(self) -> list[Any]:
        """What the method remembers of clients."""
        return [self.aggregation, self.local]


@dataclass(eq=False)
class Replica:
    """One method with one seed on one federation. Replicas share nothing but the engine that runs them."""

    federation: Federation
    method: Method
    seed: int
    rate: float
    state: TrainingState

    @classmethod
    def start(cls, federation: Federation, method: Method, seed: int, rate: float, engine: Engine) -> "Replica":
        """A replica before its first round."""
        clients, tasks = federation.clients, len(federation.tasks)
        weights = [engine.initial(federation, s, seed) for s in range(tasks)]
        state = TrainingState(
            0,
            weights,
            method.allocation.start(clients, tasks),
            [method.aggregation.start(clients, w) for w in weights],
            [method.local.start(clients, w) for w in weights],
            Tally.start(clients, tasks),
        )
        return cls(federation, method, seed, rate, state)

    def view(self, round: int) -> RoundView:
        """Who is there, how much data, what capacity."""
        return self.federation.view(round, rate=self.rate, seed=self.seed)


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

    def prepare(self, world: World) -> None:
        """Lets the local rule's memory follow who is there."""
        local, memory = self.replica.method.local, self.replica.state.local
        for s, state in enumerate(memory):
            if state is not None:
                memory[s] = local.begin(self.view, s, state, world)

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


def rounds(
    replicas: Sequence[Replica],
    engine: Engine,
    last: int,
    evaluate_every: int = 1,
    evaluate_last: int = 1,
    diagnose: bool = False,
) -> Iterator[list[Record]]:
    """One federated round after another, all replicas in lockstep; yields what happened, a record per replica.

    Tests every so many rounds, and after each of the last ones.
    """
    for t in range(replicas[0].state.round + 1, last + 1):
        begun = time.perf_counter()
        current = [Round.begin(replica, t, engine.eager) for replica in replicas]
        for each in current:
            each.prepare(engine.world)
        train(engine, requests(current, [each.early for each in current]))
        measure(engine, current, diagnose)
        for each in current:
            each.allocate()
        collect(engine, current)
        for portion in portions(engine, requests(current, [each.late for each in current])):
            train(engine, [(each, s, clients) for each, s, clients in portion if s not in each.trained])
            updates = [each.trained[s].flat for each, s, _ in portion]
            sums = row_sums(updates)
            finite = finite_rows(updates, sums)
            del updates
            for (each, s, _), total, good in zip(portion, sums, finite, strict=True):
                each.aggregate(s, good, float(np.abs(total[good]).max(initial=0.0)))
        for each in current:
            each.end()
        largest = get_total_norm([weights for each in current for weights in each.replica.state.weights], math.inf)
        agree(engine.world, replicas)
        due = t % evaluate_every == 0 or t > last - evaluate_last
        tested = evaluate(engine, replicas, t) if due else [{} for _ in replicas]
        failed = engine.faults()
        faults: Record = {"faults": failed} if failed else {}
        seconds = (time.perf_counter() - begun) / len(replicas)
        stored = engine.world.sums(np.array([float(memory_of(replica.state.memories)) for replica in replicas]))
        records = [
            record(each, tests, seconds, int(held)) | faults
            for each, tests, held in zip(current, tested, stored, strict=True)
        ]
        check_weights(current, largest)  # here, so that the device need not be waited for
        yield records


def requests(current: Sequence[Round], masks: Sequence[NDArray[np.bool_] | None]) -> list[Wanted]:
    """Every replica's round with every task and the clients that are to train it, by marks on [clients, tasks]."""
    return [
        (each, s, mask[:, s])
        for each, mask in zip(current, masks, strict=True)
        if mask is not None
        for s in range(mask.shape[1])
    ]


def portions(engine: Engine, wanted: Sequence[Wanted]) -> Iterator[list[Wanted]]:
    """Requests in their order, as many at a time as there is room for the updates of: then they are trained together,
    and gone before the next."""
    held = 0
    portion: list[Wanted] = []
    for each, s, clients in wanted:
        size = 4 * int(clients.sum()) * len(each.replica.state.weights[s]) // engine.world.size
        if portion and held + size > engine.room:
            yield portion
            held, portion = 0, []
        held += size
        portion.append((each, s, clients))
    yield portion


def check_weights(current: Sequence[Round], largest: Tensor) -> None:
    """Makes sure that the aggregations gave finite weights, given the largest of them all."""
    if math.isfinite(largest):
        return
    for each in current:
        method, state, tasks = each.replica.method, each.replica.state, each.replica.federation.task_names
        for s, given in each.given.items():
            check_finite(method.name, method.aggregation, tasks[s], each.view.round, state.weights[s], *given)


def agree(world: World, replicas: Sequence[Replica]) -> None:
    """Makes sure that all processes have the same weights: an aggregation that reads `updates.flat` for all there is
    would give each its own."""
    if world.size == 1:
        return
    pairs = [(replica.method, weights) for replica in replicas for weights in replica.state.weights]
    mine = np.array([float(torch.nan_to_num(weights).double().sum()) for _, weights in pairs])
    mean = world.sums(mine) / world.size
    apart = world.sums((np.abs(mine - mean) > 1e-9 * np.maximum(np.abs(mean), 1)).astype(np.float64)) > 0
    if apart.any():
        method = pairs[int(np.flatnonzero(apart)[0])][0]
        raise UserError(
            f"method '{method.name}': its aggregation gave every process weights of its own; `Updates` says how a rule "
            "works on rows that several processes hold."
        )


def measure(engine: Engine, current: Sequence[Round], diagnose: bool) -> None:
    """Adds the losses that were asked for (or all, for diagnosis) to the views; one pass per task."""
    masks = [(each, each.view.able if diagnose else each.asked.get("losses")) for each in current]
    known = [
        (each, s, mine(engine, mask[:, s])) for each, mask in masks if mask is not None for s in range(mask.shape[1])
    ]
    parts = [(each, s, client) for each, s, client in known if len(client)]
    workloads = [
        Workload(each.replica.federation, s, each.replica.state.weights[s], client) for each, s, client in parts
    ]
    for each, mask in masks:
        if mask is not None:
            each.view = each.view.with_signals(losses=np.zeros(mask.shape))
    for (each, s, client), losses in zip(parts, engine.losses(workloads), strict=True):
        each.view.losses[client, s] = losses
    for each, mask in masks:
        if mask is not None:
            each.view = each.view.with_signals(losses=engine.world.sums(each.view.losses))


def train(engine: Engine, wanted: Sequence[Wanted]) -> None:
    """Local training of the given clients (marked, [clients]) of rounds and tasks, in one request."""
    if not wanted:
        return
    trained = engine.train([each.training(s, mine(engine, clients)) for each, s, clients in wanted])
    everybody = [np.flatnonzero(clients) for _, _, clients in wanted]
    for (each, s, _), answer in zip(wanted, exchanged(engine.world, everybody, trained), strict=True):
        each.trained[s] = answer


def collect(engine: Engine, current: Sequence[Round]) -> None:
    """Has those that trained before the draw, and were drawn, send their updates, if they have not."""
    waiting = [(each, s) for each in current for s in each.trained]
    wanted = [np.flatnonzero(each.drawn[:, s]) for each, s in waiting]
    collected = engine.collect([each.trained[s] for each, s in waiting], wanted)
    for (each, s), trained in zip(waiting, collected, strict=True):
        each.trained[s] = trained


def mine(engine: Engine, clients: NDArray[np.bool_]) -> NDArray[np.int64]:
    """The numbers of the marked clients, of those that this process works for."""
    marked = np.flatnonzero(clients)
    return marked[engine.world.mine(marked)]


def exchanged(world: World, clients: Sequence[NDArray[np.int64]], trained: Sequence[Trained]) -> Sequence[Trained]:
    """What all processes have trained: of these clients, in this order, everyone knows losses and steps. The updates
    stay where they are."""
    if world.size == 1:
        return trained
    bounds = np.cumsum([len(each) for each in clients])
    columns = np.zeros((2, bounds[-1]))
    here = [np.searchsorted(each, own.client) for each, own in zip(clients, trained, strict=True)]
    for rows, own, mine in zip(np.split(columns, bounds[:-1], axis=1), trained, here, strict=True):
        rows[0, mine], rows[1, mine] = own.loss, own.steps
    known = np.split(world.sums(columns), bounds[:-1], axis=1)
    return [
        Trained(each, own.flat, loss, steps.astype(np.int64), mine, world)
        for each, own, (loss, steps), mine in zip(clients, trained, known, here, strict=True)
    ]


def evaluate(engine: Engine, replicas: Sequence[Replica], round: int) -> list[dict[int, Evaluation]]:
    """Test results of every replica's tasks that have arrived."""
    here = [(n, s) for n, r in enumerate(replicas) for s in np.flatnonzero(r.federation.present_tasks(round)).tolist()]
    nobody = np.zeros(0, dtype=np.int64)
    workloads = [Workload(replicas[n].federation, s, replicas[n].state.weights[s], nobody) for n, s in here]
    results: list[dict[int, Evaluation]] = [{} for _ in replicas]
    for (n, s), result in zip(here, engine.evaluate(workloads), strict=True):
        results[n][s] = result
    return results


def record(each: Round, tested: dict[int, Evaluation], seconds: float, stored_bytes: int) -> Record:
    """What happened in a round, as plain numbers."""
    replica, view, allocation = each.replica, each.view, each.allocation
    federation, state = replica.federation, replica.state
    here = federation.present_tasks(view.round)
    step_sizes = np.array(
        [step_size(each.outcomes[s].drawn, view) if here[s] else np.nan for s in range(len(federation.tasks))]
    )
    state.tally.add(allocation, step_sizes)
    tasks = {}
    for s in np.flatnonzero(here).tolist():
        outcome = each.outcomes[s]
        updates = outcome.drawn
        tasks[federation.tasks[s].name] = {
            "metric": _number(tested[s].metric) if s in tested else None,
            "loss": _number(tested[s].loss) if s in tested else None,
            "training_loss": _number(np.average(updates.loss, weights=updates.count)) if len(updates) else None,
            "active": len(updates),
            "rejected": outcome.rejected,
            "step_size": _number(step_sizes[s]),
            "step_size_variance": _number(state.tally.step_size_variance[s]),
            "loss_variance": _number(loss_variance(view, allocation, s)),
            "update_variance": _number(outcome.variance),
            **probability_quantiles(view, allocation, s),
            **replica.method.aggregation.report(view, s, state.aggregation[s]),
        }
    cost = round_cost(
        allocation,
        each.asked.get("losses"),
        each.undrawn,
        [len(w) for w in state.weights],
        stored_bytes,
        replica.method.local.downloads,
    )
    return {
        "round": view.round,
        "method": replica.method.name,
        "seed": replica.seed,
        **_overall(federation, tested),
        "tasks": tasks,
        "clients": federation.clients,
        "clients_seen": state.tally.clients_seen,
        "cost": asdict(cost),
        "drawn": {
            task.name: [allocation.client[rows].tolist(), allocation.count[rows].tolist()]
            for s, task in enumerate(federation.tasks)
            if len(rows := allocation.rows(s))
        },
        **replica.method.allocation.report(view, state.allocation),
        "seconds": round_to(seconds),
    }


def _overall(federation: Federation, tested: dict[int, Evaluation]) -> Record:
    """Mean and worst task, over the tasks whose metric is a score (over all, where none is)."""
    scores = {s: e.metric for s, e in tested.items() if not lower_is_better(federation.tasks[s].metric)}
    values = list(scores.values()) or [e.metric for e in tested.values()]
    if not values:
        return {"mean": None, "worst": None}
    return {"mean": _number(np.mean(values)), "worst": _number(min(values) if scores else max(values))}


def _number(value: Any) -> float | None:
    """A plain float for the record; None where there is no number."""
    return float(value) if value is not None and np.isfinite(value) else None


def round_to(seconds: float) -> float:
    """Seconds to the tenth of a millisecond."""
    return float(f"{seconds:.4f}")
