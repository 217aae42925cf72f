"""The plain way: one client after another, for any module; on a CPU, clients side by side on its cores."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import torch
from torch import Tensor

from mmfl.engine.chunk import Chunk
from mmfl.engine.operators import Operators
from mmfl.local import LocalStep
from mmfl.objectives import per_example


def train_sequential(chunk: Chunk, workers: int = 1) -> Tensor:
    """Fills `chunk.weights` with updates and returns losses, as `train_cohort` does.

    With several workers each takes every n-th job on a single core: for networks that are small for the machine
    that beats splitting every operation over all cores. A module that draws random numbers of its own is alone with
    torch's generator, which is seeded at every step and left as it was.
    """
    seen = torch.zeros(len(chunk.jobs), device=chunk.weights.device)
    if workers == 1 or len(chunk.jobs) == 1 or chunk.architecture.draws:
        with torch.random.fork_rng(enabled=chunk.architecture.draws):
            _train(chunk, range(len(chunk.jobs)), seen)
        return seen
    threads = torch.get_num_threads()
    try:
        with ThreadPoolExecutor(workers, initializer=_prepare_thread) as pool:
            list(pool.map(lambda w: _train(chunk, range(w, len(chunk.jobs), workers), seen), range(workers)))
    finally:
        torch.set_num_threads(threads)
    return seen


def _prepare_thread() -> None:
    """One core for this thread; and no denormal numbers, which the gradients of well-fitted examples are full of and
    which make a product of matrices ten times slower."""
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)


def _train(chunk: Chunk, jobs: Sequence[int], seen: Tensor) -> None:
    """One job after another on a module of this thread's own, whose parameters are views of the job's weights."""
    architecture, layout, batches = chunk.architecture, chunk.architecture.layout, chunk.batches
    module = architecture.copy()
    parameters = list(module.parameters())
    operators = Operators(architecture.sequential_operators) if architecture.sequential_operators else None
    steps, rates = chunk.jobs.steps, chunk.jobs.learning_rates()
    for job in jobs:
        here = slice(job, job + 1)
        chunk.begin(here)
        weights = chunk.weights[here]
        for parameter, view in zip(parameters, layout.views(weights[0]), strict=True):
            parameter.data = view
        for step in range(int(steps[job])):
            x, y = batches.single(step, job)
            if operators:
                operators.begin(batches.key(step, job))
            if architecture.draws:
                torch.manual_seed(int(batches.key(step, job)) % 2**63)
            with operators or nullcontext():
                loss = per_example(architecture.loss(module(x), y)).mean()
            for piece, gradient in layout.gradients(loss, parameters):
                place = weights[:, piece]
                direction = chunk.rule.direction(
                    LocalStep(gradient[None], place, chunk.starts[:, piece], chunk.which[here])
                )
                place.sub_(direction, alpha=float(rates[job]))
            seen[job] += loss.detach() * len(x)
        chunk.finish(here)
