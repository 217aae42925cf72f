"""Deployment: the engine whose clients are real, on nodes that keep their data."""

from collections.abc import Callable, Container, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmfl.data.dataset import ELSEWHERE
from mmfl.deployment.exchange import NodeExchange, Transport
from mmfl.deployment.payload import InvalidPayloadError, Payload, fingerprint
from mmfl.deployment.remote_federation import ServerFederation
from mmfl.deployment.replies import RemoteTrained, Replies, TrainingReport, add_up, keep_alike
from mmfl.deployment.roster import Events, Roster
from mmfl.deployment.settings import DeploymentSettings
from mmfl.engine import Evaluation, Simulation, Training, Workload
from mmfl.engine.layout import Layout
from mmfl.errors import UserError
from mmfl.federation import Federation
from mmfl.federation.task import Task
from mmfl.methods import make_method
from mmfl.runs.live import LiveStateWriter
from mmfl.updates import Trained
from mmfl.updates.world import SINGLE_PROCESS

Requests = dict[int, Payload]
"""The request to each node, by the node's number."""


class Deployment:
    """Has nodes compute losses and train, and goes on with what they reply in time.

    All that a node is asked in one step travels in one message; nodes build the local rule from the name or table of
    the method. Whatever a node replies is checked; what cannot be right is rejected, with an event.
    """

    world = SINGLE_PROCESS
    room = 1 << 62
    eager = True

    def __init__(
        self,
        transport: Transport,
        tasks: Sequence[Task],
        settings: DeploymentSettings,
        events: Events,
        asked_to_stop: Callable[[], bool],
        run: str = "",
        live: LiveStateWriter | None = None,
    ):
        self.settings, self.events, self.run = settings, events, run
        self._layouts = [Layout(task.build(), task.batch_norm) for task in tasks]
        for task, layout in zip(tasks, self._layouts, strict=True):
            _check_batch_norm(task, layout)
        _check_average(tasks, settings)
        settings.stop.build().targets([task.name for task in tasks])  # refuses a task that is not there
        self.federation = ServerFederation(tasks, settings.clients, self._wait_for_clients)
        self.roster = Roster(self.federation, events, settings.max_examples)
        self.exchange = NodeExchange(transport, self.roster, settings, asked_to_stop, live)
        self.server_engine = Simulation("cpu")  # tests models where the server has test examples
        self.choices = self.server_engine.choices
        self._known_losses: dict[int, tuple[Tensor, dict[int, float]]] = {}  # by task: weights, and losses by client
        self._asks_losses = "losses" in make_method(settings.method).allocation.needs

    def initial(self, federation: Federation, task: int, seed: int) -> Tensor:
        """Weights of a freshly built module, a function of (seed, task)."""
        layout = self._layouts[task]
        return layout.weights(federation.tasks[task].build(seed, task))[: layout.shared]

    def initial_batch_norm(self, federation: Federation, task: int, seed: int) -> Tensor:
        """The statistics of batch norm, where they are shared; local ones are on the nodes."""
        if federation.tasks[task].batch_norm == "local":
            return torch.empty(0)
        return self._layouts[task].batch_norm(federation.tasks[task].build(seed, task))

    def initial_optimiser_state(self, federation: Federation, task: int) -> Tensor:
        """Nothing: clients keep the state of their optimisers on the nodes."""
        return torch.empty(0)

    def losses(self, workloads: Sequence[Workload]) -> list[NDArray[np.float64]]:
        """Losses of the weights on each client's data; nan for clients that did not reply.

        Nodes are not asked for losses that they have already sent with an earlier reply about the same weights.
        """
        self._asks_losses = True
        requests: Requests = {}
        for workload in workloads:
            known = self._losses_known(workload)
            responsive = workload.client[~self.federation.unresponsive[workload.client]]
            self._request_losses(requests, workload, [i for i in responsive.tolist() if i not in known])
        replies = self.exchange.send(requests)
        results = []
        for workload in workloads:
            losses = self._losses_known(workload) | replies.losses.get(self._task_name(workload), {})
            self._mark_unresponsive(workload.client, losses)
            results.append(np.array([losses.get(client, np.nan) for client in workload.client.tolist()]))
        return results

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
            self._request_losses(requests, training, training.client.tolist())
        replies = self.exchange.send(requests)
        for training in with_losses:
            self._remember_losses(training, replies)
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
            for client in clients:
                self._request(requests, "collect", each.training, client, each.training.round)
        replies = self.exchange.send(requests)
        return [self._with_updates(each, clients, replies) for each, clients in zip(remote, missing, strict=True)]

    def evaluate(self, workloads: Sequence[Workload]) -> list[Evaluation]:
        """Tests models on the server's test examples where it has some, and on the nodes' otherwise.

        Where nodes test, and the method asks for losses, they send losses of the same weights in the same message.
        """
        on_nodes = [w for w in workloads if w.federation.tasks[w.task].data is ELSEWHERE]
        requests: Requests = {}
        for workload in on_nodes:
            name = self._task_name(workload)
            for number in self.roster.nodes_with_test_data(name):
                request = requests.setdefault(number, Payload())
                request.add("test", name)
                self._add_weights(request, workload)
            if self._asks_losses:
                with_data = self.federation.connected & (self.federation.sizes[:, workload.task] > 0)
                self._request_losses(requests, workload, np.flatnonzero(with_data).tolist())
        replies = self.exchange.send(requests)
        for workload in on_nodes:
            self._remember_losses(workload, replies)
        on_server = iter(self.server_engine.evaluate([w for w in workloads if w not in on_nodes]))
        return [self._test_result(w, replies) if w in on_nodes else next(on_server) for w in workloads]

    def faults(self) -> dict[str, int]:
        """Counts, by kind, of the faults since the last call."""
        return self.events.take_faults()

    def check_task(self, task: Task) -> None:
        """Refuses a task that cannot be added to this deployment."""
        _check_average([task], self.settings)
        _check_batch_norm(task, Layout(task.build(), task.batch_norm))

    def add_task(self, task: Task, arrival: int) -> None:
        """Adds a task, which takes part from a round; nodes that have announced it already have it at once."""
        self._layouts.append(Layout(task.build(), task.batch_norm))
        self.federation.add_task(task, arrival)
        self.roster.announce_again()

    def retire_task(self, name: str) -> None:
        """From now on nobody trains a task; its weights stay."""
        self.federation.retire_task(name)
        self.roster.announce_again()

    def _task_name(self, workload: Workload) -> str:
        return self.federation.tasks[workload.task].name

    def _mark_unresponsive(self, asked: NDArray[np.int64], replied: Container[int]) -> None:
        """Marks clients without a usable reply, so that the rest of the round does not count on them."""
        for client in asked.tolist():
            self.federation.unresponsive[client] |= client not in replied

    def _remember_losses(self, workload: Workload, replies: Replies) -> None:
        self._known_losses[workload.task] = (workload.weights, replies.losses.get(self._task_name(workload), {}))

    def _losses_known(self, workload: Workload) -> dict[int, float]:
        weights, losses = self._known_losses.get(workload.task, (None, {}))
        return losses if weights is workload.weights else {}

    def _wait_for_clients(self, round: int) -> None:
        self.exchange.wait_for_clients(round)
        self.roster.limit_examples()

    def report_clipped_update(self, task: int, client: int, norm: float, bound: float) -> None:
        """Adds an event about an update that was scaled down."""
        detail = f"task '{self.federation.task_names[task]}': an update of length {norm:.3g}, over {bound:.3g}"
        self.events.add("clipped", self.roster.node_of(client), client, detail)

    # --- requests ---

    def _request(self, requests: Requests, part: str, workload: Workload, client: int, *columns: Any) -> Payload | None:
        """Adds a row about a task and a client to the request to the client's node; None if that node has left."""
        node = self.roster.node_of(client)
        if node is None:
            self.events.add("absent", client=client)
            return None
        request = requests.setdefault(node, Payload())
        request.add(part, self._task_name(workload), client, *columns)
        return request

    def _add_weights(self, request: Payload, workload: Workload) -> None:
        """What the node computes with: weights and shared statistics of batch norm."""
        name = self._task_name(workload)
        request.fields["run"] = self.run
        request.vectors[f"weights.{name}"] = workload.weights
        if workload.batch_norm is not None:
            request.vectors[f"batch_norm.{name}"] = workload.batch_norm[0]

    def _request_losses(self, requests: Requests, workload: Workload, clients: Sequence[int]) -> None:
        for client in clients:
            if request := self._request(requests, "losses", workload, client):
                self._add_weights(request, workload)

    def _request_training(self, requests: Requests, training: Training) -> None:
        name, sends = self._task_name(training), training.sends
        for n, client in enumerate(training.client.tolist()):
            send, remembered = sends is None or bool(sends[n]), ""
            if training.remembered is not None and training.remembered.has(training.client[n : n + 1])[0]:
                remembered = fingerprint(training.remembered.rows(training.client[n : n + 1])[0])
            if request := self._request(requests, "train", training, client, send, remembered):
                request.fields.update(round=training.round, seed=training.seed, method=self.settings.method)
                self._add_weights(request, training)
                if training.correction is not None:
                    request.vectors[f"correction.{name}.{client}"] = training.correction[n]

    # --- replies ---

    def _read_training(self, training: Training, replies: Replies) -> RemoteTrained:
        """The reports of one training, in the order of its clients."""
        pairs = [(self._task_name(training), client) for client in training.client.tolist()]
        sends = training.client if training.sends is None else training.client[training.sends]
        return self._accept(training, [replies.trained[pair] for pair in pairs if pair in replies.trained], sends)

    def _with_updates(self, trained: RemoteTrained, missing: Sequence[int], replies: Replies) -> RemoteTrained:
        """With the updates that were collected; clients that should have sent one and did not are left out."""
        name = self._task_name(trained.training)
        reports = [replies.with_vectors(each, name) if each.client in missing else each for each in trained.reports]
        return self._accept(trained.training, reports, missing) if missing else trained

    def _accept(self, training: Training, reports: Iterable[TrainingReport], wanted: Container[int]) -> RemoteTrained:
        """The reports without those that cannot be right, or have no update although that was `wanted`."""
        max_norm = self.settings.norm * max(1.0, float(training.weights.norm()))
        is_variance, accepted = self._is_variance(training), []
        for report in reports:
            client = np.array([report.client])
            last_update = None if training.remembered is None else training.remembered.rows(client)[0]
            try:
                is_wanted = report.client in wanted
                accepted.append(report.check(len(training.weights), max_norm, last_update, is_wanted, is_variance))
            except InvalidPayloadError as error:
                detail = f"task '{self._task_name(training)}': {error}"
                self.events.add("rejected", client=report.client, detail=detail)
        return RemoteTrained.of(training, accepted)

    def _is_variance(self, training: Training) -> Tensor:
        """Which of the statistics of batch norm that a client sends are variances."""
        statistics = self._layouts[training.task].statistics
        if training.batch_norm is None:
            return torch.zeros(0, dtype=torch.bool)
        marks = [name.endswith("running_var") for name in statistics.names]
        return torch.tensor(marks).repeat_interleave(torch.tensor(statistics.sizes))

    def _test_result(self, workload: Workload, replies: Replies) -> Evaluation:
        """Of all examples that nodes tested on; tests that do not fit the others are left out."""
        task, name = self.federation.tasks[workload.task], self._task_name(workload)
        tests = replies.tests.get(name, [])
        kept = keep_alike(task, tests)
        for _ in range(len(tests) - len(kept)):
            self.events.add("rejected", detail=f"task '{name}': a test whose statistics do not fit the metrics")
        known = {i: test for i, test in replies.client_tests.get(name, {}).items() if 0 <= i < self.federation.clients}
        return add_up(task, kept, known)


def _check_average(tasks: Sequence[Task], settings: DeploymentSettings) -> None:
    """Refuses to have nodes test averaged weights: that would cost them a second test."""
    unknown = next((task.name for task in tasks if task.data is ELSEWHERE), None)
    if settings.average is not None and unknown is not None:
        raise UserError(
            f"task '{unknown}': nodes test the current weights only; expected a task with test examples on the "
            "server, or no `average`."
        )


def _check_batch_norm(task: Task, layout: Layout) -> None:
    """Refuses to test on the server what only nodes have."""
    if task.batch_norm == "local" and layout.shared < layout.length and task.data is not ELSEWHERE:
        raise UserError(
            f"task '{task.name}': local batch norm is on the nodes, so the server cannot test the model; "
            "expected a task without data, which the nodes test on theirs."
        )
