"""NodeService: answers the server's requests with the data and the engine of one node."""

import hashlib
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmfl.deployment.client_states import ClientStates
from mmfl.deployment.payload import InvalidPayloadError, Pair, Payload, fingerprint
from mmfl.deployment.remote_federation import NodeFederation
from mmfl.deployment.versions import Versions
from mmfl.engine import Simulation, Training, Workload
from mmfl.engine.simulation import check_private_batch_norm
from mmfl.local import LocalRule
from mmfl.methods import make_method
from mmfl.privacy import Privacy
from mmfl.updates import Trained, Updates

_log = logging.getLogger(__name__)


class NodeService:
    """A node's clients and what they remember between requests.

    For each client and task it keeps the newest update until the server collects it, and the last update that was sent,
    with which a new one is compared. A request has the field `announce`, or any of `losses` [task, client], `train`
    [task, client, send, fingerprint] (of the update the server remembers, "" for none), `collect` [task, client, round]
    and `test` [task]; weights come as vectors. All parts are answered in one reply, of at most `max_reply_bytes`.

    Requests of secure aggregation have parts of their own, see `SecureService`; with `sums_only` no update leaves the
    node in any other way.

    What clients keep for themselves, local batch norm and the state of optimisers, is in `folder` for as long as the
    server's run is the same.

    A request that comes again, because its reply was lost on the way or the server was restarted, gets the same reply
    again: nothing is trained twice, and no noise is drawn twice for it.
    """

    def __init__(
        self,
        federation: NodeFederation,
        engine: Simulation | None = None,
        privacy: Privacy | None = None,
        folder: Path | None = None,
        sums_only: bool = False,
    ):
        self.federation, self.sums_only = federation, sums_only
        self.engine = engine or Simulation()
        self.privacy = privacy or Privacy()
        for task in federation.tasks:
            check_private_batch_norm(task, self.privacy)
        self.states = ClientStates(folder)
        self.problem = ""  # of the versions, as told last
        self.announcement = _announcement(federation)
        self.announced = hashlib.blake2b(json.dumps(self.announcement).encode(), digest_size=8).hexdigest()
        self.newest: dict[Pair, tuple[int, Tensor, Tensor | None]] = {}
        self.sent: dict[Pair, Tensor] = {}
        self._last: tuple[bytes, bytes] = (b"", b"")  # the hash of the last request that could be answered, the reply

    def answer(self, packed: bytes) -> bytes:
        """The reply to a request, or an error as a reply."""
        request_hash = hashlib.blake2b(packed).digest()
        if request_hash == self._last[0]:
            return self._last[1]
        reply, max_bytes = self._answer(packed)
        packed_reply = _within_limit(reply.pack(), max_bytes)
        if "error" not in reply.fields:
            self._last = (request_hash, packed_reply)
        return packed_reply

    def _answer(self, packed: bytes) -> tuple[Payload, Any]:
        """The reply, and the largest size that the server accepts."""
        max_bytes, reply = None, Payload()
        try:
            request = Payload.unpack(packed)
            max_bytes = request.fields.get("max_reply_bytes")
            for part in (self._announce, self._losses, self._train, self._sum, self._collect, self._test):
                part(request, reply)
            reply.fields["announced"] = self.announced
        except InvalidPayloadError as error:
            reply = Payload({"error": f"the request is {error}"})
        except Exception as error:  # the node goes on, and the server's events say what failed
            first_line = str(error).strip().partition("\n")[0]
            reply = Payload({"error": f"{type(error).__name__}: {first_line}"})
        return reply, max_bytes

    def _announce(self, request: Payload, reply: Payload) -> None:
        """The node's clients, each with its capacity and examples by task; and the number of test examples by task."""
        if request.fields.get("announce"):
            reply.fields.update(self.announcement, versions=Versions.here().to_json())
            problem = Versions.here().why_incompatible(Versions.read(request.fields.get("versions")))
            if problem and problem != self.problem:
                self.problem = problem
                _log.error("the server does not take this node: %s", problem)

    def _losses(self, request: Payload, reply: Payload) -> None:
        """The mean loss of the weights on each client's data."""
        by_task = _clients_by_task(request.rows("losses", str, int))
        workloads = [self._workload(request, name, clients) for name, clients in by_task.items()]
        for name, workload, losses in zip(by_task, workloads, self.engine.losses(workloads), strict=True):
            for client, loss in zip(workload.client.tolist(), losses.tolist(), strict=True):
                reply.add("losses", name, client, loss)

    def _train(self, request: Payload, reply: Payload) -> None:
        """Trains, and reports of every update its loss, steps, norm and inner product with the last one sent.

        It sends the updates that are wanted, and those for which it lacks the update that the server remembers.
        """
        rows = request.rows("train", str, int, bool, str)
        if not rows:
            return
        if self.sums_only:
            raise InvalidPayloadError("for single updates, but this node sends sums only (secure aggregation)")
        round, wanted = int(request.fields["round"]), {(name, i): (send, last) for name, i, send, last in rows}
        for name, trained, protected in self._trained(request, _clients_by_task(rows)):
            for n, i in enumerate(trained.client.tolist()):
                pair, update = (name, i), protected[n].clone()
                send, remembered = wanted[pair]
                product = self._inner_product(pair, update, remembered)
                self.newest[pair] = (round, update, self._shared_statistics(pair, trained, n))
                if send or product is None:
                    self._send(pair, reply)
                loss, steps = float(trained.loss[n]), int(trained.steps[n])
                reply.add("trained", name, i, loss, steps, float(update.norm()), product)

    def _sum(self, request: Payload, reply: Payload) -> None:
        """Takes part in secure aggregation: trains, and sends no update but in a masked sum; helps to unmask sums."""
        if "secure" not in request.fields:
            return
        self._secure.answer(request, reply)
        rows = request.rows("sum", str, int, float)
        if rows and self._secure.trains(request):
            coefficients = {(name, i): coefficient for name, i, coefficient in rows}
            for name, trained, protected in self._trained(request, _clients_by_task(rows)):
                own = {i: coefficients[name, i] for i in trained.client.tolist()}
                self._secure.add_up(request, name, trained, protected, own, reply)

    @cached_property
    def _secure(self) -> Any:
        """The node's part in secure aggregation; what it imports takes memory that other nodes need not spend."""
        return import_module("mmfl.deployment.secure_service").SecureService()

    def _trained(
        self, request: Payload, by_task: Mapping[str, NDArray[np.int64]]
    ) -> Iterator[tuple[str, Trained, Tensor]]:
        """Trains the clients of each task: what came of it, and the updates as they may leave the clients."""
        round, seed = int(request.fields["round"]), int(request.fields["seed"])
        local = _local_rule(json.dumps(request.fields["method"]))
        trainings = []
        for name, clients in by_task.items():
            work = self._workload(request, name, clients)
            names = [f"correction.{name}.{i}" for i in clients]
            corrections = [request.vector(each, len(work.weights)) for each in names if each in request.vectors]
            correction = torch.stack(corrections).to(work.weights.device) if corrections else None
            training = Training(**vars(work), round=round, seed=seed, local=local, correction=correction)
            trainings.append(replace(training, optimiser_state=self._optimiser_state(request, training)))
        for name, trained in zip(by_task, self.engine.train(trainings), strict=True):
            self._keep_states(name, trained)
            yield name, trained, self.privacy.protect(trained.flat).cpu()  # once: what is sent again is the same
        self.states.save()

    def _inner_product(self, pair: Pair, update: Tensor, remembered: str) -> float | None:
        """The inner product with the update that the server remembers: 0 for none, None if the node has another."""
        last_sent = self.sent.get(pair)
        if last_sent is not None and remembered == fingerprint(last_sent):
            return float((update * last_sent).sum())
        return None if remembered else 0.0

    def _collect(self, request: Payload, reply: Payload) -> None:
        """Sends updates that were kept since a round; those that are gone are left out."""
        for name, i, round in request.rows("collect", str, int, int):
            if (name, i) in self.newest and self.newest[name, i][0] == round:
                self._send((name, i), reply)
                reply.add("collected", name, i)

    def _send(self, pair: Pair, reply: Payload) -> None:
        _, update, statistics = self.newest[pair]
        reply.vectors[f"update.{pair[0]}.{pair[1]}"] = self.sent[pair] = update
        if statistics is not None:
            reply.vectors[f"batch_norm.{pair[0]}.{pair[1]}"] = statistics

    def _shared_statistics(self, pair: Pair, trained: Trained, row: int) -> Tensor | None:
        """A trained client's statistics of batch norm, to send; those that are local stay here."""
        if trained.batch_norm is None or self.federation.tasks[self._task(pair[0])].batch_norm == "local":
            return None
        return trained.batch_norm[row].cpu().clone()

    def _keep_states(self, name: str, trained: Trained) -> None:
        """Keeps what stays with the clients of a task; those whose training is not finite keep what they had."""
        task = self._task(name)
        valid = Updates.of(task, trained).valid()
        batch_norm = valid.batch_norm if self.federation.tasks[task].batch_norm == "local" else None
        for kind, rows in (("batch_norm", batch_norm), ("optimiser", valid.optimiser_state)):
            if rows is not None:
                self.states.put(kind, name, valid.client, rows.matrix)

    def _test(self, request: Payload, reply: Payload) -> None:
        """The number of the node's test examples for each task, the loss on them and the sums that the metrics are
        computed from; and the metric of each client."""
        workloads = [self._workload(request, name) for (name,) in request.rows("test", str)]
        workloads = [each for each in workloads if self.federation.test_examples[each.task]]
        for workload, result in zip(workloads, self.engine.evaluate(workloads), strict=True):
            name, count = self.federation.task_names[workload.task], self.federation.test_examples[workload.task]
            reply.add("tests", name, count, float(result.loss), [each.tolist() for each in result.statistics])
            if (found := result.clients) is not None:
                columns = (found.client.tolist(), found.examples.tolist(), found.value.tolist())
                for client, examples, value in zip(*columns, strict=True):
                    reply.add("client_tests", name, client, examples, value if np.isfinite(value) else None)

    def _workload(self, request: Payload, name: str, clients: NDArray[np.int64] | None = None) -> Workload:
        """The clients of a task, all of which must hold it, and the weights that the server sent.

        By default a test: of the clients with test examples where batch norm is theirs, and otherwise of nobody's.
        """
        task = self._task(name)
        is_local = self.federation.tasks[task].batch_norm == "local"
        if clients is None:
            tests = self.federation.test_shards[task]
            clients = np.flatnonzero(tests.sizes) if is_local and tests else np.zeros(0, dtype=np.int64)
        missing = [int(i) for i in clients if i >= self.federation.clients or not self.federation.sizes[i, task]]
        if missing:
            raise InvalidPayloadError(f"for client {missing[0]}, which has no task '{name}' here")
        architecture = self.engine.architecture(self.federation.tasks[task])
        weights = request.vector(f"weights.{name}", architecture.layout.shared).to(self.engine.device)
        initial, batch_norm = architecture.batch_norm, None
        if is_local:
            batch_norm = self.states.of("batch_norm", name, clients, initial, _run(request))
        elif len(initial):
            batch_norm = request.vector(f"batch_norm.{name}", len(initial)).to(initial)[None]
        return Workload(self.federation, task, weights, clients, batch_norm=batch_norm)

    def _optimiser_state(self, request: Payload, work: Workload) -> Tensor | None:
        """What the clients' optimisers go on with, where clients keep that."""
        initial = self.engine.initial_optimiser_state(self.federation, work.task)
        name = self.federation.task_names[work.task]
        return self.states.of("optimiser", name, work.client, initial, _run(request)) if len(initial) else None

    def _task(self, name: str) -> int:
        if name not in self.federation.task_names:
            raise InvalidPayloadError(f"about task '{name}', which is unknown here")
        return self.federation.task_names.index(name)


def _announcement(federation: NodeFederation) -> dict[str, Any]:
    names, rows = federation.task_names, []
    for client in federation.members:
        sizes = dict(zip(names, federation.sizes[client].tolist(), strict=True))
        rows.append([client, int(federation.capacity[client]), sizes])
    return {"clients": rows, "tested": dict(zip(names, federation.test_examples, strict=True))}


def _run(request: Payload) -> str:
    """The server's run."""
    return str(request.fields.get("run", ""))


@cache
def _local_rule(method: str) -> LocalRule:
    """The local rule of the server's method, given as JSON; built once, so that its trainings share cohorts."""
    return make_method(json.loads(method)).local


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
