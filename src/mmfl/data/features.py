"""Features: what a frozen network computes of every example, once instead of at every step."""

from dataclasses import replace

import torch
from torch import Tensor, nn

from mmfl.checks import check, check_whole
from mmfl.data.dataset import Dataset, as_inputs
from mmfl.data.structure import Structure, call_module, describe, leaves, length, map_leaves, rows
from mmfl.errors import UserError, first_line


def features(data: Dataset, base: nn.Module, batch_size: int = 256) -> Dataset:
    """The data set with the outputs of a network, in evaluation mode, as inputs; targets and owners stay.

    A network that is frozen from end to end gives an example the same features in every round. Where a task trains
    nothing but a head, its model can be the head alone, on features: the same training, without the base.

    >>> from mmfl.data import digits
    >>> features(digits(), nn.Sequential(nn.Flatten(), nn.Linear(64, 8))).x.shape
    torch.Size([1438, 8])
    """
    where = f"data '{data.name}'"
    check(isinstance(base, nn.Module), where, "base", base, "a torch.nn.Module")
    check_whole(where, "batch_size", batch_size)
    training = {part: part.training for part in base.modules()}
    base.eval()
    try:
        x, x_test = (_outputs(where, base, inputs, batch_size) for inputs in (data.x, data.x_test))
    finally:
        for part, mode in training.items():
            part.training = mode
    return replace(data, x=x, x_test=x_test)


@torch.no_grad()
def _outputs(where: str, base: nn.Module, x: Structure, batch_size: int) -> Structure:
    outputs = []
    for begin in range(0, length(x), batch_size):
        batch = as_inputs(rows(x, slice(begin, begin + batch_size)))
        try:
            outputs.append(call_module(base, batch))
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            problem = f"the base fails on inputs of shape {describe(batch)}: {first_line(error)}"
            raise UserError(f"{where}: {problem}") from None
        if any(not isinstance(leaf, Tensor) or leaf.shape[:1] != (length(batch),) for leaf in leaves(outputs[-1])):
            found = describe(outputs[-1])
            raise UserError(f"{where}: the base gives {found} for {length(batch)} examples; expected a row for each.")
    return map_leaves(lambda *parts: torch.cat(parts), *outputs)
