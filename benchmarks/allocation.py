"""Allocation alone: probabilities of least variance and draws for up to a million clients.

Prints seconds a round for N clients and S tasks: the view of the round, the probabilities of MMFL-LVR, each way to
draw from them, and the round's whole decision, from the view to the rows that were drawn systematically. All of it is
array code over [clients, tasks]. Then the same decision of `forecast` without the view: the expected residual of
every pair, nine tenths of which have been seen, importance, probabilities and systematic draw. The last column is the
most memory that the decision of LVR holds beside the federation and the measured losses, in bytes per client and task;
24 of them, sizes, shares and probabilities, last for the round.

    python benchmarks/allocation.py [--largest 1000000] [--tasks 3,5,50]
"""

import argparse
import platform
import time
import tracemalloc
from collections.abc import Callable
from functools import partial

import numpy as np

import mmfl
from mmfl.allocation import ExpectedResidualVariance, LossVariance, least_variance
from mmfl.allocation.sampling import DRAWS
from mmfl.updates.expected_residuals import ExpectedResiduals, by_pair


def federation_of(clients: int, tasks: int) -> mmfl.Federation:
    """Clients with one to three examples and processors, of whom a tenth lacks a task."""
    owner = np.repeat(np.arange(clients), 1 + np.arange(clients) % 3)
    x, y = np.zeros((len(owner), 1), dtype=np.float32), np.arange(len(owner)) % 2
    data = mmfl.data.from_arrays(x, y, owner, test=(x[:2], y[:2]))
    model = partial(mmfl.models.LogisticRegression, 1, 2)
    return mmfl.Federation(
        [mmfl.Task(f"task {s}", model, data) for s in range(tasks)], capacity=[1, 2, min(3, tasks - 1)], lacks=0.1
    )


def memory_of(clients: int, tasks: int) -> list[ExpectedResiduals]:
    """What `forecast` may know after a hundred rounds: nine tenths of the clients were seen, in any round."""
    rng, found = np.random.default_rng(1), []
    for _ in range(tasks):
        each = ExpectedResiduals.start(clients)
        seen = np.flatnonzero(rng.random(clients) < 0.9)
        each.last[seen], each.norm[seen] = rng.integers(1, 101, len(seen)), rng.exponential(1.0, len(seen))
        each.squares[:], each.products[:], each.stale_squares[:] = 1.0, 0.5, rng.random(len(each.squares))
        each.norms, each.received = 10.0, 10.0
        found.append(each)
    return found


def seconds(work: Callable[[], object], repeats: int = 3) -> float:
    """The best of some calls."""
    spent = []
    for _ in range(repeats):
        begun = time.perf_counter()
        work()
        spent.append(time.perf_counter() - begun)
    return min(spent)


def peak(work: Callable[[], object]) -> int:
    """The most bytes of arrays that a call holds at a time."""
    tracemalloc.start()
    work()
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return most


def measure(clients: int, tasks: int) -> str:
    """A line of the table."""
    federation = federation_of(clients, tasks)
    losses = np.random.default_rng(0).exponential(1.0, federation.sizes.shape)
    see = partial(federation.view, 1, rate=0.1, seed=0)
    rule = LossVariance(draw="systematic")

    def decide() -> object:
        return rule.allocate(see().with_signals(losses=losses), None)

    memory, foresee = memory_of(clients, tasks), ExpectedResidualVariance()

    def forecast() -> object:
        expected = by_pair([each.expected(view.round) for each in memory], view)
        return foresee.allocate(view.with_signals(expected_residuals=expected), None)

    view = federation.view(101, rate=0.1, seed=0)
    importance = view.share * losses / view.capacity[:, None]
    probabilities = least_variance(importance, view.capacity, view.budget)
    spent = [
        seconds(see),
        seconds(lambda: least_variance(importance, view.capacity, view.budget)),
        *(seconds(partial(draw, probabilities, view)) for draw in DRAWS.values()),
        seconds(decide),
        seconds(forecast),
    ]
    cells = " | ".join(f"{value:.4f}" for value in spent)
    return f"| {clients:,} | {tasks} | {cells} | {peak(decide) / (clients * tasks):.0f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--largest", type=int, default=1_000_000)
    parser.add_argument("--tasks", default="3,5,50")
    options = parser.parse_args()
    print(f"CPU; Python {platform.python_version()}, numpy {np.__version__}")
    names = " | ".join(f"{name} s" for name in ("view", "probabilities", *DRAWS, "view to allocation", "forecast"))
    print(f"| clients | tasks | {names} | bytes a pair |")
    print("|---|---|" + "---|" * (len(DRAWS) + 5))
    for clients in (10**k for k in range(3, 7)):
        for tasks in map(int, options.tasks.split(",")):
            if clients <= options.largest:
                print(measure(clients, tasks), flush=True)


if __name__ == "__main__":
    main()
