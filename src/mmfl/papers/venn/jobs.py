"""Jobs that compete for devices, simulated without training: requests, rounds, deadlines, completion times."""

from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray

from mmfl.papers.venn.devices import CheckIns
from mmfl.papers.venn.schedules import Schedule, Waiting

_WINDOW = 1000  # check-ins that the supply is counted from
_CHUNK = 512  # check-ins looked at together
_SUFFICIENT = 0.8  # of the results make a round succeed


@dataclass(frozen=True, eq=False)
class JobList:
    """Federated learning jobs: when each arrives, how many devices it asks for in a round, how many rounds must
    succeed, a round's deadline in seconds, and its requirement."""

    arrival: NDArray[np.float64]
    demand: NDArray[np.int64]
    rounds: NDArray[np.int64]
    deadline: NDArray[np.float64]
    group: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class JobTimes:
    """What became of the jobs: completion time minus arrival (nan if check-ins ended before), rounds that failed, and
    whether any device served a job that it is not eligible for."""

    seconds: NDArray[np.float64]
    failed: NDArray[np.int64]
    devices: NDArray[np.int64]
    ineligible: int


class JobSimulation:
    """One schedule over a stream of check-ins. A phone serves one job per check-in, or none.

    A job's round begins with a request for devices. When all are assigned it waits until 80% of their results are back,
    and has failed if they are not by the deadline, counted from the last assignment; then the round is repeated.
    """

    def __init__(
        self, jobs: JobList, check_ins: CheckIns, eligible: NDArray[np.bool_], schedule: Schedule, seed: int = 0
    ):
        self.jobs, self.check_ins, self.eligible, self.schedule = jobs, check_ins, eligible, schedule
        number = len(jobs.arrival)
        self.left, self.demand = jobs.rounds.copy(), np.zeros(number, dtype=np.int64)
        self.results: list[list[NDArray[np.float64]]] = [[] for _ in range(number)]
        self.seconds, self.failed = np.full(number, np.nan), np.zeros(number, dtype=np.int64)
        self.devices, self.succeeded = np.zeros(number, dtype=np.int64), np.zeros(number, dtype=bool)
        self.chance = np.random.default_rng(seed).random(len(check_ins.time))
        self.ineligible = 0

    def run(self) -> JobTimes:
        """Until all jobs are done or check-ins end."""
        check_ins, events, at = self.check_ins, list[tuple[float, int, bool]](), 0
        for job, arrival in enumerate(self.jobs.arrival.tolist()):
            heappush(events, (arrival, job, True))
        while at < len(check_ins.time) and np.isnan(self.seconds).any():
            waiting = np.flatnonzero(self.demand > 0)
            horizon = events[0][0] if events else np.inf
            end = int(np.searchsorted(check_ins.time, horizon))
            if len(waiting) and at < end:
                at, full = self.assign(waiting, at, min(end, at + _CHUNK))
                if full is not None:
                    heappush(events, (*self.close(full, float(check_ins.time[at - 1])), False))
                continue
            at = max(at, end)
            if not events:
                break
            time, job, begins = heappop(events)
            if not begins:
                self.left[job] -= self.succeeded[job]
                self.failed[job] += not self.succeeded[job]
            if self.left[job]:
                self.demand[job] = self.jobs.demand[job]
            else:
                self.seconds[job] = time - self.jobs.arrival[job]
        return JobTimes(self.seconds, self.failed, self.devices, self.ineligible)

    def assign(self, waiting: NDArray[np.int64], begin: int, end: int) -> tuple[int, int | None]:
        """Gives the next check-ins to jobs, until one has all it asked for; where the next begins, and that job."""
        check_ins, jobs = self.check_ins, self.jobs
        kinds = self.eligible.shape[1]
        supply = np.bincount(check_ins.kind[max(begin - _WINDOW, 0) : begin], minlength=kinds).astype(np.float64)
        service = self.demand[waiting] + (self.left[waiting] - 1) * jobs.demand[waiting]
        asking = Waiting(self.demand[waiting], service, jobs.group[waiting])
        ends = np.cumsum(self.schedule(asking, self.eligible, supply), axis=1)
        kind = check_ins.kind[begin:end]
        place = (ends[kind] <= (self.chance[begin:end] * ends[kind, -1])[:, None]).sum(1)
        used = np.flatnonzero(ends[kind, -1] > 0)
        order = used[np.argsort(place[used], kind="stable")]
        first = np.searchsorted(place[order], place[order])
        last = order[np.arange(len(order)) - first + 1 == asking.demand[place[order]]]
        if len(last):
            end = begin + int(last.min()) + 1
            used = used[used < end - begin]
        job = waiting[place[used]]
        self.ineligible += int((~self.eligible[jobs.group[job], kind[used]]).sum())
        finish = np.where(
            check_ins.comes_back[begin:end][used],
            check_ins.time[begin:end][used] + check_ins.seconds[begin:end][used],
            np.inf,
        )
        for each in np.unique(job):
            self.results[each].append(finish[job == each])
        counts = np.bincount(job, minlength=len(self.demand))
        self.demand -= counts
        self.devices += counts
        return end, int(job[-1]) if len(last) else None

    def close(self, job: int, time: float) -> tuple[float, int]:
        """When the round of a job ends whose last device was assigned at a time."""
        finish = np.sort(np.concatenate(self.results[job]))
        self.results[job].clear()
        back = max(float(finish[int(np.ceil(_SUFFICIENT * len(finish))) - 1]), time)
        deadline = time + float(self.jobs.deadline[job])
        self.succeeded[job] = back <= deadline
        return min(back, deadline), job
