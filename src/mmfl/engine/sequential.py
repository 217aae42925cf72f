"""The plain way: one client after another, for any module; on a CPU, clients side by side on its cores."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import numpy as np
import torch
from torch import Tensor

from mmfl.engine.chunk import Chunk
from mmfl.engine.operators import Operators
from mmfl.engine.precision import autocast_to, to_float32
from mmfl.engine.products import Factors
from mmfl.federation.objectives import per_example


def train_sequential(chunk: Chunk, workers: int = 1) -> Tensor:
    """Fills `chunk.weights` with updates and returns losses, as `train_cohort` does.

    With several workers each takes job after job on a single core: for networks that are small for the machine
    that beats splitting every operation over all cores. A module that draws random numbers of its own is alone with
    torch's generator, which is seeded at every step and left as it was.
    """
    seen = torch.zeros(len(chunk.jobs), device=chunk.weights.device)
    jobs = iter(range(len(chunk.jobs)))
    if workers == 1 or len(chunk.jobs) == 1 or chunk.architecture.draws:
        with torch.random.fork_rng(enabled=chunk.architecture.draws):
            _train(chunk, jobs, seen)
        return seen
    threads = torch.get_num_threads()
    try:
        with ThreadPoolExecutor(workers, initializer=_prepare_thread) as pool:
            list(pool.map(lambda _: _train(chunk, jobs, seen), range(workers)))
    finally:
        torch.set_num_threads(threads)
    return seen


def _prepare_thread() -> None:
    """One core for this thread; and no denormal numbers, which the gradients of well-fitted examples are full of and
    which make a product of matrices ten times slower."""
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)


def _train(chunk: Chunk, jobs: Iterator[int], seen: Tensor) -> None:
    """One job after another on a module of this thread's own, as long as there are any left.

    Threads share one interpreter: what is the same at every step is done before, so that they seldom wait for it.
    """
    architecture, layout, batches = chunk.architecture, chunk.architecture.layout, chunk.batches
    module = architecture.copy()
    parameters = list(module.parameters())
    own = torch.empty(1, layout.length, device=chunk.weights.device)
    for parameter, view in zip(parameters, layout.views(own[0]), strict=True):
        parameter.data = view
    which = chunk.which.tolist()
    factors = Factors(parameters)
    factors.watch(module)
    operators = Operators(architecture.sequential_operators) if architecture.sequential_operators else None
    for job in jobs:
        here = slice(job, job + 1)
        start = chunk.starts[which[job]]
        own.copy_(start)
        pieces = chunk.pieces(own, here)
        begins, lengths = batches.position(np.arange(chunk.jobs.steps[job]), job)
        losses = []
        for step, (begin, length) in enumerate(zip(begins.tolist(), lengths.tolist(), strict=True)):
            x, y = batches.examples(begin, length)
            if operators:
                operators.begin(batches.key(step, job))
            if architecture.draws:
                torch.manual_seed(int(batches.key(step, job)) % 2**63)
            with operators or nullcontext():
                with autocast_to(architecture.precision):
                    outputs = module(x)
                loss = per_example(architecture.loss(to_float32(outputs), y)).mean()
            chunk.descend(pieces, here, layout.gradients(loss, parameters, factors))
            losses.append(loss.detach())
        seen[job] = torch.stack(losses) @ torch.from_numpy(lengths).to(own)
        torch.sub(start, own[0], out=chunk.weights[job])
