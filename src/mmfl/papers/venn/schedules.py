"""Who serves the next device: rules that divide devices that check in among jobs that wait for some."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mmfl.allocation.irs import intersection_resource_schedule

Weights = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Waiting:
    """The jobs that wait for devices, in the order of their arrival: how many devices each still needs in this round
    (`demand`) and in all its rounds to come (`service`), and its requirement (`group`)."""

    demand: NDArray[np.int64]
    service: NDArray[np.int64]
    group: NDArray[np.int64]


Schedule = Callable[[Waiting, NDArray[np.bool_], NDArray[np.float64]], Weights]
"""Gives the share of each kind's devices that each waiting job gets, [kinds, jobs], from the jobs, from which kinds are
eligible for which group [groups, kinds], and from the recent supply of each kind."""


def fifo(waiting: Waiting, eligible: NDArray[np.bool_], supply: NDArray[np.float64]) -> Weights:
    """The job that came first."""
    return _first(eligible[waiting.group].T)


def srsf(waiting: Waiting, eligible: NDArray[np.bool_], supply: NDArray[np.float64]) -> Weights:
    """The job with the smallest remaining service, over all rounds that it has left."""
    return _in_order(np.argsort(waiting.service, kind="stable"), eligible[waiting.group].T)


def smallest_request(waiting: Waiting, eligible: NDArray[np.bool_], supply: NDArray[np.float64]) -> Weights:
    """The job that needs the fewest devices in this round: what is known where nobody says how many rounds it takes."""
    return _in_order(np.argsort(waiting.demand, kind="stable"), eligible[waiting.group].T)


def random(waiting: Waiting, eligible: NDArray[np.bool_], supply: NDArray[np.float64]) -> Weights:
    """Any job that it is eligible for, with equal chances."""
    fits = eligible[waiting.group].T.astype(np.float64)
    return np.asarray(fits / np.maximum(fits.sum(1, keepdims=True), 1))


def venn(waiting: Waiting, eligible: NDArray[np.bool_], supply: NDArray[np.float64]) -> Weights:
    """Intersection resource scheduling; in a group, the job that needs the fewest devices in this round."""
    return _to_one(intersection_resource_schedule(waiting.demand, waiting.group, eligible, supply), waiting)


def venn_by_service(waiting: Waiting, eligible: NDArray[np.bool_], supply: NDArray[np.float64]) -> Weights:
    """The same by remaining service, for jobs that say how many rounds they take (our addition)."""
    return _to_one(intersection_resource_schedule(waiting.service, waiting.group, eligible, supply), waiting)


SCHEDULES: dict[str, Schedule] = {
    "fifo": fifo,
    "srsf": srsf,
    "smallest request": smallest_request,
    "random": random,
    "venn": venn,
    "venn, by service": venn_by_service,
}


def _to_one(job: NDArray[np.int64], waiting: Waiting) -> Weights:
    return np.asarray(np.arange(len(waiting.demand)) == job[:, None], dtype=np.float64)


def _first(fits: NDArray[np.bool_]) -> Weights:
    """All of a kind for the first job that it is eligible for."""
    return np.asarray(fits & (np.cumsum(fits, axis=1) == 1), dtype=np.float64)


def _in_order(order: NDArray[np.int64], fits: NDArray[np.bool_]) -> Weights:
    weights = np.zeros(fits.shape)
    weights[:, order] = _first(fits[:, order])
    return weights
