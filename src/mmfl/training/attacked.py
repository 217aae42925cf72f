"""What clients send where some of them attack."""

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmfl.federation import Federation
from mmfl.federation.attacks import AttackerView
from mmfl.tensors import to_device
from mmfl.updates import Trained
from mmfl.updates.partial_sum import add_up


def attacked(trained: Trained, federation: Federation, seed: int, round: int, task: int) -> Trained:
    """The same trainings, with the updates that the attackers send in place of theirs."""
    attack, client = federation.attack, trained.client
    if attack is None or not (attackers := federation.attackers[client]).any():
        return trained
    honest = _mean_and_deviation(trained, ~attackers) if attack.needs_honest and not attackers.all() else None
    rows, held = trained.client_rows.take_held(attackers), trained.client_rows.take_held(client)
    where, flat = to_device(np.flatnonzero(rows), trained.flat.device), trained.flat.clone()
    flat[where] = attack.poison(AttackerView(seed, round, task, held[rows], flat[where], honest))
    return replace(trained, flat=flat)


def _mean_and_deviation(trained: Trained, honest: NDArray[np.bool_]) -> tuple[Tensor, Tensor]:
    """The mean and the standard deviation of the honest updates, of all processes, [parameters]."""
    rows = trained.client_rows.where(honest)
    equal = np.full(len(rows), 1 / len(rows))
    mean = add_up(rows.combine(equal))
    apart = rows - mean
    return mean, torch.sqrt(add_up(replace(apart, matrix=apart.matrix.square()).combine(equal)))
