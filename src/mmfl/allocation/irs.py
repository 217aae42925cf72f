"""IRS (Venn, Liu et al. 2023): which kinds of devices serve which jobs, where jobs can use some kinds only."""

import numpy as np
from numpy.typing import NDArray


def intersection_resource_schedule(
    demand: NDArray[np.int64],
    group: NDArray[np.int64],
    eligible: NDArray[np.bool_],
    supply: NDArray[np.float64],
) -> NDArray[np.int64]:
    """Which request the next device of each kind goes to, [kinds]; -1 for none.

    Requests [requests] ask for so many devices (`demand`), of those `eligible` [groups, kinds] for their `group`;
    `supply` [kinds] counts recent check-ins. First the scarcer groups get the kinds they can use. Then groups with more
    supply take kinds from scarcer ones if they have more requests for each device that they own; only kinds that they
    can use, and a group from which all kinds are taken waits. A device goes to the group that owns its kind, and there
    to the smallest request.

    >>> demand, group = np.array([5, 9]), np.array([0, 1])
    >>> intersection_resource_schedule(demand, group, np.array([[True, True], [False, True]]), np.array([8.0, 2.0]))
    array([0, 1])
    """
    owner = _owners(demand, group, eligible, supply)
    head = np.full(len(eligible) + 1, -1, dtype=np.int64)
    for request in np.argsort(demand, kind="stable")[::-1]:  # of equal ones the first
        if demand[request] > 0:
            head[group[request]] = request
    return head[owner]


def _owners(
    demand: NDArray[np.int64], group: NDArray[np.int64], eligible: NDArray[np.bool_], supply: NDArray[np.float64]
) -> NDArray[np.int64]:
    """Which group owns each kind of devices, [kinds]; -1 for kinds of no use."""
    total = eligible @ supply
    scarce_first = np.argsort(total, kind="stable")
    owner = np.full(len(supply), -1, dtype=np.int64)
    for g in scarce_first:
        owner[(owner < 0) & eligible[g]] = g
    queues = {int(g): np.sort(demand[(group == g) & (demand > 0)]) for g in range(len(eligible))}
    length = {g: float(len(queue)) for g, queue in queues.items()}
    owned = {int(g): max(float(supply[owner == g].sum()), 1.0) for g in range(len(eligible))}
    for g in scarce_first[::-1].tolist():
        if not len(queues[g]):
            continue
        for h in scarce_first[: np.flatnonzero(scarce_first == g)[0]][::-1].tolist():
            taken = (owner == h) & eligible[g]
            if not taken.any():
                continue
            if len(queues[h]) and _waiting(queues[g], queues[h], owned[g], owned[h], length[g]) / owned[g] <= (
                length[h] / owned[h]
            ):
                break
            owner[taken] = g
            owned[g] += float(supply[taken].sum())
            if not (owner == h).any():
                length[g] += length[h]
                length[h] = 0.0
            owned[h] = max(float(supply[owner == h].sum()), 1.0)
    return owner


def _waiting(own: NDArray[np.int64], other: NDArray[np.int64], rate: float, other_rate: float, length: float) -> float:
    """How many requests of a group wait no longer than all of another group's: the smallest first."""
    delay, limit = np.cumsum(own) / max(rate, 1.0), other.sum() / max(other_rate, 1.0)
    return length if delay[-1] <= limit else float((delay < limit).sum())
