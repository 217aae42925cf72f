"""FunctionalModule: a module that is called with its parameters."""

import copy
from collections.abc import Sequence

from torch import Tensor, nn


class FunctionalModule:
    """A module without parameters of its own: each call passes them, as tensors of any kind.

    The same as `torch.func.functional_call`, prepared once because a cohort calls it at every step.
    """

    def __init__(self, module: nn.Module):
        self.module = copy.deepcopy(module)
        owners: dict[nn.Parameter, list[tuple[nn.Module, str]]] = {p: [] for p in self.module.parameters()}
        for part in self.module.modules():
            for name, parameter in part._parameters.items():
                if parameter is not None:
                    owners[parameter].append((part, name))
        self.owners = list(owners.values())
        for part in self.module.modules():
            if isinstance(part, nn.RNNBase):  # it would look at the memory behind the tensors
                part.flatten_parameters = lambda: None  # type: ignore[method-assign]

    def __call__(self, parameters: Sequence[Tensor | None], *inputs: Tensor) -> Tensor:
        """The module's outputs at these parameters."""
        self._set(parameters)
        return self.module(*inputs)  # type: ignore[no-any-return]

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
