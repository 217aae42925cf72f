"""Architecture: what the engine knows about a module structure."""

import copy
import hashlib

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from mmfl.data.dataset import as_inputs
from mmfl.engine.functional import FunctionalModule
from mmfl.engine.layout import Layout
from mmfl.engine.operators import BATCH_NORM, FASTER_ON_GPU, LSTM, NOT_BATCHED, RANDOM, STRIDED_1X1, Operators
from mmfl.engine.precision import Precision, matmul_precision, to_float32
from mmfl.engine.signature import shape_of_examples
from mmfl.federation.objectives import Objective
from mmfl.federation.task import Task


class Architecture:
    """A module structure that one or more tasks share, and what must be known to train many clients of it at once.

    `coupled`: an example's output depends on the others in its batch. `draws`: the module draws random numbers that
    the engine cannot address. `vectorisable`: whether torch can batch it over clients; None until it was tried.
    `precision_obstacle`: why it cannot run in the precision asked for; empty if it can.
    """

    def __init__(self, task: Task, device: torch.device, precision: Precision = "float32"):
        module = task.build()
        self.module = module.to(device).train()
        self.functional = FunctionalModule(self.module)
        self.loss: Objective = task.loss
        self.layout = Layout(module)
        self.task_names: list[str] = []
        with torch.random.fork_rng(), matmul_precision("float32"):
            self.operators, self.activation_bytes = self._probe(task, device)
            self.coupled = self._is_coupled(task, device)
            self.draws = self._draws_random_numbers(task, device)
            self.precision_obstacle = self._find_precision_obstacle(task, precision)
        self.precision: Precision = "float32" if self.precision_obstacle else precision
        self.vectorisable: bool | None = None
        structure = f"{module} {self.layout.shapes} {shape_of_examples(task.data.x)}"
        self.code = f"{type(module).__name__}-{hashlib.sha256(structure.encode()).hexdigest()[:12]}"

    @property
    def length(self) -> int:
        """Number of parameters."""
        return self.layout.length

    @property
    def label(self) -> str:
        """The tasks that share this architecture."""
        return "+".join(self.task_names)

    @property
    def addressed(self) -> bool:
        """Whether it may draw random numbers that the engine addresses, such as dropout masks."""
        return bool(RANDOM & self.operators)

    def copy(self) -> nn.Module:
        """A copy of the module, for one thread."""
        return copy.deepcopy(self.module)

    def cohort_operators(self, device: torch.device) -> frozenset[str]:
        """The operators to substitute when clients train as a cohort."""
        on_gpu = FASTER_ON_GPU if device.type == "cuda" else frozenset()
        return (RANDOM | NOT_BATCHED | STRIDED_1X1 | on_gpu) & self.operators

    @property
    def sequential_operators(self) -> frozenset[str]:
        """The operators to substitute when a client trains alone: those that draw random numbers, batch norm (torch's
        own refuses batches of one example), and those that torch gets wrong."""
        lstm_dropout = any(isinstance(part, nn.LSTM) and part.dropout > 0 for part in self.module.modules())
        return (RANDOM - (frozenset() if lstm_dropout else LSTM) | BATCH_NORM | STRIDED_1X1) & self.operators

    def _probe(self, task: Task, device: torch.device) -> tuple[frozenset[str], int]:
        """Runs two examples: which substitutable operators are used, and bytes kept for one example's gradient."""
        saved: dict[int, int] = {}
        own = {p.data_ptr() for p in self.module.parameters()}

        def save(tensor: Tensor) -> Tensor:
            if tensor.data_ptr() not in own:
                saved[tensor.data_ptr()] = tensor.numel() * tensor.element_size()
            return tensor

        with Operators(frozenset()) as mode, torch.autograd.graph.saved_tensors_hooks(save, lambda tensor: tensor):
            self.module(as_inputs(task.data.x[:2].to(device)))
        return frozenset(mode.seen), max(1, sum(saved.values()) // 2)

    def _addressed_outputs(self, x: Tensor) -> Tensor:
        """Outputs in training mode, with all addressable random numbers at one address."""
        with Operators(RANDOM & self.operators), torch.no_grad():
            return self.module(x)  # type: ignore[no-any-return]

    def _is_coupled(self, task: Task, device: torch.device) -> bool:
        """Whether an example's output depends on the others in its batch, as with batch norm: then a client's batches
        must not be padded, nor mixed with another's."""
        if any(isinstance(part, _BatchNorm) for part in self.module.modules()):
            return True
        rows = torch.linspace(0, len(task.data.x) - 1, 6).long()
        x = as_inputs(task.data.x[rows].to(device))
        torch.manual_seed(0)
        half = self._addressed_outputs(x[:3])
        torch.manual_seed(0)
        whole = self._addressed_outputs(x)[:3]
        return half.shape != whole.shape or not torch.allclose(half, whole, rtol=1e-3, atol=1e-4)

    def _find_precision_obstacle(self, task: Task, precision: Precision) -> str:
        """Tries to train and evaluate in bfloat16, and returns the error if that fails.

        Without AVX-512, for example, oneDNN has no LSTM in bfloat16.
        """
        if precision != "bfloat16":
            return ""
        x, trainable = as_inputs(task.data.x[:2]), [p for p in self.module.parameters() if p.requires_grad]
        try:
            with matmul_precision(precision), Operators(self.sequential_operators):
                torch.autograd.grad(to_float32(self.module(x)).sum(), trainable, allow_unused=True)
            with matmul_precision(precision), Operators(BATCH_NORM & self.operators), torch.no_grad():
                self.module.eval()(x)
        except (RuntimeError, ValueError, TypeError) as error:
            return str(error)
        finally:
            self.module.train()
        return ""

    def _draws_random_numbers(self, task: Task, device: torch.device) -> bool:
        """Whether the module draws random numbers beyond those that the engine can address."""
        before = _generator_state(device)
        self._addressed_outputs(as_inputs(task.data.x[:2].to(device)))
        return not torch.equal(before, _generator_state(device))


def _generator_state(device: torch.device) -> Tensor:
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()
