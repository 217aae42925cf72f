"""Simulation: the engine of one process, on a CPU or a GPU."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmfl.engine.architecture import Architecture, signature
from mmfl.engine.base import Training, Workload
from mmfl.engine.choices import Choices
from mmfl.engine.cohort import JobTensors
from mmfl.engine.device import UpdateBuffer, choose_device, max_update_bytes
from mmfl.engine.device_data import DeviceData
from mmfl.engine.evaluation import Evaluation, read_parts, share_parts
from mmfl.engine.gpu.recorder import Recorder
from mmfl.engine.jobs import Jobs
from mmfl.engine.layout import Layout
from mmfl.engine.measurer import Measurer
from mmfl.engine.precision import Precision, check_precision, matmul_precision
from mmfl.engine.trainer import Mode, Trainer
from mmfl.engine.user_errors import as_user_error
from mmfl.errors import UserError, nearest
from mmfl.federation import Federation
from mmfl.federation.optimisers import Optimiser
from mmfl.federation.task import Task
from mmfl.local import LocalRule
from mmfl.privacy import NoiseAddress, Privacy
from mmfl.tensors import to_device
from mmfl.updates import Trained
from mmfl.updates.world import World, join

_log = logging.getLogger("mmfl")


def check_private_batch_norm(task: Task, privacy: Privacy) -> None:
    """Refuses to share statistics of batch norm where updates are private: nothing would protect them."""
    if (
        privacy.clip is not None
        and Layout(task.build(), task.batch_norm).statistics.length
        and task.batch_norm == "shared"
    ):
        raise UserError(
            f"task '{task.name}': clipping and noise protect updates, not the statistics of batch norm that clients "
            "would share; expected batch_norm 'local' or 'frozen'."
        )


class Simulation:
    """Trains all clients of all tasks and replicas here: merged into cohorts, or one by one.

    `mode` "auto" vectorises, except for modules that cannot be and, on a CPU, for those that measure slower that way.
    `precision` "tf32" lets a GPU multiply with fewer bits, and "bfloat16" a CPU, which is faster. `privacy` clips
    updates and adds noise to them before anyone sees them. With `record` a GPU replays the steps of all but large
    cohorts as CUDA graphs. Under `torchrun` it joins the `world` of the processes that were started with it.
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
        if mode not in get_args(Mode):
            raise UserError(f"unknown engine '{mode}': {nearest(mode, get_args(Mode))}")
        self.device = choose_device(device)
        self.mode = mode
        self.world = join(self.device) if world is None else world
        self.precision = check_precision(precision)
        if self.precision == "bfloat16" and self.device.type != "cpu":
            raise UserError("precision 'bfloat16' is for CPUs; on a GPU choose 'tf32'.")
        self.privacy = privacy or Privacy()
        self.choices = Choices()
        on_gpu = self.device.type != "cpu"
        step_recorder, loss_recorder = (Recorder(enabled=record and on_gpu) for _ in range(2))
        device_data = DeviceData(self.device)
        self.measurer = Measurer(device_data, on_gpu and mode != "sequential", loss_recorder)
        self.trainer = Trainer(mode, device_data, self.choices, step_recorder, loss_recorder.clear)
        self.update_buffer = UpdateBuffer(self.device)
        self._architectures: dict[Task, Architecture] = {}
        self._frozen: dict[str, Tensor] = {}
        self._by_signature: dict[str, Architecture] = {}

    @cached_property
    def room(self) -> int:
        """Bytes of updates that may be returned at once."""
        return max_update_bytes(self.device)

    def initial(self, federation: Federation, task: int, seed: int) -> Tensor:
        """Weights of a freshly built module, a function of (seed, task)."""
        module = federation.tasks[task].build(seed, task)
        layout = self.architecture(federation.tasks[task]).layout
        return layout.weights(module)[: layout.shared].to(self.device)

    def initial_batch_norm(self, federation: Federation, task: int, seed: int) -> Tensor:
        """What a freshly built module has of batch norm besides its weights."""
        module = federation.tasks[task].build(seed, task)
        return self.architecture(federation.tasks[task]).layout.batch_norm(module).to(self.device)

    def initial_optimiser_state(self, federation: Federation, task: int) -> Tensor:
        """Zeros, where clients keep the state of their optimisers."""
        given = federation.tasks[task]
        values = given.optimiser.state_values(self.architecture(given).length) if given.keeps_optimiser_state else 0
        return torch.zeros(values, device=self.device)

    def train(self, trainings: Sequence[Training]) -> list[Trained]:
        """Jobs of equal architecture, local rule and optimiser run together, in buckets of similar batch size."""
        answers = [self._nothing_trained(training) for training in trainings]
        groups: dict[tuple[Architecture, LocalRule, Optimiser], list[int]] = {}
        for n, training in enumerate(trainings):
            if len(training.client):
                optimiser = training.federation.tasks[training.task].optimiser
                groups.setdefault((self._architecture_of(training), training.local, optimiser), []).append(n)
        for (architecture, rule, _), members in groups.items():
            with matmul_precision(architecture.precision):
                trained = self._train_jobs(architecture, rule, Jobs.of([trainings[n] for n in members]))
            for n, answer in zip(members, trained, strict=True):
                asked = trainings[n]
                place = NoiseAddress(asked.seed, asked.address_of(answer.client), asked.task, answer.client)
                answers[n] = replace(answer, flat=self.privacy.protect(answer.flat, place))
        return answers

    def collect(self, trained: Sequence[Trained], wanted: Sequence[NDArray[np.int64]]) -> list[Trained]:
        """All updates are here already."""
        return list(trained)

    def faults(self) -> dict[str, int]:
        """Simulated clients do not fail."""
        return {}

    def losses(self, workloads: Sequence[Workload]) -> list[NDArray[np.float64]]:
        """One forward pass over the data of all clients asked for, and a mean per client."""
        if not workloads:
            return []
        groups: dict[Architecture, list[int]] = {}
        for n, workload in enumerate(workloads):
            groups.setdefault(self._architecture_of(workload), []).append(n)
        means: list[Tensor] = [torch.empty(0)] * len(workloads)
        for architecture, members in groups.items():
            measured = self.measurer.losses(architecture, [workloads[n] for n in members])
            for n, mean in zip(members, measured, strict=True):
                means[n] = mean
        losses = torch.cat(means).cpu().numpy()  # only here the device is waited for
        answers = np.split(losses, np.cumsum([len(each) for each in means])[:-1])
        for workload, answer in zip(workloads, answers, strict=True):
            answer[np.argsort(workload.client)] = answer.copy()
        return answers

    def evaluate(self, workloads: Sequence[Workload]) -> list[Evaluation]:
        """One forward pass over the test examples; where there are several processes, each takes some of them."""
        if not workloads:
            return []
        found: list[list[Tensor] | None] = [None] * len(workloads)
        for n in range(self.world.rank, len(workloads), self.world.size):
            found[n] = self.measurer.evaluate(self._architecture_of(workloads[n]), workloads[n])
        parts = share_parts(self.world, found, self.device)
        return [read_parts(each.federation, each.task, result) for each, result in zip(workloads, parts, strict=True)]

    def architecture(self, task: Task) -> Architecture:
        """The architecture of a task, shared with every task of equal structure."""
        if task not in self._architectures:
            check_private_batch_norm(task, self.privacy)
            key = signature(task)
            if key not in self._by_signature:
                with as_user_error(lambda: f"task '{task.name}': the model fails on examples of its data"):
                    self._by_signature[key] = Architecture(task, self.device, self.precision, self._frozen)
            shared = self._architectures[task] = self._by_signature[key]
            if task.name not in shared.task_names:
                shared.task_names.append(task.name)
                if shared.precision_obstacle:
                    problem = f"{task.name} cannot run in {self.precision} here, so it runs in float32"
                    _log.warning("%s (%s)", problem, shared.precision_obstacle)
        return self._architectures[task]

    def _architecture_of(self, workload: Workload) -> Architecture:
        return self.architecture(workload.federation.tasks[workload.task])

    def _nothing_trained(self, training: Training) -> Trained:
        values, nobody = len(self._architecture_of(training).batch_norm), training.client[:0]
        flat, batch_norm = (training.weights.new_empty(0, length) for length in (len(training.weights), values))
        kept = training.optimiser_state
        nothing = Trained(nobody, flat, np.zeros(0), nobody, optimiser_state=None if kept is None else kept[:0])
        return replace(nothing, batch_norm=batch_norm) if values else nothing

    def _train_jobs(self, architecture: Architecture, rule: LocalRule, jobs: Jobs) -> list[Trained]:
        """Trains bucket after bucket, each into its rows of one matrix of updates."""
        jobs, buckets = jobs.in_buckets(exact=architecture.coupled)
        updates = self.update_buffer.matrix(len(jobs), architecture.length)
        trained: list[JobTensors] = []
        for rows in buckets:
            trained += self.trainer.train(architecture, rule, jobs.take(rows), updates[rows])
        self.trainer.recorder.join()
        shared, has_batch_norm = architecture.layout.shared, len(architecture.batch_norm) > 0
        batch_norm = torch.cat([each.batch_norm(shared) for each in trained]) if has_batch_norm else None
        optimiser_state = torch.cat([each.optimiser_state for each in trained])
        groups = list(jobs.by_request())
        places: list[Any] = [slice(None)] if len(groups) == 1 else [to_device(n, self.device) for _, n in groups]
        loss_sums = torch.cat([each.loss_sums for each in trained])
        loss = loss_sums.double().cpu().numpy() / jobs.examples  # the only time that the device is waited for
        return [
            Trained(
                training.client[jobs.row[n]],
                updates[place, :shared].contiguous(),
                loss[n],
                jobs.steps[n],
                batch_norm=None if batch_norm is None else batch_norm[place],
                optimiser_state=None if training.optimiser_state is None else optimiser_state[place],
            )
            for (training, n), place in zip(groups, places, strict=True)
        ]
