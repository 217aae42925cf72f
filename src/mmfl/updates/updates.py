"""Trained and Updates: what an engine returns of local training, and the part of it that belongs to one task."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmfl.allocation import Allocation
from mmfl.tensors import to_device
from mmfl.updates.rows import ClientRows
from mmfl.updates.world import SINGLE_PROCESS, World


@dataclass(frozen=True, eq=False)
class Trained:
    """Local updates [rows, parameters] (start minus end), the mean loss seen on the way and the steps taken, [rows].

    Row n belongs to `client[n]`: an engine may return the clients in another order than they were given, and leave out
    those that failed. Where several processes share a run, `client`, `loss` and `steps` are those of all of them, and
    `flat` has the rows `here` alone. The same holds if clients keep updates that nobody needs: then `norm` and `inner`
    are what the clients report of all rows, ||G|| and `<G, h>`. `batch_norm` has a row for every row of `flat`,
    where there is batch norm and clients share it, and `optimiser_state` where clients keep that.
    """

    client: NDArray[np.int64]
    flat: Tensor
    loss: NDArray[np.float64]
    steps: NDArray[np.int64]
    here: NDArray[np.int64] | None = None
    world: World = SINGLE_PROCESS
    norm: NDArray[np.float64] | None = None
    inner: NDArray[np.float64] | None = None
    batch_norm: Tensor | None = None
    optimiser_state: Tensor | None = None

    @property
    def client_rows(self) -> ClientRows:
        """The updates, wherever they are."""
        return ClientRows(self.flat, self.here, len(self.client), self.world, self.norm, self.inner)

    def rows_of(self, matrix: Tensor | None) -> ClientRows | None:
        """What clients have of batch norm or of their optimisers, given `batch_norm` or `optimiser_state`."""
        return None if matrix is None else ClientRows(matrix, self.here, len(self.client), self.world)


@dataclass(frozen=True, eq=False)
class SentFrom:
    """What asynchronous training knows of each update besides: from which version of the task's weights its client
    began, [rows], and how many versions have been made since (`staleness`).

    `weights` [rows, parameters] are those that clients began with, for rules that say `needs_starts`. `memory`
    [parameters] is what the rule's memory stood for when the requests were sent, their mean, where that is kept.
    """

    version: NDArray[np.int64]
    staleness: NDArray[np.int64]
    weights: Tensor | None = None
    memory: Tensor | None = None

    def where(self, wanted: NDArray[np.bool_]) -> "SentFrom":
        """Of the wanted rows alone; the mean of the memory stays that of all."""
        weights = None if self.weights is None else self.weights[torch.from_numpy(wanted).to(self.weights.device)]
        return replace(self, version=self.version[wanted], staleness=self.staleness[wanted], weights=weights)


@dataclass(frozen=True, eq=False)
class Updates:
    """The local updates G of one task, a row per client that trained it.

    `flat` [rows, parameters] is the global weights minus the locally trained ones: the step to subtract. `loss` is
    the mean loss seen during local training, in `steps` local steps. `count` and `probability` are the allocation's,
    row by row; where everyone trains before some are drawn, the others have count 0. `completion` is the probability
    with which a drawn client's update is there when the round ends, [rows]; 1 where nothing is said. `sent` says when
    each client began, where they did not begin together.

    A rule computes with all rows, wherever they are: `combine` and `norms` leave them there, and `flat` fetches those
    that other processes of the run have. `rows` may be given as the tensor `flat`.
    """

    task: int
    client: NDArray[np.int64]
    count: NDArray[np.int64]
    probability: NDArray[np.float64]
    rows: ClientRows
    loss: NDArray[np.float64]
    steps: NDArray[np.int64]
    batch_norm: ClientRows | None = None
    optimiser_state: ClientRows | None = None
    completion: NDArray[np.float64] = field(default_factory=lambda: np.ones(0))
    sent: "SentFrom | None" = None

    def __post_init__(self) -> None:
        if isinstance(self.rows, Tensor):
            object.__setattr__(self, "rows", ClientRows(self.rows))
        if len(self.completion) != len(self.client):
            object.__setattr__(self, "completion", np.ones(len(self.client)))

    @classmethod
    def of(
        cls,
        task: int,
        trained: Trained,
        allocation: Allocation | None = None,
        completion: NDArray[np.float64] | None = None,
    ) -> "Updates":
        """What an engine returned for a task, beside what the allocation says of those clients; None: nobody has been
        drawn yet. `completion` is 1 unless given."""
        client = trained.client
        count, probability = np.zeros(len(client), dtype=np.int64), np.zeros(len(client))
        if allocation is not None:
            count, probability = allocation.count_of(client, task), allocation.given_probabilities[client, task]
        columns = client, count, probability, trained.client_rows, trained.loss, trained.steps
        kept = trained.rows_of(trained.batch_norm), trained.rows_of(trained.optimiser_state)
        return cls(task, *columns, *kept, np.ones(len(client)) if completion is None else completion)

    @classmethod
    def planned(cls, task: int, client: NDArray[np.int64], weights: Tensor, allocation: Allocation) -> "Updates":
        """What is known of the updates of these clients before they train: losses are nan, and there are no rows."""
        unknown, none = np.full(len(client), np.nan), np.zeros(len(client), dtype=np.int64)
        flat, here = weights.new_empty(0, len(weights)), np.zeros(0, dtype=np.int64)
        return cls.of(task, Trained(client, flat, unknown, none, here), allocation)

    def __len__(self) -> int:
        return len(self.client)

    @property
    def flat(self) -> Tensor:
        """All rows, [rows, parameters]."""
        return self.rows.all()

    def combine(self, coefficients: NDArray[np.float64]) -> Tensor:
        """The weighted sum of the rows: coefficients @ updates."""
        return self.rows.combine(coefficients)

    def norms(self) -> NDArray[np.float64]:
        """||G|| of each row."""
        return self.rows.norms()

    def drawn(self) -> "Updates":
        """Without the rows of those that trained but were not drawn."""
        return self.where(self.count > 0)

    def valid(self, finite: NDArray[np.bool_] | None = None) -> "Updates":
        """Without rows that are not finite: such a client counts as absent. `finite` says which rows of this process
        are, if that is already known."""
        if finite is None:
            (finite,) = finite_rows([self.rows.matrix], row_sums([self.rows.matrix]))
        for other in (self.batch_norm, self.optimiser_state):
            if other is not None:
                finite = finite & finite_rows([other.matrix], row_sums([other.matrix]))[0]
        kept = self.rows.finite(finite)
        return self.where(kept & np.isfinite(self.loss) if self.rows.are_single else kept)

    def without_rows(self) -> "Updates":
        """What is known of them, without the rows, which are large."""
        return replace(self, rows=self.rows.without_matrix(), batch_norm=None, optimiser_state=None)

    def where(self, wanted: NDArray[np.bool_]) -> "Updates":
        """The wanted rows alone."""
        if wanted.all():
            return self
        columns = {name: getattr(self, name)[wanted] for name in _COLUMNS}
        given = {name: getattr(self, name) for name in ("rows", "batch_norm", "optimiser_state")}
        rows = {name: each.where(wanted) for name, each in given.items() if each is not None}
        return replace(self, **columns, **rows, sent=None if self.sent is None else self.sent.where(wanted))


_COLUMNS = ("client", "count", "probability", "loss", "steps", "completion")  # an entry for each row


def row_sums(updates: Sequence[Tensor]) -> list[NDArray[np.float32]]:
    """The row sums of several matrices on one device, with a single wait for the device."""
    sums = torch.cat([flat.sum(1) for flat in updates]).cpu().numpy()
    return np.split(sums, np.cumsum([len(flat) for flat in updates])[:-1])


def finite_rows(updates: Sequence[Tensor], sums: Sequence[NDArray[np.float32]]) -> list[NDArray[np.bool_]]:
    """Which rows of several matrices hold only finite numbers, given the row sums."""
    finite = [np.isfinite(each) for each in sums]
    for flat, good in zip(updates, finite, strict=True):
        if not good.all():  # a sum may overflow where no entry does
            good[~good] = torch.isfinite(flat[to_device(~good, flat.device)]).all(1).cpu().numpy()
    return finite
