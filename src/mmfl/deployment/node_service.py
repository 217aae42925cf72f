"""NodeService: answers the server's requests with the data and the engine of one node."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmfl.deployment.payload import InvalidPayloadError, Pair, Payload, fingerprint
from mmfl.deployment.remote_federation import NodeFederation
from mmfl.engine import Simulation, Training, Workload
from mmfl.local import LocalRule
from mmfl.methods import make_method
from mmfl.privacy import Privacy


class NodeService:
    """A node's clients and what they remember between requests.

    For each client and task it keeps the newest update until the server collects it, and the last update that was sent,
    with which a new one is compared. A request has the field `announce`, or any of `losses` [task, client], `train`
    [task, client, send, fingerprint] (of the update the server remembers, "" for none), `collect` [task, client, round]
    and `test` [task]; weights come as vectors. All parts are answered in one reply, of at most `max_reply_bytes`.
    """

    def __init__(self, federation: NodeFederation, engine: Simulation | None = None, privacy: Privacy | None = None):
        self.federation = federation
        self.engine = engine or Simulation()
        self.privacy = privacy or Privacy()
        self.newest: dict[Pair, tuple[int, Tensor]] = {}
        self.sent: dict[Pair, Tensor] = {}
        self._rules: dict[str, LocalRule] = {}

    def answer(self, packed: bytes) -> bytes:
        """The reply to a request, or an error as a reply."""
        max_bytes = None
        try:
            request = Payload.unpack(packed)
            max_bytes = request.fields.get("max_reply_bytes")
            reply = self._announcement() if request.fields.get("announce") else self._work(request)
        except InvalidPayloadError as error:
            reply = Payload({"error": f"the request is {error}"})
        except Exception as error:  # the node goes on, and the server's events say what failed
            first_line = str(error).strip().partition("\n")[0]
            reply = Payload({"error": f"{type(error).__name__}: {first_line}"})
        return _within_limit(reply.pack(), max_bytes)

    def _announcement(self) -> Payload:
        """The node's clients, each with its capacity and examples by task; and the number of test examples by task."""
        federation = self.federation
        names = federation.task_names
        clients = [
            [client, int(federation.capacity[client]), dict(zip(names, federation.sizes[client].tolist(), strict=True))]
            for client in federation.members
        ]
        return Payload({"clients": clients, "tested": dict(zip(names, federation.test_examples, strict=True))})

    def _work(self, request: Payload) -> Payload:
        vectors: dict[str, Tensor] = {}
        fields: dict[str, Any] = {}
        if rows := request.rows("losses", str, int):
            fields["losses"] = self._losses(request, rows)
        if rows := request.rows("train", str, int, bool, str):
            fields["trained"] = self._train(request, rows, vectors)
        if rows := request.rows("collect", str, int, int):
            fields["collected"] = self._collect(rows, vectors)
        if rows := request.rows("test", str):
            fields["tests"] = self._test(request, [name for (name,) in rows])
        return Payload(fields, vectors)

    def _losses(self, request: Payload, rows: Sequence[tuple[Any, ...]]) -> list[list[Any]]:
        """The mean loss of the weights on each client's data."""
        by_task = _clients_by_task(rows)
        workloads = [
            Workload(self.federation, *self._task_and_weights(request, name, client))
            for name, client in by_task.items()
        ]
        found = self.engine.losses(workloads)
        return [
            [name, int(i), float(loss)]
            for (name, client), losses in zip(by_task.items(), found, strict=True)
            for i, loss in zip(client, losses, strict=True)
        ]

    def _train(self, request: Payload, rows: Sequence[tuple[Any, ...]], vectors: dict[str, Tensor]) -> list[list[Any]]:
        """Trains, and reports of every update its loss, steps, norm and inner product with the last one sent.

        It sends the updates that are wanted, and those for which it lacks the update that the server remembers.
        """
        round, seed, local = (
            int(request.fields["round"]),
            int(request.fields["seed"]),
            self._local_rule(request.fields["method"]),
        )
        by_task = _clients_by_task(rows)
        trainings = []
        for name, client in by_task.items():
            task, weights, client = self._task_and_weights(request, name, client)
            names = [f"correction.{name}.{i}" for i in client]
            corrections = [request.vector(each, len(weights)) for each in names if each in request.vectors]
            correction = torch.stack(corrections).to(weights.device) if corrections else None
            trainings.append(Training(self.federation, task, weights, client, round, seed, local, correction))
        wanted = {(name, i): (send, remembered) for name, i, send, remembered in rows}
        reports = []
        for name, trained in zip(by_task, self.engine.train(trainings), strict=True):
            protected = self.privacy.protect(trained.flat).cpu()  # once: what is sent later, or again, is the same
            for n, i in enumerate(trained.client.tolist()):
                pair, update = (name, i), protected[n].clone()
                send, remembered = wanted[pair]
                product = self._inner_product(pair, update, remembered)
                self.newest[pair] = (round, update)
                if send or product is None:
                    self._send(pair, update, vectors)
                reports.append([name, i, float(trained.loss[n]), int(trained.steps[n]), float(update.norm()), product])
        return reports

    def _inner_product(self, pair: Pair, update: Tensor, remembered: str) -> float | None:
        """The inner product with the update that the server remembers: 0 for none, None if the node has another."""
        last_sent = self.sent.get(pair)
        if last_sent is not None and remembered == fingerprint(last_sent):
            return float((update * last_sent).sum())
        return None if remembered else 0.0

    def _collect(self, rows: Sequence[tuple[Any, ...]], vectors: dict[str, Tensor]) -> list[list[Any]]:
        """Sends updates that were kept since a round; those that are gone are left out."""
        found = []
        for name, i, round in rows:
            kept = self.newest.get((name, i))
            if kept is not None and kept[0] == round:
                self._send((name, i), kept[1], vectors)
                found.append([name, i])
        return found

    def _send(self, pair: Pair, update: Tensor, vectors: dict[str, Tensor]) -> None:
        vectors[f"update.{pair[0]}.{pair[1]}"] = update
        self.sent[pair] = update

    def _test(self, request: Payload, names: Sequence[str]) -> list[list[Any]]:
        """The number of the node's test examples for each task, and loss and metric on them."""
        no_clients = np.zeros(0, dtype=np.int64)
        testable = [name for name in names if self.federation.test_examples[self._task_index(name)]]
        workloads = [Workload(self.federation, *self._task_and_weights(request, name, no_clients)) for name in testable]
        results = self.engine.evaluate(workloads)
        return [
            [name, self.federation.test_examples[self._task_index(name)], float(result.loss), float(result.metric)]
            for name, result in zip(testable, results, strict=True)
        ]

    def _task_and_weights(
        self, request: Payload, name: str, client: NDArray[np.int64]
    ) -> tuple[int, Tensor, NDArray[np.int64]]:
        """Index and weights of a task, and the clients, all of which must hold the task."""
        task = self._task_index(name)
        missing = [int(i) for i in client if i >= self.federation.clients or not self.federation.sizes[i, task]]
        if missing:
            raise InvalidPayloadError(f"for client {missing[0]}, which has no task '{name}' here")
        length = self.engine.architecture(self.federation.tasks[task]).length
        return task, request.vector(f"weights.{name}", length).to(self.engine.device), client

    def _task_index(self, name: str) -> int:
        if name not in self.federation.task_names:
            raise InvalidPayloadError(f"about task '{name}', which is unknown here")
        return self.federation.task_names.index(name)

    def _local_rule(self, method: str | Mapping[str, Any]) -> LocalRule:
        """The local rule of the server's method; built once, so that its trainings share cohorts."""
        key = json.dumps(method)
        if key not in self._rules:
            self._rules[key] = make_method(method).local
        return self._rules[key]


def _within_limit(reply: bytes, max_bytes: Any) -> bytes:
    """The reply, or an error in its place where it is larger than the server accepts."""
    if type(max_bytes) is not int or len(reply) <= max_bytes:
        return reply
    sizes = f"the answer has {len(reply) / 2**20:.1f} MB; the server takes {max_bytes / 2**20:.1f}"
    return Payload({"error": f"{sizes} (mmfl link --most)"}).pack()


def _clients_by_task(rows: Sequence[tuple[Any, ...]]) -> dict[str, NDArray[np.int64]]:
    """The clients of each task, in ascending order."""
    names = dict.fromkeys(str(name) for name, *_ in rows)
    return {name: np.array(sorted({i for each, i, *_ in rows if each == name}), dtype=np.int64) for name in names}
