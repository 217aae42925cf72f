"""Low-rank adapters (LoRA, Hu et al. 2022): a frozen base with small trained updates on chosen layers."""

import copy
import math
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmfl.checks import check, check_positive, check_whole, is_number
from mmfl.errors import UserError, first_line, nearest


class LoRALinear(nn.Module):
    """A frozen layer with a trained update of low rank: W x + scale B A x, where B starts at zero.

    `weight` is W + scale B A, for code that reads the weight instead of calling the layer; other attributes are those
    of the frozen layer.
    """

    def __init__(self, base: nn.Module, rank: int, scale: float, dropout: float):
        super().__init__()
        self.base, self.scale, self.dropout = base, scale, dropout
        outputs, *inputs = _shape(base)
        self.lora_a, self.lora_b = nn.Parameter(torch.empty(rank, *inputs)), nn.Parameter(torch.zeros(outputs, rank))
        self._start()

    def _start(self) -> None:
        nn.init.kaiming_uniform_(self.lora_a, a=math.sqrt(5))

    def forward(self, x: Tensor) -> Tensor:
        """The outputs of the layer with its update."""
        outputs: Tensor = self.base(x)
        return outputs + self.scale * F.linear(self._reduce(x), self.lora_b).to(outputs.dtype)

    def _reduce(self, x: Tensor) -> Tensor:
        """A x, [..., rank]."""
        return F.linear(self._drop(x), self.lora_a)

    def _drop(self, x: Tensor) -> Tensor:
        x = x.to(self.lora_a.dtype)
        return F.dropout(x, self.dropout, self.training) if self.dropout > 0 else x

    @property
    def weight(self) -> Tensor:
        """The frozen weight plus its update."""
        frozen: Tensor = self.base.weight  # type: ignore[assignment]
        update = self.lora_b @ self.lora_a.flatten(1)
        return frozen + self.scale * self._like_weight(update).to(frozen.dtype)

    def _like_weight(self, update: Tensor) -> Tensor:
        return update

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("base"), name)


class LoRAConvolution(LoRALinear):
    """A frozen convolution with an update: A is a convolution with `rank` channels, B one of single pixels."""

    def forward(self, x: Tensor) -> Tensor:
        """The outputs of the layer with its update."""
        outputs: Tensor = self.base(x)
        channels = 1 - self.lora_a.dim()
        reduced = self.base._conv_forward(self._drop(x), self.lora_a, None)  # type: ignore[operator]
        update = F.linear(reduced.movedim(channels, -1), self.lora_b).movedim(-1, channels)
        return outputs + self.scale * update.to(outputs.dtype)

    def _like_weight(self, update: Tensor) -> Tensor:
        return update.view(-1, *self.lora_a.shape[1:])


class LoRAEmbedding(LoRALinear):
    """A frozen embedding with an update: A has a column for each row of the embedding; that of the padding is zero."""

    def _start(self) -> None:
        nn.init.normal_(self.lora_a)
        if self.padding_idx is not None:
            self.lora_a.data[:, self.padding_idx] = 0

    def _reduce(self, x: Tensor) -> Tensor:
        return self._drop(F.embedding(x, self.lora_a.T, self.padding_idx))

    def _like_weight(self, update: Tensor) -> Tensor:
        return update.T


_ADAPTERS: dict[type[nn.Module], type[LoRALinear]] = {
    nn.Linear: LoRALinear,
    nn.Embedding: LoRAEmbedding,
    nn.Conv1d: LoRAConvolution,
    nn.Conv2d: LoRAConvolution,
    nn.Conv3d: LoRAConvolution,
}


def lora(
    base: nn.Module,
    rank: int = 8,
    alpha: float | None = None,
    layers: str | Iterable[str] | None = None,
    heads: Mapping[str, nn.Module] | None = None,
    dropout: float = 0.0,
    freeze_a: bool = False,
) -> nn.Module:
    """A network of which only low-rank updates of some layers are trained (LoRA), and heads of its own.

    The base stays as it is. Its parameters are frozen in the new network but not copied, so that the networks of many
    tasks can share them. Before training, the outputs are those of the base.

    - `rank`: of the updates B A. `alpha`: they are scaled by alpha / rank, which is 1 by default.
    - `layers`: which layers have updates, by name or pattern (`"blocks.*.query"`); the end of a name is enough. Linear
      layers, embeddings and convolutions can; all linear layers do by default.
    - `heads`: new parts in place of the base's, trained in full, by name: `{"output": nn.Linear(64, 3)}`.
    - `dropout`: the share of an update's inputs that are dropped in training.
    - `freeze_a`: only B is trained (FFA-LoRA, Sun et al. 2024): less to send, and the mean of clients' updates is
      exactly the update of their mean.

    >>> from mmfl.models import Perceptron
    >>> model = lora(Perceptron(64, 32, 10), rank=4, layers="hidden", heads={"output": nn.Linear(32, 3)})
    >>> {name: tuple(p.shape) for name, p in model.named_parameters() if p.requires_grad}
    {'hidden.lora_a': (4, 64), 'hidden.lora_b': (32, 4), 'output.weight': (3, 32), 'output.bias': (3,)}
    """
    check(isinstance(base, nn.Module), "lora", "base", base, "a torch.nn.Module")
    check_whole("lora", "rank", rank)
    if alpha is not None:
        check_positive("lora", "alpha", alpha)
    check(is_number(dropout, 0, 1) and dropout < 1, "lora", "dropout", dropout, "a number from 0 to below 1")
    check(isinstance(freeze_a, bool), "lora", "freeze_a", freeze_a, "True or False")
    network = _freeze(base)
    heads = {} if heads is None else heads
    _replace_parts(network, heads)
    new = {part for head in heads.values() for part in head.modules()}
    chosen = _choose({name: part for name, part in network.named_modules() if part not in new}, layers)
    adapters: dict[nn.Module | None, nn.Module] = {}
    for name, layer in chosen.items():
        _check_layer(name, layer, rank)
        adapters[layer] = adapter = _kind(layer)(layer, rank, (alpha or rank) / rank, dropout)
        adapter.lora_a.requires_grad_(not freeze_a)
    for parent in list(network.modules()):
        for name, child in list(parent._modules.items()):
            setattr(parent, name, adapters.get(child, child))
    return adapters.get(network, network)


def _freeze(base: nn.Module) -> nn.Module:
    """A copy whose parameters have the memory of the base's, none of them trained."""
    try:
        return copy.deepcopy(base, {id(p): nn.Parameter(p.detach(), requires_grad=False) for p in base.parameters()})
    except (RuntimeError, ValueError, TypeError) as error:
        raise UserError(f"lora: the base cannot be copied: {first_line(error)}") from None


def _replace_parts(network: nn.Module, heads: Mapping[str, nn.Module]) -> None:
    valid = isinstance(heads, Mapping) and all(isinstance(head, nn.Module) for head in heads.values())
    check(valid, "lora", "heads", heads, 'new modules by name, such as {"output": nn.Linear(64, 3)}')
    for name, head in heads.items():
        names = [each for each, _ in network.named_modules() if each]
        if name not in names:
            raise UserError(f"lora: the base has no part '{name}' to replace: {nearest(str(name), names)}")
        network.set_submodule(name, head)


def _choose(parts: Mapping[str, nn.Module], layers: str | Iterable[str] | None) -> dict[str, nn.Module]:
    """The layers that get an update, by name."""
    able = {name: part for name, part in parts.items() if isinstance(part, tuple(_ADAPTERS))}
    if layers is None:
        linear: dict[str, nn.Module] = {name: part for name, part in able.items() if isinstance(part, nn.Linear)}
        if not linear:
            others = f"give layers=[...] of: {', '.join(able)}" if able else "nor embeddings or convolutions"
            raise UserError(f"lora: the base has no linear layers to adapt; {others}.")
        return linear
    patterns = [layers] if isinstance(layers, str) else list(layers) if isinstance(layers, Iterable) else []
    valid = patterns and all(isinstance(pattern, str) for pattern in patterns)
    check(bool(valid), "lora", "layers", layers, "names of layers, or None for all linear layers")
    for pattern in patterns:
        if not any(_matches(name, pattern) for name in able):
            found = f"'{pattern}' is a {type(parts[pattern]).__name__}; " if pattern in parts else ""
            expected = "expected linear layers, embeddings or convolutions." if found else nearest(pattern, able)
            raise UserError(f"lora: no layer matches '{pattern}': {found}{expected}")
    return {name: part for name, part in able.items() if any(_matches(name, pattern) for pattern in patterns)}


def _matches(name: str, pattern: str) -> bool:
    return fnmatchcase(f".{name}", f"*.{pattern}")


def _check_layer(name: str, layer: nn.Module, rank: int) -> None:
    """Refuses a layer that cannot have an update of this rank."""
    outputs, *inputs = _shape(layer)
    largest = min(outputs, math.prod(inputs))
    if rank > largest:
        raise UserError(
            f"lora: rank {rank} is too large for layer '{name}' ({math.prod(inputs)} to {outputs}); expected at most "
            f"{largest}, or layers=[...] without it."
        )
    if getattr(layer, "groups", 1) != 1:
        raise UserError(f"lora: layer '{name}' is a convolution in {layer.groups} groups; expected one without groups.")


def _kind(layer: nn.Module) -> type[LoRALinear]:
    return next(adapter for kind, adapter in _ADAPTERS.items() if isinstance(layer, kind))


def _shape(layer: nn.Module) -> list[int]:
    """Outputs, and the dimensions of inputs, of a layer's weight."""
    shape = list(layer.weight.shape)  # type: ignore[arg-type]
    return shape[::-1] if isinstance(layer, nn.Embedding) else shape
