"""The flat vector of what a module trains, and modules that are called with it."""

import copy
import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from mmfl.data.structure import Structure, call_module
from mmfl.engine.factored import FactoredGradient, GradientFactors, GradientParts


class Layout:
    """The parameters that a module trains as one vector, with named views into it. Frozen ones are not part of it: they
    stay in the module.

    Kernels of convolutions are stored channels last, which is fastest on a CPU and for cohorts.
    """

    def __init__(self, module: nn.Module):
        named = {name: p for name, p in module.named_parameters() if p.requires_grad}
        self.names = tuple(named)
        self.shapes = tuple(p.shape for p in named.values())
        self.sizes = [p.numel() for p in named.values()]
        self.length = sum(self.sizes)
        ends = list(itertools.accumulate(self.sizes))
        self.slices = [slice(end - size, end) for end, size in zip(ends, self.sizes, strict=True)]

    def weights(self, module: nn.Module) -> Tensor:
        """The vector [parameters] of a module's own values."""
        return self.flatten([p.detach() for p in trainable(module)])

    def flatten(self, tensors: Sequence[Tensor]) -> Tensor:
        """The vector [..., parameters] of tensors given in the order of `names`, with equal leading dimensions."""
        return torch.cat([self._flatten_one(*pair) for pair in zip(tensors, self.shapes, strict=True)], -1)

    def views(self, flat: Tensor) -> list[Tensor]:
        """Views of the vector [..., parameters] with the parameters' shapes, in the order of `names`."""
        lead = flat.shape[:-1]
        views = []
        for piece, shape in zip(flat.split(self.sizes, -1), self.shapes, strict=True):
            if len(shape) == 4:
                views.append(piece.view(*lead, shape[0], shape[2], shape[3], shape[1]).movedim(-1, len(lead) + 1))
            else:
                views.append(piece.view(*lead, *shape))
        return views

    def parameters(self, flat: Tensor) -> tuple[Tensor, ...]:
        """Views that require gradients."""
        return tuple(view.requires_grad_() for view in self.views(flat.detach()))

    def gradients(
        self, loss: Tensor, parameters: Sequence[Tensor], factors: GradientFactors
    ) -> list[tuple[int, GradientParts]]:
        """The gradient of a loss: the index of each parameter, and the parts of its gradient, [jobs, piece].

        Parts are autograd's own tensors, not copies, or factored gradients.
        """
        calls = factors.take_calls()
        sources: list[Any] = [*(edge for _, _, edge in calls), *parameters]
        grads = torch.autograd.grad(loss, sources, allow_unused=True)
        parts: dict[int, list[Tensor | FactoredGradient]] = {n: [] for n in range(len(parameters))}
        for (n, inputs, _), grad in zip(calls, grads, strict=False):
            if grad is not None:
                parts[n].append(FactoredGradient(grad.reshape(*inputs.shape[:2], -1), inputs))
        for n, grad in enumerate(grads[len(calls) :]):
            if grad is not None or not parts[n]:
                grad = torch.zeros_like(parameters[n]) if grad is None else grad
                parts[n].append(torch.atleast_2d(self._flatten_one(grad, self.shapes[n])))
        return list(parts.items())

    @staticmethod
    def _flatten_one(tensor: Tensor, shape: torch.Size) -> Tensor:
        """A parameter's values [..., *shape] in the order of the vector, [..., piece]."""
        lead = tensor.dim() - len(shape)
        rows = tensor.movedim(lead + 1, -1) if len(shape) == 4 else tensor
        return rows.reshape(*tensor.shape[:lead], -1)

    def named(self, flat: Tensor) -> dict[str, Tensor]:
        """Views by name, as `torch.func.functional_call` and `load_state_dict` want them."""
        return dict(zip(self.names, self.views(flat), strict=True))


def trainable(module: nn.Module) -> list[nn.Parameter]:
    """The parameters that a module trains, in the order of its layout."""
    return [p for p in module.parameters() if p.requires_grad]


def copy_trainable(module: nn.Module) -> nn.Module:
    """A copy of a module with parameters of its own where it trains them; frozen ones are shared with the module."""
    shared = {id(p): p for p in module.parameters() if not p.requires_grad}
    return copy.deepcopy(module, shared)


class FunctionalModule:
    """A module without trained parameters of its own: each call passes them, as tensors of any kind.

    The same as `torch.func.functional_call`, prepared once because a cohort calls it at every step.
    """

    def __init__(self, module: nn.Module):
        self.module = copy_trainable(module)
        owners: dict[nn.Parameter, list[tuple[nn.Module, str]]] = {p: [] for p in trainable(self.module)}
        for part in self.module.modules():
            for name, parameter in part._parameters.items():
                if parameter in owners:
                    owners[parameter].append((part, name))
        self.owners = list(owners.values())
        for part in self.module.modules():
            if isinstance(part, nn.RNNBase):  # it would look at the memory behind the tensors
                part.flatten_parameters = lambda: None  # type: ignore[method-assign]

    def __call__(self, parameters: Sequence[Tensor | None], x: Structure) -> Structure:
        """The module's outputs at these parameters."""
        self._set(parameters)
        return call_module(self.module, x)

    def _set(self, parameters: Sequence[Tensor | None]) -> None:
        """Sets the parameters, both as attributes and in `parameters()`, which a forward pass may read for a
        penalty."""
        for owners, parameter in zip(self.owners, parameters, strict=True):
            for part, name in owners:
                part._parameters.pop(name, None)
                setattr(part, name, parameter)
                part._parameters[name] = parameter  # type: ignore[assignment]

    def clear(self) -> None:
        """Releases the tensors of the last call."""
        self._set([None] * len(self.owners))
