"""Deployment: the engine whose clients are real, on nodes that keep their data."""

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from mmfl.data.dataset import ELSEWHERE
from mmfl.deployment.events import Events
from mmfl.deployment.exchange import Limits, NodeExchange, NodeRequest
from mmfl.deployment.payload import fingerprint
from mmfl.deployment.remote_federation import ServerFederation
from mmfl.deployment.replies import RemoteTrained, Replies, TrainingReport
from mmfl.deployment.roster import Roster
from mmfl.deployment.transport import Transport
from mmfl.engine import Evaluation, Simulation, Training, Workload
from mmfl.engine.layout import Layout
from mmfl.federation import Federation
from mmfl.federation.task import Task
from mmfl.methods import make_method
from mmfl.updates import Trained
from mmfl.updates.world import SINGLE_PROCESS

Requests = dict[int, NodeRequest]
"""The request to each node, by the node's number."""


class Deployment:
    """Has nodes compute losses and train, and goes on with what they reply in time.

    All that a node is asked in one step travels in one message. `method` is the method's name or table, from which
    nodes build its local rule. Whatever a node replies is checked; what cannot be right is rejected, with an event.
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
        self.method, self.limits, self.events = method, limits or Limits(), events or Events()
        self.federation = ServerFederation(tasks, clients, self._wait_for_clients)
        self.roster = Roster(self.federation, self.events)
        self.exchange = NodeExchange(transport, self.roster, self.limits, self.events, asked_to_stop)
        self.server_engine = Simulation("cpu")  # tests models where the server has test examples
        self.choices = self.server_engine.choices
        self._known_losses: dict[int, tuple[Tensor, dict[int, float]]] = {}  # by task: weights, and losses by client
        self._asks_losses = "losses" in make_method(method).allocation.needs

    def initial(self, federation: Federation, task: int, seed: int) -> Tensor:
        """Weights of a freshly built module, a function of (seed, task)."""
        module = federation.tasks[task].build(seed, task)
        return Layout(module).weights(module)

    def losses(self, workloads: Sequence[Workload]) -> list[NDArray[np.float64]]:
        """Losses of the weights on each client's data; nan for clients that did not reply.

        Nodes are not asked for losses that they have already sent with an earlier reply about the same weights.
        """
        self._asks_losses = True
        losses_of: list[dict[int, float]] = []
        requests: Requests = {}
        for workload in workloads:
            weights, known = self._known_losses.get(workload.task, (None, {}))
            losses_of.append(dict(known) if weights is workload.weights else {})
            responsive = ~self.federation.unresponsive
            unknown = [i for i in workload.client.tolist() if responsive[i] and i not in losses_of[-1]]
            self._request_losses(requests, workload.task, workload.weights, unknown)
        replies = self.exchange.send(requests)
        for workload, losses in zip(workloads, losses_of, strict=True):
            losses |= replies.losses.get(self._task_name(workload.task), {})
            self._mark_unresponsive(workload.client, losses)
        return [
            np.array([losses.get(client, np.nan) for client in workload.client.tolist()])
            for workload, losses in zip(workloads, losses_of, strict=True)
        ]

    def train(self, trainings: Sequence[Training]) -> list[Trained]:
        """Local training on the nodes; clients that fail are left out.

        Where the method will ask for losses of the same weights, nodes send them in the same message.
        """
        requests: Requests = {}
        before_the_draw = [t for t in trainings if t.sends is not None and not t.sends.any()]
        with_losses = before_the_draw if self._asks_losses else []
        for training in trainings:
            self._request_training(requests, training)
        for training in with_losses:
            self._request_losses(requests, training.task, training.weights, training.client.tolist())
        replies = self.exchange.send(requests)
        for training in with_losses:
            self._remember_losses(training.task, training.weights, replies)
        results: list[Trained] = [self._read_training(training, replies) for training in trainings]
        for training, trained in zip(trainings, results, strict=True):
            self._mark_unresponsive(training.client, trained.client.tolist())
        return results

    def collect(self, trained: Sequence[Trained], wanted: Sequence[NDArray[np.int64]]) -> list[Trained]:
        """Has the wanted clients send the updates they kept; clients that fail are left out."""
        requests: Requests = {}
        remote = [each for each in trained if isinstance(each, RemoteTrained)]
        missing = [
            sorted({report.client for report in each.reports if report.update is None} & set(clients.tolist()))
            for each, clients in zip(remote, wanted, strict=True)
        ]
        for each, clients in zip(remote, missing, strict=True):
            if training := each.training:
                for client in clients:
                    row = [self._task_name(training.task), client, training.round]
                    self._add_to_request(requests, client, "collect", row)
        replies = self.exchange.send(requests)
        return [self._with_updates(each, clients, replies) for each, clients in zip(remote, missing, strict=True)]

    def evaluate(self, workloads: Sequence[Workload]) -> list[Evaluation]:
        """Tests models on the server's test examples where it has some, and on the nodes' otherwise.

        Where nodes test, and the method asks for losses, they send losses of the same weights in the same message.
        """
        on_nodes = [w for w in workloads if w.federation.tasks[w.task].data is ELSEWHERE]
        requests: Requests = {}
        for workload in on_nodes:
            name = self._task_name(workload.task)
            for number in self.roster.nodes_with_test_data(name):
                request = requests.setdefault(number, NodeRequest())
                request.add("test", [name])
                request.vectors[f"weights.{name}"] = workload.weights
            if self._asks_losses:
                with_data = self.federation.connected & (self.federation.sizes[:, workload.task] > 0)
                self._request_losses(requests, workload.task, workload.weights, np.flatnonzero(with_data).tolist())
        replies = self.exchange.send(requests)
        for workload in on_nodes:
            self._remember_losses(workload.task, workload.weights, replies)
        on_server = iter(self.server_engine.evaluate([w for w in workloads if w not in on_nodes]))
        return [self._mean_test(w, replies) if w in on_nodes else next(on_server) for w in workloads]

    def faults(self) -> dict[str, int]:
        """Counts, by kind, of the faults since the last call; nodes that join and waiting for them are no faults."""
        return {kind: count for kind, count in self.events.take().items() if kind not in ("joined", "waiting")}

    def _wait_for_clients(self, round: int) -> None:
        self.exchange.wait_for_clients(round)

    def _task_name(self, task: int) -> str:
        return self.federation.tasks[task].name

    def _mark_unresponsive(self, asked: NDArray[np.int64], replied: Container[int]) -> None:
        """Marks clients without a usable reply, so that the rest of the round does not count on them."""
        for client in asked.tolist():
            self.federation.unresponsive[client] |= client not in replied

    def _remember_losses(self, task: int, weights: Tensor, replies: Replies) -> None:
        self._known_losses[task] = (weights, replies.losses.get(self._task_name(task), {}))

    # --- requests ---

    def _add_to_request(self, requests: Requests, client: int, part: str, row: Sequence[Any]) -> NodeRequest | None:
        """Adds a row to the request to the client's node; None if that node has left."""
        node = self.roster.node_of(client)
        if node is None:
            self.events.add("absent", client=client)
            return None
        request = requests.setdefault(node, NodeRequest())
        request.add(part, row)
        return request

    def _request_losses(self, requests: Requests, task: int, weights: Tensor, clients: Sequence[int]) -> None:
        name = self._task_name(task)
        for client in clients:
            if request := self._add_to_request(requests, client, "losses", [name, client]):
                request.vectors[f"weights.{name}"] = weights

    def _request_training(self, requests: Requests, training: Training) -> None:
        name, sends = self._task_name(training.task), training.sends
        for n, client in enumerate(training.client.tolist()):
            send, remembered = sends is None or bool(sends[n]), ""
            if training.remembered is not None and training.remembered.has(training.client[n : n + 1])[0]:
                remembered = fingerprint(training.remembered.rows(training.client[n : n + 1])[0])
            if request := self._add_to_request(requests, client, "train", [name, client, send, remembered]):
                request.fields |= {"round": training.round, "seed": training.seed, "method": self.method}
                request.vectors[f"weights.{name}"] = training.weights
                if training.correction is not None:
                    request.vectors[f"correction.{name}.{client}"] = training.correction[n]

    # --- replies ---

    def _read_training(self, training: Training, replies: Replies) -> RemoteTrained:
        """The reports of one training, in the order of its clients."""
        name = self._task_name(training.task)
        reports = [replies.trained.get((name, client)) for client in training.client.tolist()]
        return RemoteTrained.of(training, self._accept(training, [each for each in reports if each is not None]))

    def _accept(self, training: Training, reports: Sequence[TrainingReport]) -> list[TrainingReport]:
        """The reports without those that cannot be right."""
        max_norm = self.limits.max_update_ratio * max(1.0, float(training.weights.norm()))
        sends = training.client if training.sends is None else training.client[training.sends]
        accepted = []
        for report in reports:
            client = np.array([report.client])
            last_update = None if training.remembered is None else training.remembered.rows(client)[0]
            problem = report.problem(len(training.weights), max_norm, last_update)
            if not problem and report.update is None and report.client in sends:
                problem = "the update did not come"
            if problem:
                self._reject(report.client, self._task_name(training.task), problem)
            else:
                accepted.append(report.measure(last_update))
        return accepted

    def _with_updates(self, trained: RemoteTrained, missing: Sequence[int], replies: Replies) -> RemoteTrained:
        """With the updates that were collected; clients that should have sent one and did not are left out."""
        training = trained.training
        if not missing or training is None:
            return trained
        name = self._task_name(training.task)
        reports = []
        for report in trained.reports:
            if report.client not in missing:
                reports.append(report)
            elif (update := replies.updates.get((name, report.client))) is not None:
                reports += self._accept(training, [replace(report, update=update)])
            else:
                self._reject(report.client, name, "the update did not come")
        return RemoteTrained.of(training, reports)

    def _reject(self, client: int, task: str, problem: str) -> None:
        self.events.add("rejected", client=client, detail=f"task '{task}': {problem}")

    def _mean_test(self, workload: Workload, replies: Replies) -> Evaluation:
        """The mean over all examples that nodes tested on."""
        results = np.array(replies.tests.get(self._task_name(workload.task), []), dtype=float).reshape(-1, 3)
        if not results[:, 0].sum():
            return Evaluation(float("nan"), float("nan"))
        loss, metric = np.average(results[:, 1:], axis=0, weights=results[:, 0])
        return Evaluation(float(loss), float(metric))
