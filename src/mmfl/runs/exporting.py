"""Export: a trained model as a file for other software, checked against the model itself."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn

from mmfl.data.structure import Structure, arguments, call_module, tensors
from mmfl.errors import UserError, first_line, nearest

_TOLERANCE = 1e-4


def export(module: nn.Module, path: str | Path, examples: Structure) -> None:
    """Writes a model in the format that the file's ending names.

    `.safetensors` and `.pt` hold its state dict, `.torchscript` and `.onnx` the model with its operations, for batches
    of any size; these are traced with a few examples, and must give the same outputs.
    """
    path = Path(path)
    write = _FORMATS.get(path.suffix)
    if write is None:
        raise UserError(f"export '{path}': unknown ending '{path.suffix}': {nearest(path.suffix, _FORMATS)}")
    if not path.parent.is_dir():
        raise UserError(f"export '{path}': the folder '{path.parent}' does not exist.")
    try:
        write(module, path, examples)
    except OSError as error:
        raise UserError(f"export '{path}': {error.strerror or first_line(error)}.") from None


def _write_safetensors(module: nn.Module, path: Path, examples: Structure) -> None:
    state = {name: value.contiguous().clone() for name, value in module.state_dict().items()}
    save_file(state, path)  # a clone each: safetensors refuses tensors that share memory


def _write_state_dict(module: nn.Module, path: Path, examples: Structure) -> None:
    torch.save(module.state_dict(), path)


def _write_torchscript(module: nn.Module, path: Path, examples: Structure) -> None:
    positional, keywords = arguments(examples)
    traced = _trace(
        path,
        lambda: torch.jit.trace(module, positional or None, example_kwarg_inputs=keywords or None, strict=False),
    )
    _compare(path, call_module(module, examples), call_module(traced, examples))
    traced.save(str(path))


def _write_onnx(module: nn.Module, path: Path, examples: Structure) -> None:
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise UserError(f"export '{path}' needs {error.name}: pip install 'mmfl[onnx]'.") from None
    positional, keywords = arguments(examples)
    batch = torch.export.Dim("batch")
    shapes = [{0: batch} for _ in tensors(examples)]
    program = _trace(
        path,
        lambda: torch.onnx.export(
            module,
            positional,
            kwargs=keywords or None,
            dynamic_shapes=dict(zip(keywords, shapes, strict=True)) if keywords else tuple(shapes),
            dynamo=True,
            verbose=False,
        ),
    )
    program.save(str(path))


def _trace(path: Path, trace: Callable[[], Any]) -> Any:
    """What tracing gives; one line where torch cannot."""
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            return trace()
    except Exception as error:
        raise UserError(f"export '{path}': torch cannot express this model: {first_line(error)}") from None


def _compare(path: Path, expected: Structure, found: Structure) -> None:
    pairs = zip(tensors(expected), tensors(found), strict=True)
    if not all(torch.allclose(one, other, _TOLERANCE, _TOLERANCE) for one, other in pairs):
        raise UserError(f"export '{path}': the exported model gives other outputs than the model itself.")


_FORMATS: dict[str, Callable[[nn.Module, Path, Structure], None]] = {
    ".safetensors": _write_safetensors,
    ".pt": _write_state_dict,
    ".torchscript": _write_torchscript,
    ".onnx": _write_onnx,
}
