"""Deployment: the engine whose clients are real, on nodes that keep their data."""

import time
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from mmfl.data.dataset import ELSEWHERE
from mmfl.deployment.events import Events
from mmfl.deployment.payload import GarbageError, Payload, print_of
from mmfl.deployment.remote_federation import Announced
from mmfl.deployment.replies import Kept, Replies, Row
from mmfl.deployment.roster import Roster
from mmfl.deployment.transport import Reply, Transport
from mmfl.engine import Evaluation, Simulation, Training, Workload
from mmfl.engine.layout import Layout
from mmfl.errors import UserError
from mmfl.federation import Federation
from mmfl.federation.task import Task
from mmfl.methods import make_method
from mmfl.updates import Trained
from mmfl.updates.world import SINGLE_PROCESS

_POLL = 0.1  # seconds between looks into the mailbox
_PAUSE = 5.0  # seconds after which a node that did not say who it is is asked again
_LONG = 10.0  # seconds of waiting that are worth a word


@dataclass(frozen=True)
class Limits:
    """How long the server waits, in seconds: `timeout` for replies, `gather` for all clients before it begins, and
    `patience` for at least `least` of them to be there in a round.

    An update longer than `norm` times the weights it started from (of length 1 at least) is refused as absurd.
    """

    timeout: float = 600.0
    gather: float = 60.0
    patience: float = 3600.0
    least: int = 1
    norm: float = 100.0

    def __post_init__(self) -> None:
        for name in ("timeout", "patience", "least", "norm"):
            if not getattr(self, name) > 0:
                raise UserError(f"deployment: {name} is {getattr(self, name)}; expected a positive number.")
        if not self.gather >= 0:
            raise UserError(f"deployment: gather is {self.gather}; expected at least 0 seconds.")


@dataclass
class Work:
    """What one node is asked for in one message."""

    said: dict[str, Any] = field(default_factory=dict)
    vectors: dict[str, Tensor] = field(default_factory=dict)

    def add(self, part: str, row: Sequence[Any]) -> None:
        """A row of a part of the request."""
        self.said.setdefault(part, []).append(list(row))


class Deployment:
    """Asks nodes for losses and trainings, all tasks of a node in one message, and goes on with what comes in time.

    `method` is the method's name or table, from which nodes make its local rule. A node that does not answer counts as
    absent until it does; what it sends after that is not used. Whatever a node sends is checked; what cannot be right
    is refused, and all of it is in `events`.
    """

    world = SINGLE_PROCESS
    room = 1 << 62
    eager = True

    def __init__(
        self,
        transport: Transport,
        tasks: Sequence[Task],
        clients: int,
        method: str | Mapping[str, Any],
        limits: Limits | None = None,
        events: Events | None = None,
        asked_to_stop: Callable[[], bool] = lambda: False,
    ):
        self.transport, self.method = transport, method
        self.limits, self.events = limits or Limits(), events or Events()
        self.federation = Announced(tasks, clients, self.roll_call)
        self.roster = Roster(self.federation, self.events)
        self.local = Simulation("cpu")
        self.choices = self.local.choices
        self.asked_to_stop = asked_to_stop
        self._greeted: dict[str, int] = {}
        self._again: dict[int, float] = {}
        self._begun = False
        self._ahead: dict[int, tuple[Tensor, dict[int, float]]] = {}
        self._asks_losses = "losses" in make_method(method).allocation.needs

    def initial(self, federation: Federation, task: int, seed: int) -> Tensor:
        """Weights of a freshly built module, a function of (seed, task)."""
        module = federation.tasks[task].build(seed, task)
        return Layout(module).flatten([parameter.detach() for parameter in module.parameters()])

    def roll_call(self, round: int) -> None:
        """Who is there for a round. The first one waits a while for everybody, each one until there are enough."""
        self.events.round = round
        began, told = time.monotonic(), False
        while True:
            self._greet(self.roster.connected(self.transport.nodes()) - set(self._greeted.values()))
            self._late_letters()
            here, waited = int(self.federation.here.sum()), time.monotonic() - began
            gathering = not self._begun and here < self.federation.clients and waited < self.limits.gather
            if here >= self.limits.least and not gathering:
                self._begun = True
                return
            if waited > max(self.limits.patience, self.limits.gather):
                raise UserError(
                    f"deployment: {here} clients are there after {waited:.3g} s; expected at least {self.limits.least}."
                )
            if self.asked_to_stop():
                raise KeyboardInterrupt
            if waited > _LONG and not told:
                told = True
                self.events.add("waiting", detail=f"{here} of {self.federation.clients} clients are there")
            time.sleep(_POLL)

    def losses(self, workloads: Sequence[Workload]) -> list[NDArray[np.float64]]:
        """As told with the last test, where the weights are still the same, or asked for; nan of who did not answer."""
        self._asks_losses = True
        known: list[dict[int, float]] = []
        asked: dict[int, Work] = {}
        for workload in workloads:
            weights, told = self._ahead.get(workload.task, (None, {}))
            known.append(dict(told) if weights is workload.weights else {})
            heard = ~self.federation.silent
            unknown = [client for client in workload.client.tolist() if heard[client] and client not in known[-1]]
            self._ask_losses(asked, workload.task, workload.weights, unknown)
        replies = self._exchange(asked)
        for workload, losses in zip(workloads, known, strict=True):
            losses |= replies.losses.get(self._name(workload.task), {})
            self._silent(workload.client, losses)
        return [
            np.array([losses.get(client, np.nan) for client in workload.client.tolist()])
            for workload, losses in zip(workloads, known, strict=True)
        ]

    def train(self, trainings: Sequence[Training]) -> list[Trained]:
        """Local training on the nodes; who fails is left out.

        Where losses of the same weights will be asked for, nodes tell them in the same message.
        """
        asked: dict[int, Work] = {}
        before_the_draw = [t for t in trainings if t.sends is not None and not t.sends.any()]
        for training in trainings:
            self._ask_training(asked, training)
        for training in before_the_draw if self._asks_losses else ():
            self._ask_losses(asked, training.task, training.weights, training.client.tolist())
        replies = self._exchange(asked)
        for training in before_the_draw if self._asks_losses else ():
            self._ahead[training.task] = (training.weights, replies.losses.get(self._name(training.task), {}))
        answers: list[Trained] = [self._trained(training, replies) for training in trainings]
        for training, trained in zip(trainings, answers, strict=True):
            self._silent(training.client, trained.client.tolist())
        return answers

    def collect(self, trained: Sequence[Trained], wanted: Sequence[NDArray[np.int64]]) -> list[Trained]:
        """Has the wanted clients send what they kept; who fails is left out."""
        asked: dict[int, Work] = {}
        theirs = [each for each in trained if isinstance(each, Kept)]
        missing = [
            sorted({row.client for row in kept.rows if row.update is None} & set(clients.tolist()))
            for kept, clients in zip(theirs, wanted, strict=True)
        ]
        for kept, clients in zip(theirs, missing, strict=True):
            if training := kept.training:
                for client in clients:
                    self._work(asked, client, "collect", [self._name(training.task), client, training.round])
        replies = self._exchange(asked)
        return [self._collected(kept, clients, replies) for kept, clients in zip(theirs, missing, strict=True)]

    def evaluate(self, workloads: Sequence[Workload]) -> list[Evaluation]:
        """On the server's test examples where it has some, on the nodes' otherwise.

        Where nodes test, and the method asks for losses, they tell those of the new weights in the same message.
        """
        at_nodes = [w for w in workloads if w.federation.tasks[w.task].data is ELSEWHERE]
        asked: dict[int, Work] = {}
        for workload in at_nodes:
            name = self._name(workload.task)
            for number, node in self.roster.nodes.items():
                if node.tested.get(name) and not node.waiting:
                    work = asked.setdefault(number, Work())
                    work.add("test", [name])
                    work.vectors[f"weights.{name}"] = workload.weights
            if self._asks_losses:
                able = self.federation.here & (self.federation.sizes[:, workload.task] > 0)
                self._ask_losses(asked, workload.task, workload.weights, np.flatnonzero(able).tolist())
        replies = self._exchange(asked)
        for workload in at_nodes:
            self._ahead[workload.task] = (workload.weights, replies.losses.get(self._name(workload.task), {}))
        here = iter(self.local.evaluate([w for w in workloads if w not in at_nodes]))
        return [self._tested(workload, replies) if workload in at_nodes else next(here) for workload in workloads]

    def faults(self) -> dict[str, int]:
        """Events since this was last asked, but for those that are no fault."""
        return {kind: count for kind, count in self.events.take().items() if kind not in ("joined", "waiting")}

    def _silent(self, asked: NDArray[np.int64], answered: Container[int]) -> None:
        """Who was asked and did not answer, or not so that it could be used, is not counted on in this round."""
        for client in asked.tolist():
            self.federation.silent[client] |= client not in answered

    # --- what is asked ---

    def _name(self, task: int) -> str:
        return self.federation.tasks[task].name

    def _work(self, asked: dict[int, Work], client: int, part: str, row: Sequence[Any]) -> Work | None:
        """Adds a row to what the client's node is asked; None if no node speaks for it any more."""
        node = self.roster.node_of(client)
        if node is None:
            self.events.add("absent", client=client)
            return None
        work = asked.setdefault(node, Work())
        work.add(part, row)
        return work

    def _ask_losses(self, asked: dict[int, Work], task: int, weights: Tensor, clients: Sequence[int]) -> None:
        name = self._name(task)
        for client in clients:
            if work := self._work(asked, client, "losses", [name, client]):
                work.vectors[f"weights.{name}"] = weights

    def _ask_training(self, asked: dict[int, Work], training: Training) -> None:
        name, sends = self._name(training.task), training.sends
        for n, client in enumerate(training.client.tolist()):
            send, mark = sends is None or bool(sends[n]), ""
            if training.remembered is not None and training.remembered.has(training.client[n : n + 1])[0]:
                mark = print_of(training.remembered.rows(training.client[n : n + 1])[0])
            if work := self._work(asked, client, "train", [name, client, send, mark]):
                work.said |= {"round": training.round, "seed": training.seed, "method": self.method}
                work.vectors[f"weights.{name}"] = training.weights
                if training.correction is not None:
                    work.vectors[f"correction.{name}.{client}"] = training.correction[n]

    # --- what is answered ---

    def _exchange(self, asked: Mapping[int, Work]) -> Replies:
        """Sends everything, and reads what comes in time."""
        replies = Replies()
        if not asked:
            return replies
        limit = {} if self.transport.most is None else {"most": self.transport.most}
        payloads = {node: Payload(work.said | limit, work.vectors).pack() for node, work in asked.items()}
        self._deliver(payloads, lambda node, payload: replies.read(asked[node].said, payload))
        for client, detail in replies.missing:
            self.events.add("rejected", client=client, detail=detail)
        return replies

    def _greet(self, nodes: set[int]) -> None:
        """Asks new nodes who they are, those that could not answer not at once again; nobody waits for it."""
        now = time.monotonic()
        due = [node for node in sorted(nodes) if self._again.get(node, 0.0) <= now]
        if due:
            hello = Payload({"announce": True}).pack()
            self._greeted |= self.transport.send(dict.fromkeys(due, hello), self.events.round, self.limits.timeout)

    def _deliver(self, payloads: Mapping[int, bytes], read: Callable[[int, Payload], None]) -> None:
        """Sends, waits until all have answered or the time is over, and lets `read` see what came."""
        waiting = self.transport.send(payloads, self.events.round, self.limits.timeout)
        for node in sorted(set(payloads) - set(waiting.values())):
            self.events.add("lost", node, detail="the message was not taken")
            self.roster.forget(node)
        deadline = time.monotonic() + self.limits.timeout
        while waiting:
            began = time.monotonic()
            for reply in self.transport.receive(list(waiting)):
                node = waiting.pop(reply.message)
                self._open(node, reply, read)
                if reply.payload is None:
                    self.roster.forget(node)
            now = time.monotonic()
            if not waiting or now > deadline:
                break
            time.sleep(max(_POLL, now - began))  # where there are many nodes, the mailbox gets a rest
        for message, node in waiting.items():
            self.events.add("late", node)
            if node in self.roster.nodes:
                self.roster.nodes[node].waiting.add(message)
        self.roster.settle()

    def _late_letters(self) -> None:
        """Introductions; and answers that come after their time, which are not used, but whoever sent them is there
        again, and whoever could not be reached is not."""
        waiting = {message: n for n, node in self.roster.nodes.items() for message in node.waiting}
        for reply in self.transport.receive([*self._greeted, *waiting]):
            if reply.message in self._greeted:
                node = self._greeted.pop(reply.message)
                self._open(node, reply, self.roster.introduce)
                if node not in self.roster.nodes:
                    self._again[node] = time.monotonic() + _PAUSE
            else:
                self.roster.heard(waiting[reply.message], reply.message, reply.payload is not None)
        self.roster.settle()

    def _open(self, node: int, reply: Reply, read: Callable[[int, Payload], None]) -> None:
        """Lets `read` see a reply that says what it should."""
        try:
            payload = Payload({"error": reply.error}) if reply.payload is None else Payload.unpack(reply.payload)
            if "error" in payload.said:
                self.events.add("failed", node, detail=str(payload.said["error"])[:300])
            else:
                read(node, payload)
        except GarbageError as error:
            self.events.add("garbage", node, detail=str(error))
        except Exception as error:  # whatever else a node thinks of must not end the run
            self.events.add("garbage", node, detail=f"{type(error).__name__}: {error}")

    def _accepted(self, training: Training, rows: Sequence[Row]) -> list[Row]:
        """The rows but those that cannot be right."""
        longest = self.limits.norm * max(1.0, float(training.weights.norm()))
        sends = training.client if training.sends is None else training.client[training.sends]
        good = []
        for row in rows:
            before = None if training.remembered is None else training.remembered.rows(np.array([row.client]))[0]
            problem = row.problem(len(training.weights), longest, before)
            if not problem and row.update is None and row.client in sends:
                problem = "the update did not come"
            if problem:
                self.events.add("rejected", client=row.client, detail=f"task '{self._name(training.task)}': {problem}")
            else:
                good.append(row.compared(before))
        return good

    def _trained(self, training: Training, replies: Replies) -> Kept:
        """The rows of one request, in its order."""
        name = self._name(training.task)
        told = [replies.trained.get((name, client)) for client in training.client.tolist()]
        return Kept.of(training, self._accepted(training, [row for row in told if row is not None]))

    def _collected(self, kept: Kept, missing: Sequence[int], replies: Replies) -> Kept:
        """With the updates that came; who was to send one and did not is left out."""
        training = kept.training
        if not missing or training is None:
            return kept
        name = self._name(training.task)
        rows = []
        for row in kept.rows:
            if row.client not in missing:
                rows.append(row)
            elif (update := replies.updates.get((name, row.client))) is not None:
                rows += self._accepted(training, [replace(row, update=update)])
            else:
                self.events.add("rejected", client=row.client, detail=f"task '{name}': the update did not come")
        return Kept.of(training, rows)

    def _tested(self, workload: Workload, replies: Replies) -> Evaluation:
        """The mean over all examples that nodes tested on."""
        found = np.array(replies.tests.get(self._name(workload.task), []), dtype=float).reshape(-1, 3)
        if not found[:, 0].sum():
            return Evaluation(float("nan"), float("nan"))
        loss, metric = np.average(found[:, 1:], axis=0, weights=found[:, 0])
        return Evaluation(float(loss), float(metric))
