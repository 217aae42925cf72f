"""The quadratic federation, whose optimum and constants are known, so that the distance of a run can be computed."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from mmfl.data import Dataset, quadratic
from mmfl.federation import Federation
from mmfl.federation.objectives import value
from mmfl.federation.schedules import Schedule
from mmfl.federation.task import Task
from mmfl.models import Quadratic
from mmfl.theory import Problem
from mmfl.training import TrainingState

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Chain:
    """Client k has F_k(w) = w'A_k w / 2 - b_k'w + mu |w|^2 / 2 on a block of coordinates; F is the mean of the F_k.

    Only the first client has a b; what it learns travels along the chain (Bhuyan et al. 2022, Section 6). Points are
    [..., size].

    >>> chain = Chain()
    >>> print(f"{chain.least:.10f} {np.log10(chain.excess(np.zeros(97))):.4f}")
    -0.0194390882 -1.7113
    """

    clients: int = 24
    block: int = 4
    curvature: float = 2e-4

    @cached_property
    def data(self) -> Dataset:
        """An example (A_k | b_k) for each client."""
        return quadratic(self.clients, self.block)

    @cached_property
    def matrices(self) -> Array:
        """A_k + mu I, [clients, size, size]."""
        examples: Array = self.data.x.double().numpy()
        return examples[..., :-1] + self.curvature * np.eye(examples.shape[1])

    @cached_property
    def vectors(self) -> Array:
        """b_k, [clients, size]."""
        return np.asarray(self.data.x.double().numpy()[..., -1])

    @cached_property
    def mean(self) -> Array:
        """The matrix of F, [size, size]."""
        return np.asarray(self.matrices.mean(0))

    @cached_property
    def optimum(self) -> Array:
        """w*, the minimiser of F."""
        return np.linalg.solve(self.mean, self.vectors.mean(0))

    @cached_property
    def eigenvalues(self) -> Array:
        """The eigenvalues of all clients' matrices: those of their blocks, and mu if there are others."""
        places = [slice(k * self.block, (k + 1) * self.block + 1) for k in range(self.clients)]
        blocks = [matrix[at, at] for matrix, at in zip(self.matrices, places, strict=True)]
        besides = [self.curvature] * (self.clients > 1)
        return np.concatenate([np.linalg.eigvalsh(blocks).ravel(), besides])

    @property
    def least(self) -> float:
        """F* = F(w*)."""
        return -0.5 * float(self.vectors.mean(0) @ self.optimum)

    @property
    def start(self) -> float:
        """|w*|: the distance from the start, 0, to the optimum."""
        return float(np.linalg.norm(self.optimum))

    def excess(self, points: Array) -> Array:
        """F - F*, computed without cancellation."""
        away = points - self.optimum
        return 0.5 * np.asarray((away @ self.mean * away).sum(-1))

    def distance(self, points: Array) -> Array:
        """|w - w*|."""
        return np.asarray(np.linalg.norm(points - self.optimum, axis=-1))

    def steepest(self, points: Array) -> float:
        """The longest gradient of any client at any of the points [points, size].

        It bounds the gradients of all local steps from there: a step below 2 / L shortens a quadratic's gradient.
        """
        gradients = self.matrices @ points.T - self.vectors[..., None]
        return float(np.linalg.norm(gradients, axis=1).max())

    def federation(self, models: int, lr: float | Schedule, steps: int) -> Federation:
        """A federation of `models` tasks that all minimise F, with `steps` full gradients per round."""
        model = partial(Quadratic, len(self.optimum), self.curvature)
        tasks = [
            Task(f"copy {copy}", model, self.data, lr=lr, epochs=steps, loss=value, metric=value)
            for copy in range(models)
        ]
        return Federation(tasks)

    def problem(self, steps: int, models: int, gradient_bound: float) -> Problem:
        """The constants of the convergence theorems, for a given bound on the gradients."""
        own = np.linalg.solve(self.matrices, self.vectors[..., None])[..., 0]
        least_of_each = -0.5 * (self.vectors * own).sum(1)
        return Problem(
            smoothness=float(self.eigenvalues.max()),
            strong_convexity=float(self.eigenvalues.min()),
            gradient_bound=gradient_bound,
            heterogeneity=max(0.0, self.least - float(least_of_each.mean())),
            local_steps=steps,
            clients=self.clients,
            models=models,
        )


def weights_of(state: TrainingState) -> Array:
    """The weights of a replica whose tasks have the same shape, [tasks, size]."""
    return np.asarray(torch.stack(state.weights).double().cpu().numpy())


def table(replicas: Sequence[tuple[str, int]], seen: Array, column: str, rounds: Iterable[int]) -> pd.DataFrame:
    """Observations of replicas [rounds + 1, replicas] as a table: a row per replica and round (0: before the first)."""
    return pd.DataFrame(
        [
            {"method": method, "seed": seed, "round": t, column: seen[t, n]}
            for n, (method, seed) in enumerate(replicas)
            for t in rounds
        ]
    )
