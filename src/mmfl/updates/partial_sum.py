"""PartialSum: a sum over clients, of which each process of a run holds the part of its own clients."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from numbers import Number
from typing import Any

from torch import Tensor

from mmfl.updates.world import World


class PartialSum:
    """A sum over all processes that has not been added up yet.

    Sums and multiples of partial sums are partial sums, so that a whole formula costs one exchange between processes:
    it happens when anything else is done with it, such as subtracting it from a tensor. Then every process has the same
    bits.
    """

    def __init__(self, part: Tensor, world: World):
        self.part, self.world = part, world

    @staticmethod
    def of(part: Tensor, world: World) -> Tensor:
        """The sum of every process's part; with a single process that is the part itself."""
        return part if world.size == 1 else PartialSum(part, world)  # type: ignore[return-value]  # acts as a tensor

    def tensor(self) -> Tensor:
        """The sum over all processes."""
        return self.world.sum(self.part.clone())

    def float(self) -> "PartialSum":
        """In single precision."""
        return PartialSum(self.part.float(), self.world)

    def __add__(self, other: Any) -> Any:
        if isinstance(other, PartialSum):
            return PartialSum(self.part + other.part, self.world)
        return self.tensor() + other

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        return self + (-other)

    def __rsub__(self, other: Any) -> Any:
        return other - self.tensor()

    def __mul__(self, factor: Any) -> Any:
        return PartialSum(self.part * factor, self.world) if _is_number(factor) else self.tensor() * factor

    __rmul__ = __mul__

    def __truediv__(self, divisor: Any) -> Any:
        return PartialSum(self.part / divisor, self.world) if _is_number(divisor) else self.tensor() / divisor

    def __neg__(self) -> "PartialSum":
        return PartialSum(-self.part, self.world)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tensor(), name)

    def __len__(self) -> int:
        return len(self.part)

    def __getitem__(self, index: Any) -> Tensor:
        return self.tensor()[index]

    @classmethod
    def __torch_function__(
        cls,
        function: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Whatever torch does with it, it does with the sum."""
        return function(*map(add_up, args), **{key: add_up(value) for key, value in (kwargs or {}).items()})


def add_up(value: Any) -> Any:
    """A value, a list or a dataclass, with partial sums replaced by tensors."""
    if isinstance(value, PartialSum):
        return value.tensor()
    if isinstance(value, list | tuple):
        return type(value)(map(add_up, value))
    if is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            object.__setattr__(value, field.name, add_up(getattr(value, field.name)))
    return value


def _is_number(value: Any) -> bool:
    return isinstance(value, Number)
