"""Sequential training: one client after another, for any module; on a CPU, one client per core at a time."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from functools import partial

import numpy as np
import torch

from mmfl.data.structure import call_module
from mmfl.engine.cohort import Cohort
from mmfl.engine.factored import GradientFactors
from mmfl.engine.layout import copy_trainable
from mmfl.engine.local_steps import LocalSteps
from mmfl.engine.operators import Operators
from mmfl.engine.precision import autocast, to_float32
from mmfl.engine.user_errors import as_user_error
from mmfl.federation.objectives import per_example
from mmfl.randomness import Purpose


def train_sequential(cohort: Cohort, workers: int = 1) -> None:
    """Stores updates and sums of losses in the cohort, as `train_vectorised` does.

    Each of several workers trains job after job on a single core: for small networks that is faster than to split
    every operation over all cores. A module that draws random numbers of its own gets one worker, since torch's
    generator is seeded at every step; it is left as it was.
    """
    jobs = iter(range(len(cohort.jobs)))
    if workers == 1 or len(cohort.jobs) == 1 or cohort.architecture.draws:
        with torch.random.fork_rng(enabled=cohort.architecture.draws):
            _train(cohort, jobs)
        return
    threads = torch.get_num_threads()
    try:
        with ThreadPoolExecutor(workers, initializer=_prepare_thread) as pool:
            list(pool.map(lambda _: _train(cohort, jobs), range(workers)))
    finally:
        torch.set_num_threads(threads)


def _prepare_thread() -> None:
    """One core for this thread, and denormal numbers flushed to zero: the gradients of well-fitted examples are full of
    them, and they make a matrix product ten times slower."""
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)


def _train(cohort: Cohort, jobs: Iterator[int]) -> None:
    """Trains job after job on a module of this thread, until none is left.

    Threads share one interpreter lock: as little as possible is done in Python at each step.
    """
    architecture, layout, batches = cohort.architecture, cohort.architecture.layout, cohort.batches
    module = copy_trainable(architecture.module)
    parameters = layout.trainable(module)
    own = torch.empty(1, layout.length, device=cohort.tensors.weights.device)
    for parameter, view in zip(parameters, layout.views(own[0]), strict=True):
        parameter.data = view
    buffers = dict(module.named_buffers())
    statistics = torch.empty_like(cohort.statistics[0])
    for name, view in layout.statistics.named(statistics).items():
        buffers[name].data = view
    start_index = cohort.tensors.start_index.tolist()
    factors = GradientFactors(parameters)
    factors.collect_from(module)
    operators = Operators(architecture.sequential_operators) if architecture.sequential_operators else None
    for job in jobs:
        start = cohort.tensors.starts[start_index[job]]
        own.copy_(start)
        statistics.copy_(cohort.statistics[job])
        tensors = replace(cohort.tensors.rows(slice(job, job + 1)), weights=own).with_state(
            cohort.rule, cohort.optimiser
        )
        steps = LocalSteps(cohort.rule, cohort.optimiser, layout, tensors, factored=own.device.type != "cpu")
        _, lengths = batches.position(np.arange(cohort.jobs.steps[job]), job)
        losses = []
        for step, (x, y) in enumerate(batches.of_job(job)):
            if operators:
                operators.begin(batches.key(step, job, Purpose.DROPOUT))
            if architecture.draws:
                torch.manual_seed(int(batches.key(step, job, Purpose.DROPOUT)) % 2**63)
            with as_user_error(partial(cohort.jobs.describe, job, step)):
                with operators or nullcontext():
                    with autocast(architecture.precision):
                        outputs = call_module(module, x)
                    loss = per_example(architecture.loss(to_float32(outputs), y)).mean()
                gradients = layout.gradients(loss, parameters, factors)
            cohort.set_rates(tensors.rates, step, slice(job, job + 1))
            steps.take(gradients)
            losses.append(loss.detach())
        tensors.loss_sums[0] = torch.stack(losses) @ torch.from_numpy(lengths).to(own)
        torch.sub(start, own[0], out=cohort.tensors.weights[job])
        cohort.tensors.statistics[job] = statistics
