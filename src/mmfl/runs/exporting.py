"""Export: a trained model as a file for other software, checked against the model itself."""

import importlib.util
import logging
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn

from mmfl.data.structure import Structure, arguments, call_module, length, rows, tensors
from mmfl.errors import UserError, first_line, nearest

_TOLERANCE = 1e-4
_STATE_DICTS = (".safetensors", ".pt")  # which need no examples


def export(module: nn.Module, path: str | Path, examples: Structure | None) -> None:
    """Writes a model in the format that the file's ending names.

    `.safetensors` and `.pt` hold its state dict, `.torchscript` and `.onnx` the model with its operations. These are
    traced with all examples but the last, and must give the same outputs for the last one alone; an ONNX model is
    tried so where onnxruntime is installed. Without examples only a state dict can be written.
    """
    path = Path(path)
    write = _FORMATS.get(path.suffix)
    if write is None:
        raise UserError(f"export '{path}': unknown ending '{path.suffix}': {nearest(path.suffix, _FORMATS)}")
    if path.is_dir():
        raise UserError(f"export '{path}': this is a folder; expected the name of a file.")
    if not path.parent.is_dir():
        raise UserError(f"export '{path}': the folder '{path.parent}' does not exist.")
    if examples is None and path.suffix not in _STATE_DICTS:
        expected = f"expected a state dict ({' or '.join(_STATE_DICTS)})"
        raise UserError(f"export '{path}': there is no data here to try the model on; {expected}.")
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
    first, last = _divide(examples)
    positional, keywords = arguments(first)
    traced = _trace(
        path,
        lambda: torch.jit.trace(module, positional or None, example_kwarg_inputs=keywords or None, strict=False),
    )
    _compare(path, call_module(module, last), _trace(path, lambda: call_module(traced, last)))
    traced.save(str(path))


def _write_onnx(module: nn.Module, path: Path, examples: Structure) -> None:
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise UserError(f"export '{path}' needs {error.name}: pip install 'mmfl[onnx]'.") from None
    first, last = _divide(examples)
    positional, keywords = arguments(first)
    batch = torch.export.Dim("batch")
    shapes = [{0: batch} for _ in tensors(first)]
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
    if importlib.util.find_spec("onnxruntime") is not None:
        positional, keywords = arguments(last)
        found = _trace(path, lambda: program(*positional, **keywords))
        _compare(path, call_module(module, last), tuple(torch.as_tensor(each) for each in found))
    program.save(str(path))


def _divide(examples: Structure) -> tuple[Structure, Structure]:
    """All examples but the last, and the last one; a single one serves as both."""
    number = max(length(examples) - 1, 1)
    return rows(examples, slice(number)), rows(examples, slice(-1, None))


def _trace(path: Path, trace: Callable[[], Any]) -> Any:
    """What tracing gives; one line where torch cannot. Its warnings concern torch's own parts, not the user's model."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            logger.setLevel(logging.ERROR)
            return trace()
    except Exception as error:
        raise UserError(f"export '{path}': torch cannot express this model: {first_line(error)}") from None
    finally:
        logger.setLevel(level)


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
