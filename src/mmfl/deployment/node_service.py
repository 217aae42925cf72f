"""NodeService: a node's clients, their data and the engine that works for them; it answers what the server asks."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmfl.deployment.payload import GarbageError, Payload, print_of
from mmfl.deployment.remote_federation import Held
from mmfl.engine import Simulation, Training, Workload
from mmfl.local import LocalRule
from mmfl.methods import make_method
from mmfl.privacy import Privacy

Pair = tuple[str, int]


class NodeService:
    """What a node does between messages is remember: each client's newest update of a task, until the server asks for
    it, and the last one it sent, with which a new one is compared.

    A request is a table: `announce`, or any of `losses` [task, client], `train` [task, client, send, print] (with the
    print of the update the server remembers, "" for none), `collect` [task, client, round] and `test` [task]; the
    weights come as vectors. All parts that a request has are answered in one reply, of at most `most` bytes.
    """

    def __init__(self, federation: Held, engine: Simulation | None = None, privacy: Privacy | None = None):
        self.federation = federation
        self.engine = engine or Simulation()
        self.privacy = privacy or Privacy()
        self.newest: dict[Pair, tuple[int, Tensor]] = {}
        self.sent: dict[Pair, Tensor] = {}
        self._rules: dict[str, LocalRule] = {}

    def answer(self, packed: bytes) -> bytes:
        """The reply to a request; what cannot be done is said in it."""
        most = None
        try:
            request = Payload.unpack(packed)
            most = request.said.get("most")
            reply = self._announcement() if request.said.get("announce") else self._work(request)
        except GarbageError as error:
            reply = Payload({"error": f"the request is {error}"})
        except Exception as error:  # the node lives on, and the server's log says why
            reply = Payload(
                {"error": f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else ''}"}
            )
        return _within(reply.pack(), most)

    def _announcement(self) -> Payload:
        """Who is here, with how much data and what capacity; and what the node can test on."""
        held = self.federation
        names = held.task_names
        clients = [
            [client, int(held.capacity[client]), dict(zip(names, held.sizes[client].tolist(), strict=True))]
            for client in held.members
        ]
        return Payload({"clients": clients, "tested": dict(zip(names, held.tested, strict=True))})

    def _work(self, request: Payload) -> Payload:
        vectors: dict[str, Tensor] = {}
        said: dict[str, Any] = {}
        if rows := request.rows("losses", str, int):
            said["losses"] = self._losses(request, rows)
        if rows := request.rows("train", str, int, bool, str):
            said["trained"] = self._train(request, rows, vectors)
        if rows := request.rows("collect", str, int, int):
            said["collected"] = self._collect(rows, vectors)
        if rows := request.rows("test", str):
            said["tests"] = self._test(request, [name for (name,) in rows])
        return Payload(said, vectors)

    def _losses(self, request: Payload, rows: Sequence[tuple[Any, ...]]) -> list[list[Any]]:
        """The mean loss of the weights on each client's data."""
        by_task = _grouped(rows)
        workloads = [Workload(self.federation, *self._at(request, name, client)) for name, client in by_task.items()]
        found = self.engine.losses(workloads)
        return [
            [name, int(i), float(loss)]
            for (name, client), losses in zip(by_task.items(), found, strict=True)
            for i, loss in zip(client, losses, strict=True)
        ]

    def _train(self, request: Payload, rows: Sequence[tuple[Any, ...]], vectors: dict[str, Tensor]) -> list[list[Any]]:
        """Trains, remembers, and says of every update its loss, steps, norm and product with the last one; sends those
        that are wanted, and those it has nothing to compare with."""
        round, seed, local = int(request.said["round"]), int(request.said["seed"]), self._rule(request.said["method"])
        by_task = _grouped(rows)
        trainings = []
        for name, client in by_task.items():
            task, weights, client = self._at(request, name, client)
            names = [f"correction.{name}.{i}" for i in client]
            corrected = [request.vector(each, len(weights)) for each in names if each in request.vectors]
            correction = torch.stack(corrected).to(weights.device) if corrected else None
            trainings.append(Training(self.federation, task, weights, client, round, seed, local, correction))
        wanted = {(name, i): (send, mark) for name, i, send, mark in rows}
        said = []
        for name, trained in zip(by_task, self.engine.train(trainings), strict=True):
            protected = self.privacy.protect(trained.flat).cpu()  # once: what is sent later, or again, is the same
            for n, i in enumerate(trained.client.tolist()):
                pair, update = (name, i), protected[n].clone()
                send, mark = wanted[pair]
                before = self.sent.get(pair)
                known = before is not None and mark == print_of(before)
                inner = float((update * before).sum()) if before is not None and known else 0.0 if not mark else None
                self.newest[pair] = (round, update)
                if send or inner is None:
                    self._send(pair, update, vectors)
                said.append([name, i, float(trained.loss[n]), int(trained.steps[n]), float(update.norm()), inner])
        return said

    def _collect(self, rows: Sequence[tuple[Any, ...]], vectors: dict[str, Tensor]) -> list[list[Any]]:
        """Sends updates of a round that were kept; those that are gone it leaves out."""
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
        """Loss and metric on the examples of the node's clients that are for testing, and how many they are."""
        nobody = np.zeros(0, dtype=np.int64)
        here = [name for name in names if self.federation.tested[self._number(name)]]
        workloads = [Workload(self.federation, *self._at(request, name, nobody)) for name in here]
        results = self.engine.evaluate(workloads)
        return [
            [name, self.federation.tested[self._number(name)], float(result.loss), float(result.metric)]
            for name, result in zip(here, results, strict=True)
        ]

    def _at(self, request: Payload, name: str, client: NDArray[np.int64]) -> tuple[int, Tensor, NDArray[np.int64]]:
        """Number and weights of a task, for clients that have it."""
        task = self._number(name)
        missing = [int(i) for i in client if i >= self.federation.clients or not self.federation.sizes[i, task]]
        if missing:
            raise GarbageError(f"for client {missing[0]}, which has no task '{name}' here")
        length = self.engine.architecture(self.federation.tasks[task]).length
        return task, request.vector(f"weights.{name}", length).to(self.engine.device), client

    def _number(self, name: str) -> int:
        if name not in self.federation.task_names:
            raise GarbageError(f"about task '{name}', which is unknown here")
        return self.federation.task_names.index(name)

    def _rule(self, method: str | Mapping[str, Any]) -> LocalRule:
        """The local rule of the server's method, made once, so that its trainings share cohorts."""
        key = json.dumps(method)
        if key not in self._rules:
            self._rules[key] = make_method(method).local
        return self._rules[key]


def _within(reply: bytes, most: Any) -> bytes:
    """A reply, unless it has more bytes than the server takes: then it says so."""
    if type(most) is not int or len(reply) <= most:
        return reply
    sizes = f"the answer has {len(reply) / 2**20:.1f} MB; the server takes {most / 2**20:.1f}"
    return Payload({"error": f"{sizes} (mmfl link --most)"}).pack()


def _grouped(rows: Sequence[tuple[Any, ...]]) -> dict[str, NDArray[np.int64]]:
    """The clients of each task, in ascending order."""
    names = dict.fromkeys(str(name) for name, *_ in rows)
    return {name: np.array(sorted({i for each, i, *_ in rows if each == name}), dtype=np.int64) for name in names}
