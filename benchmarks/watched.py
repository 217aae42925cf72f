"""What benchmarks of whole rounds share: an engine that is watched, and rounds of a preset without tests."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from mmfl.engine import Simulation, Training, Workload
from mmfl.federation import Federation
from mmfl.methods import make_method
from mmfl.runs import config
from mmfl.training import Replica, rounds


class Watched:
    """An engine of which is kept what it was asked for, by phase; `forget` begins anew."""

    def __init__(self, engine: Simulation):
        self.engine = engine
        self.forget()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    def forget(self) -> None:
        self.asked: dict[str, list[Workload]] = defaultdict(list)

    def timed(self, phase: str, work: Callable[..., Any]) -> Callable[..., Any]:
        """The same function: nothing is timed here."""
        return work

    def losses(self, workloads: Sequence[Workload]) -> Any:
        return self._watch("losses", self.engine.losses, workloads)

    def train(self, trainings: Sequence[Training]) -> Any:
        return self._watch("training", self.engine.train, trainings)

    def evaluate(self, workloads: Sequence[Workload]) -> Any:
        return self._watch("evaluation", self.engine.evaluate, workloads)

    def _watch(self, phase: str, work: Callable[..., Any], requests: Sequence[Workload]) -> Any:
        self.asked[phase] += requests
        return self.timed(phase, work)(requests)


class Timed(Watched):
    """Sums the `seconds` of each phase as well, for which the device is waited for before and after it."""

    def forget(self) -> None:
        super().forget()
        self.seconds: dict[str, float] = defaultdict(float)

    def timed(self, phase: str, work: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, its time counted as a part of the phase."""

        def call(*args: Any) -> Any:
            begun = now(self.engine.device)
            answer = work(*args)
            self.seconds[phase] += now(self.engine.device) - begun
            return answer

        return call


def now(device: torch.device) -> float:
    """The clock, once the device has done all that it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def federation_of(preset: str, *settings: str) -> tuple[Federation, float]:
    """The federation of a preset, changed by `key=value` settings, and its participation rate."""
    experiment = config.read(preset, settings).experiment()
    return experiment.federation_of(0), experiment.rate


def rounds_of(
    federation: Federation, method: str, rate: float, engine: Watched, evaluate_every: int | None = None
) -> Iterator[Any]:
    """Round after round of a method, its allocation and its aggregation timed too, if at all; tested as asked."""
    made = make_method(method)
    made.allocation.allocate = engine.timed("allocation", made.allocation.allocate)  # type: ignore[method-assign]
    made.aggregation.aggregate = engine.timed("aggregation", made.aggregation.aggregate)  # type: ignore[method-assign]
    replica = Replica.start(federation, made, 0, rate, engine)
    return rounds([replica], engine, 10**9, evaluate_every or 10**9, 0)
