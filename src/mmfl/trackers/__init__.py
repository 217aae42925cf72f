"""Where a run's numbers go besides its directory: TensorBoard, MLflow and Weights & Biases, one small file each.

A tracker is a listener of an experiment that writes every replica to a run of its own. None of the packages is
imported before a tracker is made. What is logged, and under which names, is in `logged`; what trackers share is in
`tracker`.
"""

from collections.abc import Callable, Sequence
from typing import Any

from mmfl.errors import UserError
from mmfl.registry import Spec, build
from mmfl.runs.listener import Listener
from mmfl.trackers.mlflow import MLflow
from mmfl.trackers.tensorboard import TensorBoard
from mmfl.trackers.tracker import Tracker
from mmfl.trackers.wandb import WandB

TRACKERS: dict[str, Callable[..., Tracker[Any]]] = {"tensorboard": TensorBoard, "mlflow": MLflow, "wandb": WandB}

__all__ = ["TRACKERS", "MLflow", "TensorBoard", "Tracker", "WandB", "make_trackers"]


def make_trackers(specs: Sequence[Spec]) -> list[Listener]:
    """The trackers that are named, with their options."""
    made = [build("tracker", spec, TRACKERS) for spec in specs]
    for spec, tracker in zip(specs, made, strict=True):
        if not isinstance(tracker, Listener):
            raise UserError(f"tracker {spec!r} gives a {type(tracker).__name__}; expected an mmfl listener.")
    return made
