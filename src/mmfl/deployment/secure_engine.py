"""SecureDeployment: a deployment whose server adds up the nodes' updates without seeing any of them.

A round takes two messages to each node, as with losses before the draw: the nodes train and send masked sums, then they
open the sum. Where nodes are lost before they have sent theirs, one more message tells the masks that they share with
others. What the server learns is, for each task, the sum over the nodes that stayed to the end.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from mmfl.deployment.engine import Deployment, Requests
from mmfl.deployment.masks import Grid
from mmfl.deployment.payload import InvalidPayloadError, Payload
from mmfl.deployment.secure_messages import (
    SumPlan,
    read_masked,
    read_secrets,
    secure_field,
    table,
    write_secrets,
)
from mmfl.deployment.secure_settings import SecureAggregationConfig
from mmfl.deployment.secure_sums import CannotOpenError, MaskedSum
from mmfl.engine import Training
from mmfl.errors import UserError
from mmfl.federation.task import Task
from mmfl.updates import Trained
from mmfl.updates.summed import SummedTrained

_Read = Callable[[str, dict[str, Any]], None]


@dataclass(eq=False)
class _TaskSum:
    """A task's sum in a round: its trainings, the protocol, and the clients whose updates are in each node's part."""

    training: Training
    masked: MaskedSum
    clients: dict[str, list[int]]

    def included(self) -> NDArray[np.int64]:
        """The clients whose updates are in the sum over the nodes that are left, in ascending order."""
        return np.array(sorted(i for node in self.masked.left for i in self.clients[node]), dtype=np.int64)


class SecureDeployment(Deployment):
    """Has nodes train and mask what they send, and unmasks only sums over several nodes."""

    def __init__(self, *arguments: Any, **options: Any):
        super().__init__(*arguments, **options)
        assert self.settings.secure_aggregation is not None  # that is why this engine was chosen
        self.secure: SecureAggregationConfig = self.settings.secure_aggregation
        self._keys: dict[int, str] = {}
        self._check_statistics(self.federation.tasks)

    def train(self, trainings: Sequence[Training]) -> list[Trained]:
        """The sum of the updates of each training; without any clients where too few nodes were there to hide them."""
        nodes = [self._nodes(training) for training in trainings]
        self._ask_for_keys({node for each in nodes for node in each})
        sums = [self._begin(training, each) for training, each in zip(trainings, nodes, strict=True)]
        under_way = [each for each in sums if each is not None]
        self._train_masked(under_way)
        opened = self._open(self._without_lost(under_way))
        return [
            _sum_of(training, each, None if each is None else opened.get(each.masked.session))
            for training, each in zip(trainings, sums, strict=True)
        ]

    def _check_statistics(self, tasks: Sequence[Task]) -> None:
        """Refuses statistics of batch norm, which would travel beside the updates in clear."""
        for task, layout in zip(tasks, self._layouts, strict=True):
            if task.batch_norm == "shared" and layout.statistics.names:
                raise UserError(
                    f"task '{task.name}': shared batch norm sends every client's statistics to the server; expected "
                    "batch_norm 'local' or 'frozen', or another normalisation, with secure aggregation."
                )

    def _nodes(self, training: Training) -> dict[int, list[int]]:
        """The clients of a training by the node that serves them."""
        clients: dict[int, list[int]] = {}
        for client in training.client.tolist():
            if (node := self.roster.node_of(client)) is not None:
                clients.setdefault(node, []).append(client)
        return clients

    def _ask_for_keys(self, nodes: set[int]) -> None:
        """Asks nodes for their keys that have not told them yet."""
        unknown = sorted(nodes - set(self._keys))
        self._exchange({node: Payload({"secure": {"key": True}}) for node in unknown})

    def _begin(self, training: Training, nodes: Mapping[int, list[int]]) -> _TaskSum | None:
        """What is to be summed for a task; None where nothing is, or too few nodes could hide it."""
        if not nodes:
            return None
        names = [str(node) for node in sorted(nodes) if node in self._keys]
        if len(names) < self.secure.needed(len(names)):
            self._add_event(training, f"{len(names)} nodes would contribute, under {self.secure.least}")
            return None
        assert training.coefficients is not None  # settings admit no other methods
        largest = self.secure.clip * float(np.abs(training.coefficients).sum())
        grid = Grid.covering(self.secure.bits, largest, len(names))
        keys = {name: self._keys[int(name)] for name in names}
        masked = MaskedSum(uuid4().hex, keys, self.secure.needed(len(names)), grid, len(training.weights))
        return _TaskSum(training, masked, {name: nodes[int(name)] for name in names})

    def _train_masked(self, sums: Sequence[_TaskSum]) -> None:
        """Has nodes train and send their masked sums."""
        requests: Requests = {}
        for each in sums:
            training, masked = each.training, each.masked
            name, coefficients = self._task_name(training), _by_client(training)
            plan = SumPlan(
                masked.session,
                sorted(masked.public_keys),
                masked.threshold,
                self.secure.clip,
                masked.grid.bits,
                masked.grid.step,
            )
            for node, clients in each.clients.items():
                for client in clients:
                    request = self._request(requests, "sum", training, client, coefficients[client])
                    assert request is not None  # nothing was sent since the nodes of its clients were looked up
                    request.fields.update(round=training.round, seed=training.seed, method=self.settings.method)
                    self._add_weights(request, training)
                secure = requests[int(node)].fields.setdefault("secure", {"own": node, "keys": {}, "plans": {}})
                secure["keys"] |= masked.public_keys
                secure["plans"][name] = plan.write()
        replies = self._exchange(requests)
        for each in sums:
            self._receive(each, replies)

    def _receive(self, each: _TaskSum, replies: Mapping[str, Payload]) -> None:
        """Takes the masked vectors of a sum that can be read."""
        training, masked, name = each.training, each.masked, self._task_name(each.training)
        for node in sorted(set(each.clients) & set(replies)):
            try:
                vector, clients = read_masked(replies[node], name, masked.length, masked.grid.bits)
                if not set(clients) <= set(each.clients[node]):
                    raise InvalidPayloadError("a masked sum has updates of clients that were not asked")
                masked.receive(node, vector)
            except InvalidPayloadError as error:
                self.events.add("rejected", int(node), detail=f"task '{name}': {error}")
                continue
            for client in sorted(set(each.clients[node]) - set(clients)):
                self.events.add("rejected", client=client, detail=f"task '{name}': the update is not finite")
            each.clients[node] = clients
        self._mark_unresponsive(training.client, {i for node in masked.left for i in each.clients[node]})

    def _without_lost(self, sums: Sequence[_TaskSum]) -> list[_TaskSum]:
        """The sums that can be opened, after nodes that are left have told which masks they share with lost ones."""
        while True:
            sums = [each for each in sums if self._has_enough(each)]
            wanted = {each.masked.session: (each.masked, each.masked.wanted_seeds()) for each in sums}
            requests: Requests = {}
            for session, (_, by_node) in wanted.items():
                for node, lost in by_node.items():
                    request = requests.setdefault(int(node), Payload({"secure": {"seeds": {}}}))
                    request.fields["secure"]["seeds"][session] = lost
            if not requests:
                return list(sums)
            self._exchange(requests, partial(_read_seeds, wanted))
            for masked, by_node in wanted.values():
                for node in set(by_node) & set(masked.wanted_seeds()):
                    masked.drop(node)

    def _open(self, sums: Sequence[_TaskSum]) -> dict[str, Tensor]:
        """The sums by their sessions, unmasked with the shares that nodes tell."""
        requests: Requests = {}
        for each in sums:
            for node in sorted(each.masked.left):
                part = requests.setdefault(int(node), Payload({"secure": {"open": {}}})).fields["secure"]
                part["open"][each.masked.session] = write_secrets(each.masked.shares_for(node))

        def read(node: str, told: dict[str, Any]) -> None:
            for each in sums:
                if node in each.masked.left:
                    shares = read_secrets(table(told, "shares"), each.masked.session, each.masked.left)
                    each.masked.shares |= {(node, other): share for other, share in shares.items()}

        self._exchange(requests, read)
        opened = {}
        for each in sums:
            try:
                opened[each.masked.session] = each.masked.open()
            except CannotOpenError as error:
                self._add_event(each.training, str(error))
        return opened

    def _has_enough(self, each: _TaskSum) -> bool:
        """Whether enough nodes are left, and enough of them have updates in the sum; an event where that is not so."""
        contributors = sum(bool(each.clients[node]) for node in each.masked.left)
        try:
            each.masked.check_enough()
            if contributors < self.secure.least:
                raise CannotOpenError(f"{contributors} nodes have updates in it, under {self.secure.least}")
        except CannotOpenError as error:
            self._add_event(each.training, str(error))
            return False
        return True

    def _add_event(self, training: Training, why: str) -> None:
        self.events.add("unsummed", detail=f"task '{self._task_name(training)}' keeps its weights: {why}")

    def _exchange(self, requests: Requests, read: _Read = lambda node, told: None) -> dict[str, Payload]:
        """The replies to requests of this protocol, each of which `read` has taken; keys are remembered."""
        replies: dict[str, Payload] = {}

        def on_reply(node: int, payload: Payload) -> None:
            told = secure_field(payload)
            if "key" in told:
                self._keys[node] = str(told["key"])
            read(str(node), told)
            replies[str(node)] = payload

        self.exchange.send(requests, on_reply)
        return replies


def _read_seeds(
    wanted: Mapping[str, tuple[MaskedSum, Mapping[str, list[str]]]], node: str, told: Mapping[str, Any]
) -> None:
    """Takes the seeds that a node was asked for, sum by sum."""
    for session, (masked, by_node) in wanted.items():
        if node in by_node:
            seeds = read_secrets(table(told, "seeds"), session, set(by_node[node]))
            masked.seeds |= {(node, lost): seed for lost, seed in seeds.items()}


def _by_client(training: Training) -> dict[int, float]:
    """The coefficient of each client."""
    assert training.coefficients is not None  # it has clients, so the aggregation was asked for them
    return dict(zip(training.client.tolist(), training.coefficients.tolist(), strict=True))


def _sum_of(training: Training, each: _TaskSum | None, total: Tensor | None) -> SummedTrained:
    """What the round goes on with: the sum, or nobody's where there is none."""
    if each is None or total is None:
        nobody = np.zeros(0, dtype=np.int64)
        return SummedTrained.of(nobody, training.weights.new_zeros(len(training.weights)), np.zeros(0))
    clients, coefficients = each.included(), _by_client(training)
    return SummedTrained.of(clients, total.to(training.weights), np.array([coefficients[i] for i in clients.tolist()]))
