"""Architecture: what the engine knows of a model's structure, and the flat layout of its parameters."""

import copy
import hashlib
import itertools
import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from mmfl.data.dataset import as_inputs
from mmfl.engine.operators import ADDRESSED, BATCH_NORM, BATCHED, FASTER, RECURRENT, THINNED, Operators
from mmfl.engine.precision import Precision, multiplying, to_float32
from mmfl.engine.products import Factors, Product
from mmfl.federation.objectives import Objective
from mmfl.federation.task import Task

_INTERNAL = frozenset(vars(nn.Module())) | {"_flat_weights", "_flat_weight_refs"}


class Layout:
    """All parameters of a module as one vector, with named views back into it.

    Kernels of convolutions lie channels last, the order in which both CPU and cohorts read them fastest.
    """

    def __init__(self, module: nn.Module):
        named = dict(module.named_parameters())
        self.names = tuple(named)
        self.shapes = tuple(p.shape for p in named.values())
        self.sizes = [p.numel() for p in named.values()]
        self.trainable = tuple(p.requires_grad for p in named.values())
        self.length = sum(self.sizes)
        ends = list(itertools.accumulate(self.sizes))
        self.slices = [slice(end - size, end) for end, size in zip(ends, self.sizes, strict=True)]

    def flatten(self, tensors: Sequence[Tensor]) -> Tensor:
        """The vector [..., parameters] of tensors given in the order of `names`, with equal leading dimensions."""
        return torch.cat([self._rows(*pair) for pair in zip(tensors, self.shapes, strict=True)], -1)

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

    def pieces(self, *flat: Tensor) -> list[list[Tensor]]:
        """The parameters' values [rows, piece] in each of some matrices [rows, parameters], in the order of `names`."""
        return [[matrix[:, piece] for matrix in flat] for piece in self.slices]

    def parameters(self, flat: Tensor) -> tuple[Tensor, ...]:
        """Views that take part in differentiation, frozen parameters excepted."""
        views = self.views(flat.detach())
        return tuple(view.requires_grad_(train) for view, train in zip(views, self.trainable, strict=True))

    def gradients(
        self, loss: Tensor, parameters: Sequence[Tensor], factors: Factors
    ) -> list[tuple[int, list[Tensor | Product]]]:
        """The gradient of a loss, parameter by parameter: which one, and what adds up to its values [jobs, piece].

        Frozen parameters have none. Values are as autograd left them, not a copy, or products of factors.
        """
        wanted = [n for n, train in enumerate(self.trainable) if train]
        edges: list[Any] = [edge for _, _, edge in factors.calls]
        grads = torch.autograd.grad(loss, [*edges, *(parameters[n] for n in wanted)], allow_unused=True)
        parts: dict[int, list[Tensor | Product]] = {n: [] for n in wanted}
        for n, product in factors.products(grads[: len(edges)]):
            parts[n].append(product)
        for n, grad in zip(wanted, grads[len(edges) :], strict=True):
            if grad is not None or not parts[n]:
                grad = torch.zeros_like(parameters[n]) if grad is None else grad
                parts[n].append(torch.atleast_2d(self._rows(grad, self.shapes[n])))
        return list(parts.items())

    @staticmethod
    def _rows(tensor: Tensor, shape: torch.Size) -> Tensor:
        """A parameter's values [..., *shape] in the order of the vector, [..., piece]."""
        lead = tensor.dim() - len(shape)
        rows = tensor.movedim(lead + 1, -1) if len(shape) == 4 else tensor
        return rows.reshape(*tensor.shape[:lead], -1)

    def named(self, flat: Tensor) -> dict[str, Tensor]:
        """Views by name, as `torch.func.functional_call` and `load_state_dict` want them."""
        return dict(zip(self.names, self.views(flat), strict=True))


class Bare:
    """A module without parameters of its own: they are handed in, as tensors of any kind, with each call.

    The same as `torch.func.functional_call`, prepared once because a cohort calls it at every step.
    """

    def __init__(self, module: nn.Module):
        self.module = copy.deepcopy(module)
        places: dict[nn.Parameter, list[tuple[nn.Module, str]]] = {p: [] for p in self.module.parameters()}
        for part in self.module.modules():
            for name, parameter in part._parameters.items():
                if parameter is not None:
                    places[parameter].append((part, name))
        self.places = list(places.values())
        for part in self.module.modules():
            if isinstance(part, nn.RNNBase):  # would look for the memory of what is handed in
                part.flatten_parameters = lambda: None  # type: ignore[method-assign]

    def __call__(self, parameters: Sequence[Tensor | None], *inputs: Tensor) -> Tensor:
        """The module's outputs at these parameters."""
        self.fill(parameters)
        return self.module(*inputs)  # type: ignore[no-any-return]

    def fill(self, parameters: Sequence[Tensor | None]) -> None:
        """Puts tensors, or nothing, where the parameters were: as attributes, and among `parameters()`, which a forward
        pass may go through for a penalty."""
        for places, parameter in zip(self.places, parameters, strict=True):
            for part, name in places:
                part._parameters.pop(name, None)
                setattr(part, name, parameter)
                part._parameters[name] = parameter  # type: ignore[assignment]

    def clear(self) -> None:
        """Lets go of the tensors of the last call."""
        self.fill([None] * len(self.places))


class Architecture:
    """A module structure shared by one or more tasks, with what must be known to run many clients of it at once."""

    def __init__(self, task: Task, device: torch.device, precision: Precision = "float32"):
        module = task.build()
        self.module = module.to(device).train()
        self.bare = Bare(self.module)
        self.loss: Objective = task.loss
        self.layout = Layout(module)
        self.labels: list[str] = []
        with torch.random.fork_rng(), multiplying("float32"):
            self.operators, self.activation_bytes = self._probe(task, device)
            self.coupled = self._is_coupled(task, device)
            self.draws = self._draws(task, device)
            self.obstacle = self._obstacle(task, precision)
        self.precision: Precision = "float32" if self.obstacle else precision
        self.vectorisable: bool | None = None
        structure = f"{module} {self.layout.shapes} {_shape(task.data.x)}"
        self.code = f"{type(module).__name__}-{hashlib.sha256(structure.encode()).hexdigest()[:12]}"

    @property
    def length(self) -> int:
        """Number of parameters."""
        return self.layout.length

    @property
    def label(self) -> str:
        """The tasks that share this architecture."""
        return "+".join(self.labels)

    @property
    def addressed(self) -> bool:
        """Whether it may draw random numbers at an address of ours."""
        return bool(ADDRESSED & self.operators)

    def copy(self) -> nn.Module:
        """A module of this structure for one thread's own use."""
        return copy.deepcopy(self.module)

    def cohort_operators(self, device: torch.device) -> frozenset[str]:
        """What must be substituted when many clients run as one, and on a GPU what had better be."""
        substitutes = ADDRESSED | BATCHED | THINNED | (FASTER if device.type == "cuda" else frozenset())
        return substitutes & self.operators

    @property
    def sequential_operators(self) -> frozenset[str]:
        """What must be substituted when one client runs alone: whatever draws random numbers, batch norm, of which
        torch's own refuses batches of a single example, and what torch's own gets wrong."""
        inner = any(isinstance(part, nn.LSTM) and part.dropout > 0 for part in self.module.modules())
        return (ADDRESSED - (frozenset() if inner else RECURRENT) | BATCH_NORM | THINNED) & self.operators

    def _probe(self, task: Task, device: torch.device) -> tuple[frozenset[str], int]:
        """Runs two examples: which substitutable operators it uses, and bytes kept for one example's gradient."""
        kept: dict[int, int] = {}
        own = {p.data_ptr() for p in self.module.parameters()}

        def keep(tensor: Tensor) -> Tensor:
            if tensor.data_ptr() not in own:
                kept[tensor.data_ptr()] = tensor.numel() * tensor.element_size()
            return tensor

        with Operators(frozenset()) as mode, torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            self.module(as_inputs(task.data.x[:2].to(device)))
        return frozenset(mode.seen), max(1, sum(kept.values()) // 2)

    def _addressed(self, x: Tensor) -> Tensor:
        """Outputs in training, with all randomness that can be addressed at one address."""
        with Operators(ADDRESSED & self.operators), torch.no_grad():
            return self.module(x)  # type: ignore[no-any-return]

    def _is_coupled(self, task: Task, device: torch.device) -> bool:
        """Whether an example's output depends on the others in its batch, as with batch norm: then a client's batches
        must not be padded, nor mixed with another's."""
        if any(isinstance(part, _BatchNorm) for part in self.module.modules()):
            return True
        rows = torch.linspace(0, len(task.data.x) - 1, 6).long()
        x = as_inputs(task.data.x[rows].to(device))
        torch.manual_seed(0)
        alone = self._addressed(x[:3])
        torch.manual_seed(0)
        together = self._addressed(x)[:3]
        return alone.shape != together.shape or not torch.allclose(alone, together, rtol=1e-3, atol=1e-4)

    def _obstacle(self, task: Task, precision: Precision) -> str:
        """Why the module cannot train and be evaluated in bfloat16, found out by trying both; empty if it can.

        Without AVX-512, for example, oneDNN has no LSTM in bfloat16.
        """
        if precision != "bfloat16":
            return ""
        x, wanted = as_inputs(task.data.x[:2]), [p for p in self.module.parameters() if p.requires_grad]
        try:
            with multiplying(precision), Operators(self.sequential_operators):
                torch.autograd.grad(to_float32(self.module(x)).sum(), wanted, allow_unused=True)
            with multiplying(precision), Operators(BATCH_NORM & self.operators), torch.no_grad():
                self.module.eval()(x)
        except (RuntimeError, ValueError, TypeError) as error:
            return str(error)
        finally:
            self.module.train()
        return ""

    def _draws(self, task: Task, device: torch.device) -> bool:
        """Whether the module draws random numbers of its own, beyond those that can be addressed."""
        before = _generator_state(device)
        self._addressed(as_inputs(task.data.x[:2].to(device)))
        return not torch.equal(before, _generator_state(device))


def _generator_state(device: torch.device) -> Tensor:
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


def signature(task: Task) -> str:
    """Equal for two tasks only if their jobs can run in one cohort: same structure, loss and shapes of examples."""
    module = task.build()
    parts: list[str] = [_identity(task.loss), _shape(task.data.x), _shape(task.data.y)]
    for name, part in module.named_modules():
        hooked = any(getattr(part, key) for key in vars(part) if key.endswith("_hooks"))
        parts.append(f"{name}:{_identity(type(part))}:{part.training}:{_unique() if hooked else ''}")
        parts += [f"{key}={_constant(value)}" for key, value in sorted(vars(part).items()) if key not in _INTERNAL]
    parts += [f"{name}{tuple(p.shape)}{p.dtype}{p.requires_grad}" for name, p in module.named_parameters()]
    parts += [f"{name}{_constant(buffer)}" for name, buffer in module.named_buffers()]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _shape(tensor: Tensor) -> str:
    return f"{tuple(tensor.shape[1:])}{tensor.dtype}"


_serial = itertools.count()


def _unique() -> str:
    """A text that equals no other."""
    return f"object {next(_serial)}"


def _identity(thing: Any) -> str:
    """The name under which a class or function can be imported; what cannot be counts as unequal to everything else."""
    path, name = getattr(thing, "__module__", None), getattr(thing, "__qualname__", None)
    found: Any = sys.modules.get(path or "")
    for step in (name or "").split("."):
        found = getattr(found, step, None)
    return f"{path}.{name}" if found is thing else _unique()


def _constant(value: Any) -> str:
    """A text equal only for equal constants; what cannot be read off counts as unequal to everything else."""
    if value is None or isinstance(value, bool | int | float | str | complex):
        return repr(value)
    if isinstance(value, list | tuple):
        return "[" + ",".join(_constant(item) for item in value) + "]"
    if isinstance(value, Tensor):
        return f"{tuple(value.shape)}{hashlib.sha256(value.detach().cpu().numpy().tobytes()).hexdigest()}"
    return _identity(value) if callable(value) else _unique()
