"""Trainer: chooses how each bucket of jobs trains, and trains it."""

import logging
import timeit
from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from mmfl.engine.architecture import Architecture
from mmfl.engine.choices import Choices
from mmfl.engine.cohort import Cohort, JobTensors
from mmfl.engine.device import CohortSizes, is_out_of_memory
from mmfl.engine.device_data import DeviceData
from mmfl.engine.gpu.recorder import Recorder
from mmfl.engine.gpu.recording import can_record, train_recorded
from mmfl.engine.jobs import Jobs
from mmfl.engine.sequential import train_sequential
from mmfl.engine.vectorised import train_vectorised
from mmfl.errors import UserError, first_line
from mmfl.local import LocalRule

Mode = Literal["auto", "vectorised", "sequential"]
_TRIAL_JOBS = 16
_log = logging.getLogger("mmfl")


class Trainer:
    """Trains buckets of jobs: vectorised (on a GPU recorded, where possible), or sequentially.

    Mode "auto" vectorises, except for modules that cannot be and, on a CPU, for those that are slower that way. Where
    memory runs out, recordings are released and cohorts halved; where a module turns out not to be vectorisable, its
    clients train one by one. `free_memory` releases what others can make again.
    """

    def __init__(
        self,
        mode: Mode,
        device_data: DeviceData,
        choices: Choices,
        recorder: Recorder,
        free_memory: Callable[[], None] = lambda: None,
    ):
        self.mode, self.device_data, self.choices, self.recorder = mode, device_data, choices, recorder
        self.device, self._free_memory = device_data.device, free_memory
        self.cohort_sizes = CohortSizes(self.device)

    def train(self, architecture: Architecture, rule: LocalRule, jobs: Jobs, updates: Tensor) -> list[JobTensors]:
        """Trains a bucket cohort by cohort, into the rows of `updates`; returns the tensors of the cohorts."""
        begin, width = 0, int(jobs.batch.max())
        trained: list[JobTensors] = []
        while begin < len(jobs):
            train = self.choose(architecture, rule, jobs)
            end = begin + self.cohort_sizes.size(architecture, width, len(jobs) - begin)
            part = jobs.take(slice(begin, end))
            try:
                cohort = Cohort.of(architecture, rule, part, self.device_data, updates[begin:end])
                train(cohort)
            except UserError:
                raise
            except Exception as error:
                reason, out_of_memory = first_line(error), is_out_of_memory(error)
                if len(part) == 1 if out_of_memory else train == self.train_sequentially:
                    raise
            else:
                trained.append(replace(cohort.tensors, correction=None))
                begin = end
                continue
            if out_of_memory:  # here, not in the except block, which keeps the failed cohort's tensors alive
                self.recorder.clear()
                self._free_memory()
                self.cohort_sizes.halve(architecture, width, len(part))
            elif train == self.train_recorded:
                self.recorder.disable(architecture, reason)
            else:
                self._give_up_vectorising(architecture, reason)
        return trained

    def choose(self, architecture: Architecture, rule: LocalRule, jobs: Jobs) -> Callable[[Cohort], None]:
        """How to train this bucket."""
        if self.mode == "sequential":
            return self.train_sequentially
        if architecture.vectorisable is None:
            self._try_vectorising(architecture, rule, jobs)
        if not architecture.vectorisable:
            return self.train_sequentially
        if can_record(self.recorder, architecture, rule, jobs):
            return self.train_recorded
        if self.mode == "vectorised" or self.device.type != "cpu":
            return train_vectorised
        return train_vectorised if self._vectorised_is_faster(architecture, rule, jobs) else self.train_sequentially

    def train_sequentially(self, cohort: Cohort) -> None:
        """One client after another; on a CPU, one per core at a time."""
        train_sequential(cohort, torch.get_num_threads() if self.device.type == "cpu" else 1)

    def train_recorded(self, cohort: Cohort) -> None:
        """By replaying a CUDA graph."""
        train_recorded(self.recorder, cohort)

    def _vectorised_is_faster(self, architecture: Architecture, rule: LocalRule, jobs: Jobs) -> bool:
        """Measured once by architecture, batch size and kind of processor."""
        width = 1 << int(np.ceil(np.log2(jobs.batch.max())))
        precision = " bfloat16" if architecture.precision == "bfloat16" else ""
        key = f"{architecture.code} batch<={width}{precision}"

        def measure() -> dict[str, float]:
            trial = Cohort.of(architecture, rule, jobs.take(slice(_TRIAL_JOBS)), self.device_data)
            return {"vectorised": _time(train_vectorised, trial), "sequential": _time(self.train_sequentially, trial)}

        return self.choices.choose(key, measure) == "vectorised"

    def _try_vectorising(self, architecture: Architecture, rule: LocalRule, jobs: Jobs) -> None:
        """Finds out, by training two jobs, whether torch can batch this module over clients."""
        architecture.vectorisable = True
        if architecture.draws:
            self._give_up_vectorising(architecture, "it draws random numbers of its own")
            return
        try:
            train_vectorised(Cohort.of(architecture, rule, jobs.take(slice(2)), self.device_data))
        except UserError:
            raise
        except Exception as error:  # whatever the module raises; training it alone says what is wrong
            if not is_out_of_memory(error):
                self._give_up_vectorising(architecture, first_line(error))

    def _give_up_vectorising(self, architecture: Architecture, reason: str) -> None:
        architecture.vectorisable = False
        _log.warning("%s cannot be vectorised, so its clients train one by one (%s)", architecture.label, reason)


def _time(train: Callable[[Cohort], None], cohort: Cohort) -> float:
    """Seconds to train the cohort: the better of two runs, after one to warm up. Infinity where that fails; training
    says why, if it fails too."""
    try:
        _, *seconds = timeit.repeat(lambda: train(cohort), number=1, repeat=3)
    except UserError:
        raise
    except Exception:
        return float("inf")
    return min(seconds)
