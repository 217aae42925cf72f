"""The flat vectors of what a module trains and of its batch statistics, and modules that are called with them."""

import copy
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from mmfl.data.structure import Structure, call_module
from mmfl.engine.factored import FactoredGradient, GradientFactors, GradientParts
from mmfl.federation.batch_norm import BatchNormMode, batch_norm_layers


class NamedViews:
    """Named tensors as one vector, with views into it.

    Kernels of convolutions are stored channels last, which is fastest on a CPU and for cohorts.
    """

    def __init__(self, tensors: Mapping[str, Tensor]):
        self.names = tuple(tensors)
        self.shapes = tuple(tensor.shape for tensor in tensors.values())
        self.sizes = [tensor.numel() for tensor in tensors.values()]
        self.length = sum(self.sizes)
        ends = list(itertools.accumulate(self.sizes))
        self.slices = [slice(end - size, end) for end, size in zip(ends, self.sizes, strict=True)]

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

    def named(self, flat: Tensor) -> dict[str, Tensor]:
        """Views by name, as `torch.func.functional_call` and `load_state_dict` want them."""
        return dict(zip(self.names, self.views(flat), strict=True))

    @staticmethod
    def _flatten_one(tensor: Tensor, shape: torch.Size) -> Tensor:
        """A tensor's values [..., *shape] in the order of the vector, [..., piece]."""
        lead = tensor.dim() - len(shape)
        rows = tensor.movedim(lead + 1, -1) if len(shape) == 4 else tensor
        return rows.reshape(*tensor.shape[:lead], -1)


class Layout(NamedViews):
    """The parameters that a module trains as one vector. Frozen ones are not part of it: they stay in the module.

    The first `shared` values are the federation's. Where batch norm is local, its scales and shifts follow: they are
    trained, but stay with the client. `statistics` is the layout of batch norm's running means and variances, which
    training changes; of nothing where they are frozen.
    """

    def __init__(self, module: nn.Module, batch_norm: BatchNormMode = "shared"):
        trained = {name: p for name, p in module.named_parameters() if p.requires_grad}
        layers = dict(batch_norm_layers(module))
        own = {_path(name, key) for name, layer in layers.items() for key, _ in layer.named_parameters()}
        private = {name for name in trained if name in own and batch_norm == "local"}
        super().__init__({name: trained[name] for name in sorted(trained, key=private.__contains__)})
        self.shared = self.length - sum(trained[name].numel() for name in private)
        changed = {} if batch_norm == "frozen" else layers
        keys = ("running_mean", "running_var")
        statistics = {_path(name, key): getattr(layer, key) for name, layer in changed.items() for key in keys}
        self.statistics = NamedViews({name: each for name, each in statistics.items() if each is not None})

    def trainable(self, module: nn.Module) -> list[nn.Parameter]:
        """The parameters that a module trains, in the order of `names`."""
        named = dict(module.named_parameters())
        return [named[name] for name in self.names]

    def weights(self, module: nn.Module) -> Tensor:
        """The vector [parameters] of a module's own values."""
        return self.flatten([parameter.detach() for parameter in self.trainable(module)])

    def batch_norm(self, module: nn.Module) -> Tensor:
        """What is not the federation's weights, of a module's own values: scales and shifts, where they are local, and
        statistics."""
        named = dict(module.named_buffers())
        statistics = [named[name].flatten() for name in self.statistics.names]
        return torch.cat([self.weights(module)[self.shared :], *statistics])

    def split(self, weights: Tensor, batch_norm: Tensor | None) -> tuple[Tensor, Tensor]:
        """The vector [..., parameters] and the statistics [..., values], given shared weights and `batch_norm`."""
        if batch_norm is None:
            return weights, weights.new_empty(*weights.shape[:-1], 0)
        private, statistics = batch_norm.split([self.length - self.shared, self.statistics.length], -1)
        return (
            torch.cat([weights.expand(*private.shape[:-1], -1), private], -1) if private.shape[-1] else weights
        ), statistics

    def values(self, weights: Tensor, batch_norm: Tensor | None) -> dict[str, Tensor]:
        """All that `torch.func.functional_call` needs, by name."""
        parameters, statistics = self.split(weights, batch_norm)
        return {**self.named(parameters), **self.statistics.named(statistics)}

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


def _path(layer: str, key: str) -> str:
    """The name of a layer's tensor."""
    return f"{layer}.{key}" if layer else key


def copy_trainable(module: nn.Module) -> nn.Module:
    """A copy of a module with parameters of its own where it trains them; frozen ones are shared with the module.

    Batch norm does not count batches: its momentum says how fast statistics change.
    """
    shared = {id(p): p for p in module.parameters() if not p.requires_grad}
    copied = copy.deepcopy(module, shared)
    for _, layer in batch_norm_layers(copied):
        layer.num_batches_tracked = None
    return copied


class FunctionalModule:
    """A module without trained parameters of its own: each call passes them, as tensors of any kind, and statistics of
    batch norm, which it changes in place.

    The same as `torch.func.functional_call`, prepared once because a cohort calls it at every step.
    """

    def __init__(self, module: nn.Module, layout: Layout):
        self.module = copy_trainable(module)
        owners: dict[nn.Parameter, list[tuple[nn.Module, str]]] = {p: [] for p in layout.trainable(self.module)}
        for part in self.module.modules():
            for name, parameter in part._parameters.items():
                if parameter in owners:
                    owners[parameter].append((part, name))
        self.owners = list(owners.values())
        paths = [name.rpartition(".") for name in layout.statistics.names]
        self.statistics = [(self.module.get_submodule(layer), key) for layer, _, key in paths]
        for part in self.module.modules():
            if isinstance(part, nn.RNNBase):  # it would look at the memory behind the tensors
                part.flatten_parameters = lambda: None  # type: ignore[method-assign]

    def __call__(self, parameters: Sequence[Tensor | None], statistics: Sequence[Tensor], x: Structure) -> Structure:
        """The module's outputs at these parameters and statistics."""
        self._set(parameters)
        for (layer, key), values in zip(self.statistics, statistics, strict=True):
            layer._buffers[key] = values
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
