"""Tasks whose data has false labels, for the attackers of a simulation."""

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmfl.errors import UserError
from mmfl.federation.attacks import Attack
from mmfl.federation.task import Task
from mmfl.partition import Shards


def with_flipped_labels(task: Task, attack: Attack, shards: Shards, attackers: NDArray[np.bool_]) -> Task:
    """The task, with the labels that the attackers' examples have for them; inputs and test examples are the same."""
    labels, test = task.data.y, task.data.y_test
    if not (_are_classes(labels) and _are_classes(test)):
        raise UserError(f"task '{task.name}': {attack.where} needs the number of a class as each example's target.")
    classes = int(max(labels.max(), test.max())) + 1
    rows = torch.from_numpy(shards.index[np.repeat(attackers, shards.sizes)])
    false = labels.clone()
    false[rows] = attack.flip(labels[rows], classes).to(labels)
    return replace(task, data=replace(task.data, y=false))


def _are_classes(labels: object) -> bool:
    if not isinstance(labels, Tensor) or labels.ndim != 1 or labels.is_floating_point():
        return False
    return int(labels.min()) >= 0
