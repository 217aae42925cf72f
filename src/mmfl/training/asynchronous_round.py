"""AsynchronousRound: a part of a run without barriers, as long as a synchronous round has trainings."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmfl.allocation import Allocation
from mmfl.engine import Engine, Training
from mmfl.federation import RoundView
from mmfl.federation.sessions import AlwaysOn
from mmfl.pace.fedast import server_rate
from mmfl.pace.reach import Reach
from mmfl.pace.requests import Request, RequestQueue
from mmfl.pace.schedule import Schedule, Version
from mmfl.pace.slots import AsynchronousPace, check_view, finish
from mmfl.tensors import walk
from mmfl.training.attacked import attacked
from mmfl.training.pending import OldVersion, TrainedBlock
from mmfl.training.replica import Replica
from mmfl.training.round import Outcome, Round
from mmfl.training.rule_checks import check_allocation, check_signals
from mmfl.updates import ClientRows, ClientVectorStore, SentFrom, Updates
from mmfl.updates.batch_norm import LocalBatchNorm, SharedBatchNorm
from mmfl.updates.partial_sum import add_up


@dataclass(frozen=True)
class Counts:
    """What had been counted when a round began: the time, seconds that clients had worked, requests sent by task, and
    what was in vain, in requests and in seconds by cause."""

    time: float
    worked: float
    sent: list[int]
    dropped: dict[str, int]
    wasted: dict[str, float]


class Requesting:
    """A replica whose clients train at different times: its queue, and what its requests have led to.

    All that matters is in `replica.state.requests`; this is what is made of it when a run begins or goes on.
    """

    def __init__(self, replica: Replica, engine: Engine):
        federation, pace = replica.federation, replica.method.pace
        assert isinstance(pace, AsynchronousPace)
        assert replica.state.requests is not None
        assert federation.devices is not None
        self.replica, self.pace, self.engine, self.state = replica, pace, engine, replica.state.requests
        self.world = engine.world
        self.state.to(replica.state.weights[0].device)
        sessions = federation.devices.sessions
        self.queue = RequestQueue(
            self.state.queue,
            federation.capacity,
            federation.durations(),
            replica.seed,
            pace.options(_remembers(replica)),
            None if isinstance(sessions, AlwaysOn) else Reach(sessions),
        )
        self.schedule = Schedule(self.queue, pace.rules(self.state.pace))
        self.made = list(self.state.queue.version)

    @property
    def keeps_all(self) -> bool:
        """Whether an old version is needed until the last of its requests is aggregated."""
        return self.replica.method.aggregation.needs_starts or self.pace.keeps_memory

    def seconds_worked(self) -> float:
        """How long clients have worked so far, in vain or not."""
        tallies = self.queue.state.tallies
        ended = sum(tallies.seconds_done) + sum(tallies.seconds_lost) + sum(tallies.seconds_cancelled)
        return ended + self.queue.seconds_in_flight()

    def counts(self) -> "Counts":
        """What has been counted so far."""
        tallies = self.queue.state.tallies
        return Counts(
            self.queue.time,
            self.seconds_worked(),
            list(tallies.sent),
            {"lost": sum(tallies.lost), "cancelled": sum(tallies.cancelled)},
            {"lost": sum(tallies.seconds_lost), "cancelled": sum(tallies.seconds_cancelled)},
        )

    def save(self) -> None:
        """Brings the state up to date, from which the run can go on."""
        self.queue.saved()


def _remembers(replica: Replica) -> bool:
    """Whether a client's last update, or anything else of its own, is kept: then it trains a task once at a time."""
    state = replica.state
    own = any(isinstance(norm, LocalBatchNorm) for norm in state.batch_norm)
    own = own or any(store is not None for store in state.optimiser)
    return own or any(isinstance(part, ClientVectorStore) for part in walk(state.aggregation))


@dataclass(eq=False)
class AsynchronousRound(Round):
    """A round under way: as many arrivals as a synchronous round has trainings."""

    requesting: Requesting = field(init=False)
    before: Counts = field(init=False)
    returned: list[Request] = field(default_factory=list)
    versions: dict[int, list[Updates]] = field(default_factory=dict)
    taken: list[Request] = field(default_factory=list)  # for the version that is being made
    rejected: Counter[int] = field(default_factory=Counter)

    @classmethod
    def open(cls, requesting: Requesting, round: int) -> "AsynchronousRound":
        """Who is asked from now on, by the allocation's probabilities."""
        replica, queue = requesting.replica, requesting.queue
        method, state = replica.method, replica.state
        view = replica.federation.view(round, rate=replica.rate, seed=replica.seed, time=queue.time, out_of_reach=True)
        asked = method.allocation.asks(view, state.allocation)
        check_signals(method.name, method.allocation, asked, view)
        begun = cls(replica, view, dict(asked))
        begun.requesting, begun.before = requesting, requesting.counts()
        return begun

    def decide(self) -> None:
        """The probabilities from now on."""
        method, state, queue = self.replica.method, self.replica.state, self.requesting.queue
        if "expected_residuals" in self.asked:
            self.view = self.view.with_signals(expected_residuals=self._expected_residuals())
        decided = method.allocation.allocate(self.view, state.allocation)
        check_allocation(method.name, method.allocation, decided, self.view, state.allocation)
        self.allocation, state.allocation = decided
        check_view(method.name, method.pace.name, self.view, self.allocation.beyond_capacity)
        queue.route(np.where(self.view.able, self.allocation.probabilities * self.view.capacity[:, None], 0.0))

    @property
    def arrivals(self) -> int:
        """How many requests arrive in this round; none where nobody can be asked and nothing is under way."""
        queue, over = self.requesting.queue, self.requesting.schedule.rules.over
        return max(1, round(self.view.budget)) if not over and (queue.in_flight or queue.routed_tasks) else 0

    def view_of(self, task: int) -> RoundView:
        """The view that the aggregation of a task gets: its round is the number of the version that is next."""
        return self.view.at(self.requesting.made[task] + 1, self.view.seed, self.view.budget)

    def work(self) -> Iterator[None]:
        """Goes on to the end of the round, and stops wherever requests have to be trained before it can go on."""
        for step in self.requesting.schedule.until(self.arrivals):
            if not step.request.lost:
                self.returned.append(step.request)
                if self.requesting.pace.observes_updates:
                    self.taken = [step.request]
                    if self.untrained(self.taken):
                        yield
                    self.observe(step.request)
            for version in step.versions:
                self.taken = version.requests
                if self.untrained(self.taken):
                    yield
                self.make(version)
                self.taken = []

    def untrained(self, requests: Sequence[Request]) -> list[Request]:
        """Those of some requests that have not been trained."""
        trained = self.requesting.state.trained
        return [each for each in requests if not each.lost and each.serial not in trained[each.task]]

    def pending(self) -> tuple[list[Request], list[Request]]:
        """The requests that must be trained now, and all others that could be, in the order in which they arrive."""
        return self.untrained(self.taken), self.untrained(list(self.requesting.queue.requests()))

    def request_training(self, requests: Sequence[Request], client: NDArray[np.int64]) -> Training:
        """The request to train those of some requests, of one task and version, whose clients are given."""
        replica, first = self.replica, requests[0]
        state, task = replica.state, first.task
        weights, statistics = self._start_of(first)
        optimiser = state.optimiser[task]
        by_client = {each.client: each.serial for each in requests}
        norm = state.batch_norm[task]
        if isinstance(norm, LocalBatchNorm):
            statistics = norm.of(client)
        return Training(
            replica.federation,
            task,
            weights,
            client,
            first.version + 1,
            replica.seed,
            replica.method.local,
            optimiser_state=None if optimiser is None else optimiser.held_rows(client),
            serial=np.array([by_client[each] for each in client.tolist()], dtype=np.int64),
            batch_norm=statistics,
        )

    def returned_bytes(self, task: int) -> int:
        """What a request of a task returns."""
        return 4 * self.returned_values(task)

    def make(self, version: Version) -> None:
        """The next weights of a task, from the requests that make this version."""
        requesting, task = self.requesting, version.task
        block = requesting.state.trained[task].take([each.serial for each in version.requests])
        by_serial = {each.serial: each for each in version.requests}
        requests = [by_serial[serial] for serial in block.serial.tolist()]
        received = self._received(task, requests, block)
        old = self._old_version(task)
        drawn = self.step(received, len(requests), float(np.abs(block.total[block.finite]).max(initial=0.0)))
        if old is not None and requesting.queue.has_unused(task, old.version):
            requesting.state.old.add(old)
        requesting.made[task] = version.number
        if requesting.keeps_all:
            requesting.state.old.keep(requesting.queue.has_unused)
        self.versions.setdefault(task, []).append(drawn)
        self.rejected[task] += len(requests) - len(drawn)
        self._end_at_target(task, version.number)

    def observe(self, request: Request) -> None:
        """Shows the pace an update that has arrived."""
        requesting, task = self.requesting, request.task
        block = requesting.state.trained[task].peek([request.serial])
        update = block.trained(requesting.world).client_rows.all()[0]
        rate = self.federation.tasks[task].learning_rate(request.version + 1)
        server, steps = server_rate(self.replica.method.aggregation), int(block.steps[0])
        requesting.pace.observe(requesting.queue, requesting.state.pace, task, update, rate, steps, server)

    def forget_old_versions(self) -> None:
        """Lets go of weights that nobody trains from any more."""
        if not self.requesting.keeps_all:
            left = [*self.untrained(self.taken), *self.untrained(list(self.requesting.queue.requests()))]
            needed = {(each.task, each.version) for each in left}
            self.requesting.state.old.keep(lambda task, version: (task, version) in needed)

    def close(self) -> None:
        """What has happened, as in a synchronous round: who trained, and what went into the weights."""
        self.arrived = self.allocation = self._trained_pairs()
        for s in range(len(self.weights)):
            self.outcomes[s] = Outcome(_joined(s, self.versions.get(s, []), self.weights[s]), self.rejected[s], None)
        self.end()
        self.requesting.save()

    def _end_at_target(self, task: int, version: int) -> None:
        """Ends a task whose model is good enough."""
        requesting, given = self.requesting, self.federation.tasks[task]
        target = requesting.pace.target_of(given.name)
        if target is None or version % requesting.pace.check_every:
            return
        (found,) = requesting.engine.evaluate([self.test(task)])
        if found.metric <= target if given.main_metric.lower_is_better else found.metric >= target:
            finish(requesting.queue, requesting.state.pace, task)
            requesting.state.trained[task].clear()
            requesting.state.old.keep(requesting.queue.has_unused)

    def _received(self, task: int, requests: Sequence[Request], block: TrainedBlock) -> Updates:
        """The updates of a version, without those that cannot be used."""
        requesting, view = self.requesting, self.view_of(task)
        trained = attacked(block.trained(requesting.world), self.federation, self.replica.seed, view.round, task)
        client, number = trained.client, requesting.made[task]
        chance = np.array([each.chance for each in requests])
        versions = np.array([each.version for each in requests], dtype=np.int64)
        updates = Updates(
            task,
            client,
            (view.sizes[client, task] > 0).astype(np.int64),  # a client that has left counts no more
            len(requests) * chance / np.maximum(view.capacity[client], 1),
            trained.client_rows,
            trained.loss,
            trained.steps,
            trained.rows_of(trained.batch_norm),
            trained.rows_of(trained.optimiser_state),
            sent=SentFrom(versions, number - versions, *self._kept_of(task, versions)),
        )
        return updates.valid(block.finite if self.federation.attack is None else None).drawn()

    def _kept_of(self, task: int, versions: NDArray[np.int64]) -> tuple[Tensor | None, Tensor | None]:
        """The weights that each request began with, [requests, parameters], and the mean of what the memory stood for;
        None where the method does not need them."""
        requesting, rule = self.requesting, self.replica.method.aggregation
        old, number = requesting.state.old, requesting.made[task]
        weights = memory = None
        if rule.needs_starts:
            current = self.weights[task]
            weights = current.new_empty(len(versions), len(current))
            for row, version in enumerate(versions.tolist()):
                weights[row] = current if version == number else old[task, version].weights
        if requesting.pace.keeps_memory:
            stood = [self._memory(task) if v == number else old[task, v].memory for v in versions.tolist()]
            memory = torch.stack(stood).mean(0)
        return weights, memory

    def _memory(self, task: int) -> Tensor:
        """What the aggregation's memory stands for now."""
        state = self.replica.state.aggregation[task]
        stands: Tensor = add_up(self.replica.method.aggregation.stale_mean(self.view_of(task), task, state))
        return stands

    def _old_version(self, task: int) -> OldVersion | None:
        """The version that is about to be replaced."""
        norm, weights = self.replica.state.batch_norm[task], self.weights[task]
        nothing = weights[:0]
        memory = self._memory(task) if self.requesting.pace.keeps_memory else nothing
        values = norm.values if isinstance(norm, SharedBatchNorm) else nothing
        return OldVersion(task, self.requesting.made[task], weights, values, memory)

    def _start_of(self, request: Request) -> tuple[Tensor, Tensor | None]:
        """The weights and the statistics of batch norm that a request begins with."""
        task, norm = request.task, self.replica.state.batch_norm[request.task]
        if request.version == self.requesting.made[task]:
            return self.weights[task], norm.values[None] if isinstance(norm, SharedBatchNorm) else None
        old = self.requesting.state.old[task, request.version]
        return old.weights, old.batch_norm[None] if len(old.batch_norm) else None

    def _trained_pairs(self) -> Allocation:
        """The pairs whose requests arrived, with the probabilities of this round."""
        pairs = Counter((each.task, each.client) for each in self.returned)
        task, client = np.array(sorted(pairs), dtype=np.int64).reshape(-1, 2).T
        count = np.array([pairs[pair] for pair in sorted(pairs)], dtype=np.int64)
        given = self.allocation.given_probabilities
        probability = given[client, task]
        return Allocation(client, task, count, probability, given)


def _joined(task: int, versions: Sequence[Updates], weights: Tensor) -> Updates:
    """All updates of a round's versions, without rows; their step size is the mean over the versions."""
    if not versions:
        nobody, nothing = np.zeros(0, dtype=np.int64), np.zeros(0)
        rows = ClientRows(weights.new_empty(0, len(weights)))
        return Updates(task, nobody, nobody, nothing, rows, nothing, nobody)

    def all_of(name: str) -> Any:
        return np.concatenate([attrgetter(name)(each) for each in versions])

    return Updates(
        task,
        all_of("client"),
        all_of("count"),
        all_of("probability") * len(versions),
        versions[0].rows,
        all_of("loss"),
        all_of("steps"),
        sent=SentFrom(all_of("sent.version"), all_of("sent.staleness")),
    )
