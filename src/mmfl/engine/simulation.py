"""Simulation: the engine of one process, on a CPU or a GPU."""

import logging
import os
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import cached_property
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import functional_call

from mmfl.data.dataset import as_inputs
from mmfl.engine.architecture import Architecture, signature
from mmfl.engine.base import Evaluation, Training, Workload
from mmfl.engine.batches import Jobs
from mmfl.engine.choices import Choices
from mmfl.engine.chunk import Chunk
from mmfl.engine.cohort import train_cohort
from mmfl.engine.gpu.recorded import Recorder
from mmfl.engine.memory import Chunks, Space, forward_chunk, is_out_of_memory, room_for_updates
from mmfl.engine.operators import BATCH_NORM, Operators
from mmfl.engine.placed import Placed
from mmfl.engine.precision import Precision, check_precision, multiplying, to_float32
from mmfl.engine.sequential import train_sequential
from mmfl.engine.together import losses_together
from mmfl.errors import UserError, nearest
from mmfl.federation import Federation
from mmfl.federation.objectives import Objective, per_example
from mmfl.federation.task import Task
from mmfl.local import LocalRule
from mmfl.partition import Shards
from mmfl.privacy import NoiseAddress, Privacy
from mmfl.tensors import to_device
from mmfl.updates import Trained
from mmfl.updates.world import World, join

Mode = Literal["auto", "vectorised", "sequential"]
_COUPLED_TEST_BATCH = 256
_log = logging.getLogger("mmfl")


class Simulation:
    """Trains all clients of all tasks and replicas here: merged into cohorts, or one by one.

    `mode` "auto" vectorises, except for modules that cannot be and, on a CPU, for those that measure slower that way.
    `precision` "tf32" lets a GPU multiply with fewer bits, and "bfloat16" a CPU, which is faster. `privacy` clips
    updates and adds noise to them before anyone sees them. With `record` a GPU plays the steps of all but
    large cohorts from recordings (CUDA graphs). Under `torchrun` it joins the `world` of the processes that were
    started with it.
    """

    eager = False

    def __init__(
        self,
        device: str | torch.device | None = None,
        mode: Mode = "auto",
        precision: Precision = "float32",
        world: World | None = None,
        privacy: Privacy | None = None,
        record: bool = True,
    ):
        if mode not in ("auto", "vectorised", "sequential"):
            raise UserError(f"unknown engine '{mode}': {nearest(mode, ['auto', 'vectorised', 'sequential'])}")
        self.device = choose_device(device)
        self.mode = mode
        self.world = join(self.device) if world is None else world
        self.precision = check_precision(precision)
        if self.precision == "bfloat16" and self.device.type != "cpu":
            raise UserError("precision 'bfloat16' is for CPUs; on a GPU choose 'tf32'.")
        self.privacy = privacy or Privacy()
        self.choices = Choices()
        self.chunks = Chunks(self.device)
        self.recorder, self.passes = Recorder(), Recorder()  # of local steps, and of passes that measure losses
        self.record = record and self.device.type == "cuda"
        self.space = Space(self.device)
        self.placed = Placed(self.device)
        self._architectures: dict[Task, Architecture] = {}
        self._by_signature: dict[str, Architecture] = {}
        self._apart: set[Architecture] = set()

    @cached_property
    def room(self) -> int:
        """Bytes of updates that may be returned at once."""
        return room_for_updates(self.device)

    def initial(self, federation: Federation, task: int, seed: int) -> Tensor:
        """Weights of a freshly built module, a function of (seed, task)."""
        module = federation.tasks[task].build(seed, task)
        parameters = [p.detach() for p in module.parameters()]
        return self.architecture(federation.tasks[task]).layout.flatten(parameters).to(self.device)

    def train(self, trainings: Sequence[Training]) -> list[Trained]:
        """Jobs of equal architecture and local rule run together, in buckets of similar batch size."""
        answers = [
            Trained(t.client[:0], t.weights.new_empty(0, len(t.weights)), np.zeros(0), t.client[:0]) for t in trainings
        ]
        groups: dict[tuple[Architecture, LocalRule], list[int]] = {}
        for n, training in enumerate(trainings):
            if len(training.client):
                task = training.federation.tasks[training.task]
                groups.setdefault((self.architecture(task), training.local), []).append(n)
        for (architecture, rule), members in groups.items():
            jobs = Jobs.of([trainings[n] for n in members])
            with multiplying(architecture.precision):
                trained = self._train_jobs(architecture, rule, jobs)
            for n, answer in zip(members, trained, strict=True):
                answers[n] = self._protected(trainings[n], answer)
        return answers

    def _protected(self, training: Training, trained: Trained) -> Trained:
        """What leaves the clients."""
        place = NoiseAddress(training.seed, training.round, training.task, trained.client)
        return replace(trained, flat=self.privacy.protect(trained.flat, place))

    def collect(self, trained: Sequence[Trained], wanted: Sequence[NDArray[np.int64]]) -> list[Trained]:
        """All updates are here already."""
        return list(trained)

    def faults(self) -> dict[str, int]:
        """Clients that are simulated do not fail."""
        return {}

    def losses(self, workloads: Sequence[Workload]) -> list[NDArray[np.float64]]:
        """One forward pass over the data of all clients asked for, and a mean per client."""
        if not workloads:
            return []
        groups: dict[Architecture, list[int]] = {}
        for n, workload in enumerate(workloads):
            groups.setdefault(self.architecture(workload.federation.tasks[workload.task]), []).append(n)
        order = [n for members in groups.values() for n in members]
        means = torch.cat([self._losses(a, [workloads[n] for n in members]) for a, members in groups.items()])
        bounds = np.cumsum([len(workloads[n].client) for n in order])
        answers: list[NDArray[np.float64]] = [np.empty(0)] * len(workloads)
        for n, mine in zip(order, np.split(means.cpu().numpy(), bounds[:-1]), strict=True):
            answers[n] = np.empty(len(mine))
            answers[n][np.argsort(workloads[n].client)] = mine
        return answers

    def evaluate(self, workloads: Sequence[Workload]) -> list[Evaluation]:
        """One forward pass over the test examples; where there are several processes, each takes some of them."""
        if not workloads:
            return []
        means = torch.zeros(len(workloads), 2, dtype=torch.float64, device=self.device)
        for n in range(self.world.rank, len(workloads), self.world.size):
            means[n] = self._evaluate(workloads[n])
        return [Evaluation(loss, metric) for loss, metric in self.world.sum(means).tolist()]

    def architecture(self, task: Task) -> Architecture:
        """The architecture of a task, shared with every task of equal structure."""
        if task not in self._architectures:
            key = signature(task)
            if key in self._by_signature:
                shared = self._by_signature[key]
            else:
                shared = self._by_signature[key] = Architecture(task, self.device, self.precision)
            if task.name not in shared.labels:
                shared.labels.append(task.name)
                if shared.obstacle:
                    told = task.name, self.precision, _first_line(shared.obstacle)
                    _log.warning("%s cannot run in %s here, so it runs in float32 (%s)", *told)
            self._architectures[task] = shared
        return self._architectures[task]

    def _train_jobs(self, architecture: Architecture, rule: LocalRule, jobs: Jobs) -> list[Trained]:
        """Bucket after bucket, each into its rows of one matrix of updates."""
        buckets = jobs.buckets(exact=architecture.coupled)
        flat = self.space.matrix(len(jobs), architecture.length)
        seen: list[Tensor] = []
        begin = 0
        for bucket in buckets:
            seen += self._train_bucket(architecture, rule, bucket, flat[begin : begin + len(bucket)])
            begin += len(bucket)
        self.recorder.join()
        request, row, steps, examples = (
            np.concatenate([getattr(b, name) for b in buckets]) for name in ("request", "row", "steps", "examples")
        )
        mine = [np.flatnonzero(request == r) for r in range(len(jobs.trainings))]
        parts = [flat] if len(mine) == 1 else [flat[to_device(n, self.device)] for n in mine]
        loss = torch.cat(seen).double().cpu().numpy() / examples  # the one time that the device is waited for
        return [
            Trained(training.client[row[n]], part, loss[n], steps[n])
            for training, part, n in zip(jobs.trainings, parts, mine, strict=True)
        ]

    def _train_bucket(self, architecture: Architecture, rule: LocalRule, jobs: Jobs, flat: Tensor) -> list[Tensor]:
        """Trains chunk by chunk, into rows of `flat`, and gives the sums of losses; where memory runs out, with chunks
        of half the size from there on."""
        begin, width = 0, int(jobs.batch.max())
        seen: list[Tensor] = []
        while begin < len(jobs):
            way = self._way(architecture, rule, jobs)
            end = min(begin + self.chunks.size(architecture, width, len(jobs) - begin), len(jobs))
            part = jobs.take(np.arange(begin, end))
            try:
                chunk = Chunk.of(architecture, rule, part, self.placed, flat[begin:end])
                losses = way(chunk)
                failed: str | None = None
            except (RuntimeError, MemoryError) as error:
                failed = str(error)
                lacks_memory = is_out_of_memory(error)
                hopeless = len(part) == 1 if lacks_memory else way == self._side_by_side
                if hopeless:
                    raise
            if failed is None:
                seen.append(losses)
                begin = end
            elif lacks_memory:  # here, not in the except block, which keeps the failed chunk's tensors alive
                self.recorder.forget()
                self.passes.forget()
                self.chunks.halve(architecture, width, len(part))
            elif way == self.recorder.train:
                self.recorder.refuse(architecture, failed)
            else:
                self._give_up_vectorising(architecture, failed)
        return seen

    def _way(self, architecture: Architecture, rule: LocalRule, jobs: Jobs) -> Callable[[Chunk], Tensor]:
        """How to train this bucket: vectorised or sequentially."""
        if self.mode == "sequential":
            return self._side_by_side
        if architecture.vectorisable is None:
            self._try_vectorising(architecture, rule, jobs)
        if not architecture.vectorisable:
            return self._side_by_side
        if self.record and self.recorder.suits(architecture, rule, jobs):
            return self.recorder.train
        if self.mode == "vectorised" or self.device.type != "cpu":
            return train_cohort
        width = 1 << int(np.ceil(np.log2(jobs.batch.max())))
        narrow = " bfloat16" if architecture.precision == "bfloat16" else ""
        key = f"{architecture.code} batch<={width}{narrow}"
        if key not in self.choices:
            sample = Chunk.of(architecture, rule, jobs.take(np.arange(min(len(jobs), 16))), self.placed)
            self.choices.decide(
                key,
                {"vectorised": _time(train_cohort, sample), "sequential": _time(self._side_by_side, sample)},
            )
        return train_cohort if self.choices[key] == "vectorised" else self._side_by_side

    def _side_by_side(self, chunk: Chunk) -> Tensor:
        return train_sequential(chunk, torch.get_num_threads() if self.device.type == "cpu" else 1)

    def _try_vectorising(self, architecture: Architecture, rule: LocalRule, jobs: Jobs) -> None:
        """Finds out, by doing it once, whether torch can batch this module over clients."""
        architecture.vectorisable = True
        if architecture.draws:
            self._give_up_vectorising(architecture, "it draws random numbers of its own")
            return
        try:
            train_cohort(Chunk.of(architecture, rule, jobs.take(np.arange(min(len(jobs), 2))), self.placed))
        except (RuntimeError, ValueError, TypeError, MemoryError) as error:
            if not is_out_of_memory(error):
                self._give_up_vectorising(architecture, str(error))

    def _give_up_vectorising(self, architecture: Architecture, reason: str) -> None:
        architecture.vectorisable = False
        told = architecture.label, _first_line(reason)
        _log.warning("%s cannot be vectorised, so its clients train one by one (%s)", *told)

    def _losses(self, architecture: Architecture, workloads: Sequence[Workload]) -> Tensor:
        """Mean losses of the clients of workloads of one architecture, one workload after the other and its clients in
        ascending order. They stay on the device, which need not be waited for."""
        if self._may_join(architecture):
            together = self._together(architecture, workloads)
            if together is not None:
                return together
            self._apart.add(architecture)
        means = []
        for workload in workloads:
            mine = workload.federation.shards[workload.task].only(workload.client)
            task = workload.federation.tasks[workload.task]
            (values,) = self._forward(workload, task.data.x, task.data.y, mine, (task.loss,))
            means.append(torch.segment_reduce(values, "mean", lengths=to_device(mine.sizes, self.device)))
        return torch.cat(means)

    def _together(self, architecture: Architecture, workloads: Sequence[Workload]) -> Tensor | None:
        """Mean losses by one pass for all workloads, recorded if that can be done; None if torch cannot batch it."""
        most, failed = forward_chunk(architecture, self.device), ""
        for recorder in (self.passes, None) if self.record else (None,):
            try:
                with multiplying(architecture.precision):
                    means = losses_together(architecture, workloads, self.placed, most, recorder)
            except (RuntimeError, ValueError, TypeError) as error:
                if is_out_of_memory(error):
                    raise
                failed = str(error)
                continue
            if failed:
                self.passes.refuse(architecture, failed)
            return means
        return None

    def _may_join(self, architecture: Architecture) -> bool:
        """Whether forward passes of several tasks may be one; on a CPU they gain nothing."""
        apart = self.mode == "sequential" or self.device.type == "cpu" or architecture in self._apart
        return not (apart or architecture.coupled or architecture.draws)

    def _evaluate(self, workload: Workload) -> Tensor:
        """Mean loss and metric of the test examples, on the device."""
        task, shards = (
            workload.federation.tasks[workload.task],
            workload.federation.test_shards[workload.task],
        )
        if shards is None:
            rows = len(task.data.x_test)
            # Matters only where the examples of a batch influence one another: then batches must be fixed.
            shards = Shards(np.arange(rows), np.append(np.arange(0, rows, _COUPLED_TEST_BATCH), rows))
        values = self._forward(workload, task.data.x_test, task.data.y_test, shards, (task.loss, task.metric))
        return torch.stack([column.mean() for column in values])

    @torch.no_grad()
    def _forward(
        self, workload: Workload, x: Tensor, y: Tensor, shards: Shards, objectives: Sequence[Objective]
    ) -> list[Tensor]:
        """Values of the objectives for every example of the shards, in their order, as float64."""
        architecture = self.architecture(workload.federation.tasks[workload.task])
        parameters = architecture.layout.named(workload.weights)
        module = architecture.module.eval()
        x, y = self.placed(x), self.placed(y)
        index = to_device(shards.index, self.device)
        sizes = (
            shards.sizes[shards.sizes > 0].tolist()
            if architecture.coupled
            else forward_chunk(architecture, self.device)
        )
        values: list[list[Tensor]] = [[] for _ in objectives]
        substitutes = BATCH_NORM & architecture.operators
        operators = Operators(substitutes) if substitutes else nullcontext()
        with operators, multiplying(architecture.precision), torch.random.fork_rng(enabled=architecture.draws):
            if architecture.draws:
                torch.manual_seed(0)
            for rows in index.split(sizes):
                outputs = to_float32(functional_call(module, parameters, (as_inputs(x.index_select(0, rows)),)))
                targets = y.index_select(0, rows)
                for column, objective in zip(values, objectives, strict=True):
                    column.append(per_example(objective(outputs, targets)).double())
        module.train()
        return [torch.cat(column) for column in values]


def _first_line(reason: str) -> str:
    return reason.strip().split("\n")[0]


def _time(way: Callable[[Chunk], Tensor], chunk: Chunk) -> float:
    """Seconds to train the chunk, the better of two after a first that warms up."""
    seconds = []
    for _ in range(3):
        begun = time.perf_counter()
        try:
            way(chunk)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            return float("inf")
        seconds.append(time.perf_counter() - begun)
    return min(seconds[1:])


def choose_device(device: str | torch.device | None) -> torch.device:
    """The named device, or a GPU where there is one and `MMFL_DEVICE` does not say otherwise; of several processes on a
    machine, each takes a GPU of its own."""
    name = device or os.environ.get("MMFL_DEVICE") or ("cuda" if torch.cuda.is_available() else "cpu")
    if str(name) == "cuda" and "LOCAL_RANK" in os.environ:
        name = f"cuda:{os.environ['LOCAL_RANK']}"
    try:
        chosen = torch.device(name)
    except RuntimeError:
        raise UserError(f"unknown device '{name}': expected cpu, cuda or cuda:N.") from None
    if chosen.type not in ("cpu", "cuda"):
        raise UserError(f"unknown device '{name}': expected cpu, cuda or cuda:N.")
    if chosen.type == "cuda" and not torch.cuda.is_available():
        raise UserError(f"device '{name}': this machine has no CUDA device; use cpu.")
    return chosen
