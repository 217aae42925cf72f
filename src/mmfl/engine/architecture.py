"""Architecture: what the engine knows about a module structure, and which tasks share one."""

import hashlib
import sys
import uuid
from collections.abc import MutableMapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from mmfl.data.dataset import as_inputs
from mmfl.data.structure import Structure, call_module, leaves, length, map_leaves, rows, tensors
from mmfl.engine.layout import FunctionalModule, Layout
from mmfl.engine.operators import (
    BATCH_NORM,
    BATCH_NORM_OF_ONE,
    DROPOUT,
    FASTER_ON_GPU,
    NOT_BATCHED,
    RECURRENT,
    STRIDED_1X1,
    Operators,
)
from mmfl.engine.precision import Precision, matmul_precision, to_float32
from mmfl.errors import first_line
from mmfl.federation.batch_norm import batch_norm_layers, set_training
from mmfl.federation.objectives import Objective
from mmfl.federation.task import Task


class Architecture:
    """A module structure that one or more tasks share, and what must be known to train many clients of it at once.

    `coupled`: in training, an example's output depends on the others in its batch, and `coupled_in_tests` in evaluation
    too. `batch_norm`: what `Layout.batch_norm` says of a new module. `draws`: the module draws random numbers that the
    engine cannot address. `vectorisable`: whether torch can batch it over clients; None until it was tried.
    `frozen` holds the frozen parameters of other architectures: those that are equal are shared with them.
    `precision_obstacle`: why it cannot run in the precision asked for; empty if it can.
    """

    def __init__(self, task: Task, device: torch.device, precision: Precision, frozen: MutableMapping[str, Tensor]):
        module = task.build()
        self.batch_norm_mode = task.batch_norm
        self.module = self.set_training(module.to(device))
        _share_frozen(module, frozen)
        self.layout = Layout(module, task.batch_norm)
        self.batch_norm = self.layout.batch_norm(module)
        self.functional = FunctionalModule(self.module, self.layout)
        self.loss: Objective = task.loss
        self.task_names: list[str] = []
        spread = torch.linspace(0, length(task.data.x) - 1, 6).long()
        two, six = (
            as_inputs(map_leaves(lambda leaf: leaf.to(device), rows(task.data.x, some))) for some in (slice(2), spread)
        )
        with torch.random.fork_rng(), matmul_precision("float32"):
            self.operators, self.activation_bytes = self._probe(two)
            self.coupled = self._is_coupled(six)
            self.coupled_in_tests = self.coupled and self._is_coupled_in_tests(six)
            self.draws = self._draws_random_numbers(two)
            self.precision_obstacle = self._find_precision_obstacle(two) if precision == "bfloat16" else ""
        self.precision: Precision = "float32" if self.precision_obstacle else precision
        self.vectorisable: bool | None = None
        structure = f"{module} {self.layout.shapes} {shape_of_examples(task.data.x)}"
        self.code = f"{type(module).__name__}-{hashlib.sha256(structure.encode()).hexdigest()[:12]}"

    @property
    def length(self) -> int:
        """Number of parameters that a client trains."""
        return self.layout.length

    def with_statistics(self, weights: Tensor, batch_norm: Tensor | None) -> Tensor:
        """Weights [parameters] followed by the statistics of batch norm, given the one row that all clients have."""
        return torch.cat(self.layout.split(weights, self.batch_norm if batch_norm is None else batch_norm[0]))

    def set_training(self, module: nn.Module) -> nn.Module:
        """Puts a module of this architecture into training mode."""
        return set_training(module, self.batch_norm_mode)

    @property
    def label(self) -> str:
        """The tasks that share this architecture."""
        return "+".join(self.task_names)

    @property
    def draws_addressed(self) -> bool:
        """Whether it may draw random numbers that the engine addresses, such as dropout masks."""
        return bool((DROPOUT | RECURRENT) & self.operators)

    def cohort_operators(self, device: torch.device) -> frozenset[str]:
        """The operators to substitute when clients train as a cohort."""
        on_gpu = FASTER_ON_GPU if device.type == "cuda" else frozenset()
        return (DROPOUT | NOT_BATCHED | STRIDED_1X1 | on_gpu) & self.operators

    @property
    def sequential_operators(self) -> frozenset[str]:
        """The operators to substitute when a client trains alone: those that draw random numbers, batch norm of a
        single example (which torch refuses), and those that torch gets wrong."""
        of_one = BATCH_NORM_OF_ONE if BATCH_NORM & self.operators else frozenset()
        return (DROPOUT | STRIDED_1X1) & self.operators | of_one

    def _probe(self, x: Structure) -> tuple[frozenset[str], int]:
        """Which substitutable operators are used, and the bytes of one example's activations, by running two: those
        kept for its gradient, or the largest of a frozen part, which keeps none."""
        saved: dict[int, int] = {}
        own = {p.data_ptr() for p in self.module.parameters()}

        def save(tensor: Tensor) -> Tensor:
            if tensor.data_ptr() not in own:
                saved[tensor.data_ptr()] = tensor.numel() * tensor.element_size()
            return tensor

        with _Watched(frozenset()) as mode, torch.autograd.graph.saved_tensors_hooks(save, lambda tensor: tensor):
            call_module(self.module, x)
        return frozenset(mode.seen), max(1, mode.largest // 2, sum(saved.values()) // 2)

    def _addressed_outputs(self, x: Structure) -> list[Tensor]:
        """Outputs in training mode, with all addressable random numbers at one address."""
        with Operators(DROPOUT & self.operators), torch.no_grad():
            return tensors(call_module(self.module, x))

    def _is_coupled(self, x: Structure) -> bool:
        """Whether an example's output depends on the others in its batch, as batch norm's does in training: then a
        client's batches must not be padded, nor mixed with another's."""
        if any(layer.training for _, layer in batch_norm_layers(self.module)):
            return True
        torch.manual_seed(0)
        half = self._addressed_outputs(rows(x, slice(3)))
        torch.manual_seed(0)
        whole = [leaf[:3] for leaf in self._addressed_outputs(x)]
        return any(
            one.shape != other.shape or not torch.allclose(one, other, rtol=1e-3, atol=1e-4)
            for one, other in zip(half, whole, strict=True)
        )

    def _is_coupled_in_tests(self, x: Structure) -> bool:
        self.module.eval()
        coupled = self._is_coupled(x)
        self.set_training(self.module)
        return coupled

    def _draws_random_numbers(self, x: Structure) -> bool:
        """Whether the module draws random numbers beyond those that the engine can address."""
        device = leaves(x)[0].device
        state = partial(torch.cuda.get_rng_state, device) if device.type == "cuda" else torch.get_rng_state
        before = state()
        self._addressed_outputs(x)
        return not torch.equal(before, state())

    def _find_precision_obstacle(self, x: Structure) -> str:
        """Tries to train and evaluate in bfloat16, and returns the error if that fails.

        Without AVX-512, for example, oneDNN has no LSTM in bfloat16.
        """
        try:
            with matmul_precision("bfloat16"), Operators(self.sequential_operators):
                outputs = [
                    leaf.sum() for leaf in tensors(to_float32(call_module(self.module, x))) if leaf.requires_grad
                ]
                torch.autograd.grad(outputs, self.layout.trainable(self.module), allow_unused=True)
            with matmul_precision("bfloat16"), Operators(BATCH_NORM & self.operators), torch.no_grad():
                call_module(self.module.eval(), x)
        except (RuntimeError, ValueError, TypeError) as error:
            return first_line(error)
        finally:
            self.set_training(self.module)
        return ""


class _Watched(Operators):
    """Notes the bytes of the largest output that needs no gradient."""

    largest = 0

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        answer = super().__torch_function__(func, types, args, kwargs)
        if isinstance(answer, Tensor) and not answer.requires_grad:
            self.largest = max(self.largest, answer.nbytes)
        return answer


def _share_frozen(module: nn.Module, known: MutableMapping[str, Tensor]) -> None:
    """Lets the frozen parameters of all modules that have equal ones be the same tensors: a base exists once.

    Kernels of convolutions are stored channels last, as trained ones are.
    """
    for parameter in module.parameters():
        if not parameter.requires_grad:
            values = parameter.data
            if values.dim() == 4:  # `contiguous` would leave the strides of a single channel as they are
                values = values.clone(memory_format=torch.channels_last)
            parameter.data = known.setdefault(_constant(parameter), values)


_INTERNAL = frozenset(vars(nn.Module())) | {"_flat_weights", "_flat_weight_refs"}


def signature(task: Task) -> str:
    """Equal for two tasks only if their jobs can run in one cohort: same structure, loss, shapes of examples
    and augmentation."""
    module = task.build()
    parts = [_identity(task.loss), shape_of_examples(task.data.x), shape_of_examples(task.data.y), task.batch_norm]
    parts.append(_constant(task.augmentation))
    for name, part in module.named_modules():
        hooked = any(getattr(part, key) for key in vars(part) if key.endswith("_hooks"))
        parts.append(f"{name}:{_identity(type(part))}:{part.training}:{_unlike_any_other() if hooked else ''}")
        parts += [f"{key}={_attribute(value)}" for key, value in sorted(vars(part).items()) if key not in _INTERNAL]
    parts += [f"{name}{tuple(p.shape)}{p.dtype}{p.requires_grad}" for name, p in module.named_parameters()]
    frozen = [(name, p) for name, p in module.named_parameters() if not p.requires_grad]
    parts += [f"{name}{_constant(value)}" for name, value in [*frozen, *module.named_buffers()]]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def shape_of_examples(examples: Structure) -> str:
    """Structure, shapes and types of one example of a data set."""
    return str(map_leaves(lambda leaf: f"{tuple(leaf.shape[1:])}{leaf.dtype}", examples))


def _unlike_any_other() -> str:
    """A text that is never repeated."""
    return f"object {uuid.uuid4()}"


def _identity(thing: Any) -> str:
    """The name under which a class or function can be imported, with the options of a `partial` or the fields of a
    dataclass; one that cannot be imported equals nothing else."""
    if is_dataclass(thing) and not isinstance(thing, type):
        state = {each.name: getattr(thing, each.name) for each in fields(thing)} | getattr(thing, "__dict__", {})
        return f"{_identity(type(thing))}{_constant(state)}"
    if isinstance(thing, partial):
        return f"{_identity(thing.func)}{_constant(thing.args)}{_constant(sorted(thing.keywords.items()))}"
    path, name = getattr(thing, "__module__", None), getattr(thing, "__qualname__", None)
    found: Any = sys.modules.get(path or "")
    for step in (name or "").split("."):
        found = getattr(found, step, None)
    return f"{path}.{name}" if found is thing else _unlike_any_other()


def _attribute(value: Any) -> str:
    """The text of a module's attribute, as `_constant`; one that contains itself equals nothing else."""
    try:
        return _constant(value)
    except (RuntimeError, TypeError):
        return _unlike_any_other()


def _constant(value: Any) -> str:
    """A text that is the same for equal constants; an object that is no constant equals nothing else."""
    if value is None or isinstance(value, bool | int | float | str | complex):
        return repr(value)
    if isinstance(value, list | tuple):
        return "[" + ",".join(_constant(item) for item in value) + "]"
    if type(value) in (set, frozenset):
        return "{" + ",".join(sorted(map(_constant, value))) + "}"
    if type(value) is dict:
        return "{" + ",".join(f"{_constant(key)}:{_constant(item)}" for key, item in value.items()) + "}"
    if isinstance(value, Tensor):
        numbers = value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
        return f"{value.dtype}{tuple(value.shape)}{hashlib.sha256(numbers.data).hexdigest()}"
    if isinstance(value, torch.dtype | torch.device | Enum):
        return f"{_identity(type(value))}{value}"
    return _identity(value) if callable(value) or is_dataclass(value) else _unlike_any_other()
