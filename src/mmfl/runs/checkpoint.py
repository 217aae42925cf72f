"""Checkpoints: explicit state as safetensors and JSON, never a pickle; a crash leaves the last good one.

`round-000120.safetensors` holds the arrays, `round-000120.json`, written last, everything else and the checksum of the
arrays: a checkpoint counts once its JSON is there and the checksums agree. Where several processes share a run, each
but the first adds a part (`round-000120.part-1.safetensors`, `.json`) with what only it remembers: the vectors of its
clients, and its part of sums over clients. Any number of processes can go on from it.
"""

import hashlib
import json
import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from mmfl.errors import UserError
from mmfl.updates.world import SINGLE_PROCESS, World

_log = logging.getLogger(__name__)
_NAME, _VERSION = "mmfl checkpoint", 3
_FORMAT = f"{_NAME} {_VERSION}"
_CODES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
Arrays = dict[str, Tensor]
Packed = tuple[Any, Arrays]


def pack(state: Any, arrays: Arrays, name: str = "state", whole: bool = True) -> Any:
    """The state as JSON values, with every array moved to `arrays` under the path of its field.

    A dataclass with a method `saved` is packed as what that returns. Without `whole`, arrays that all processes have
    alike are left out: what is left is in such dataclasses, or in fields that hold a part of a sum.
    """
    if isinstance(state, Tensor | np.ndarray):
        if not whole:
            return None
        kind = "tensor" if isinstance(state, Tensor) else "array"
        tensor = state if isinstance(state, Tensor) else torch.from_numpy(state)
        arrays[name] = tensor.detach().cpu().contiguous()
        return {f"${kind}": name}
    if is_dataclass(state) and not isinstance(state, type):
        save = getattr(state, "saved", None)
        state, whole = (state, whole) if save is None else (save(), True)
        return {
            f.name: pack(getattr(state, f.name), arrays, f"{name}.{f.name}", whole or _is_partial(f))
            for f in fields(state)
        }
    if isinstance(state, dict):
        return {str(key): pack(value, arrays, f"{name}.{key}", whole) for key, value in state.items()}
    if isinstance(state, list | tuple):
        return [pack(value, arrays, f"{name}.{n}", whole) for n, value in enumerate(state)]
    if isinstance(state, np.generic):
        return state.item()
    if state is None or isinstance(state, bool | int | float | str):
        return state
    raise TypeError(
        f"a state may hold arrays, numbers, texts, lists and dataclasses, not {type(state).__name__} ({name})"
    )


def unpack(parts: Sequence[Packed], like: Any, world: World = SINGLE_PROCESS) -> Any:
    """The state again, from what every process packed, the first one's whole; `like`, a state of the same kind, gives
    the dataclasses and the devices.

    Of a dataclass with a method `adopt` it is what that makes of all the restored ones; a sum over clients is the first
    process's from now on.
    """
    packed, arrays = parts[0]
    if isinstance(packed, dict) and set(packed) == {"$tensor"}:
        tensor = arrays[packed["$tensor"]]
        return tensor.to(like.device, copy=True) if isinstance(like, Tensor) else tensor
    if isinstance(packed, dict) and set(packed) == {"$array"}:
        return arrays[packed["$array"]].numpy().copy()
    if is_dataclass(like) and not isinstance(like, type):
        if hasattr(like, "adopt"):
            return like.adopt([_read(part, like) for part in parts])
        values = {f.name: _below(parts, f.name) for f in fields(like)}
        return type(like)(
            **{
                f.name: (_summed if _is_partial(f) else unpack)(values[f.name], getattr(like, f.name), world)
                for f in fields(like)
            }
        )
    if isinstance(packed, dict):
        named = like if isinstance(like, dict) else {}
        return {key: unpack(_below(parts, key), named.get(key), world) for key in packed}
    if isinstance(packed, list):
        known = list(like) if isinstance(like, list | tuple) else []
        items = [unpack(_below(parts, n), known[n] if n < len(known) else None, world) for n in range(len(packed))]
        return tuple(items) if isinstance(like, tuple) else items
    return packed


def _is_partial(field: Any) -> bool:
    return bool(field.metadata.get("partial"))


def _below(parts: Sequence[Packed], key: Any) -> list[Packed]:
    return [(packed[key], arrays) for packed, arrays in parts]


def _summed(parts: Sequence[Packed], like: Tensor, world: World) -> Tensor:
    total = torch.zeros_like(like)
    for packed, arrays in parts if world.first else ():
        total += arrays[packed["$tensor"]].to(total.device)
    return total


def _read(part: Packed, like: Any) -> Any:
    """A dataclass as one process packed it, its arrays not copied."""
    packed, arrays = part

    def value(of: Any, known: Any) -> Any:
        if isinstance(of, dict) and len(of) == 1 and next(iter(of)) in ("$tensor", "$array"):
            tensor = arrays[next(iter(of.values()))]
            return tensor if "$tensor" in of else tensor.numpy()
        if is_dataclass(known) and not isinstance(known, type):
            return type(known)(**{f.name: value(of[f.name], getattr(known, f.name)) for f in fields(known)})
        return [value(item, None) for item in of] if isinstance(of, list) else of

    return value(packed, like)


def write(folder: Path, round: int, fingerprint: str, state: Any, world: World = SINGLE_PROCESS) -> None:
    """Saves the state of a round and drops all older checkpoints but one."""
    folder.mkdir(parents=True, exist_ok=True)
    arrays: Arrays = {}
    packed = pack(state, arrays, whole=world.first)
    path = _head(folder, round) if world.first else _part(_head(folder, round), world.rank)
    head = {
        "format": _FORMAT,
        "fingerprint": fingerprint,
        "round": round,
        "processes": world.size,
        "sha256": write_arrays(path.with_suffix(".safetensors"), arrays),
        "state": packed,
    }
    if not world.first:
        write_atomically(path, _sealed(head))
    world.wait()
    if world.first:
        write_atomically(path, _sealed(head))
        for old in _heads(folder)[:-2]:
            for file in folder.glob(f"{old.stem}.*"):
                file.unlink(missing_ok=True)


def read(folder: Path, fingerprint: str | None, like: Any, world: World = SINGLE_PROCESS) -> tuple[int, Any] | None:
    """The newest good checkpoint as (round, state); None where none was ever written.

    A damaged one gives way to the one before it, with a warning; if all are damaged, or it belongs to another run or
    has the format of another version, that is an error.
    """
    found = _heads(folder)[::-1]
    problems: list[str] = []
    for path in found:
        try:
            head = _load_head(path)
            parts = [path, *(_part(path, rank) for rank in range(1, head["processes"]))]
            heads = [head, *(_load_head(part) for part in parts[1:])]
            arrays = [_load_arrays(part, of["sha256"]) for part, of in zip(parts, heads, strict=True)]
        except (OSError, ValueError, KeyError, TypeError) as error:
            problems.append(f"{path.with_suffix('')}: {_reason(error)}")
            continue
        if fingerprint is not None and head["fingerprint"] != fingerprint:
            raise UserError(
                f"checkpoint {path.with_suffix('')} belongs to another run: its tasks, clients, methods or seeds "
                "differ from this configuration's."
            )
        for problem in problems if world.first else ():
            _log.warning("damaged checkpoint %s; going on from the one before, after round %d", problem, head["round"])
        packed = [(each["state"], of) for each, of in zip(heads, arrays, strict=True)]
        return int(head["round"]), unpack(packed, like, world)
    if found:
        raise UserError(f"no checkpoint can be read: {problems[0]}.")
    return None


def _reason(error: Exception) -> str:
    """What is wrong with a checkpoint."""
    if isinstance(error, FileNotFoundError):
        return f"{Path(error.filename).name} is missing"
    if isinstance(error, json.JSONDecodeError | UnicodeDecodeError):
        return "its JSON is cut short or changed"
    if isinstance(error, KeyError):
        return f"its JSON lacks {error}"
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)


def _head(folder: Path, round: int) -> Path:
    return folder / f"round-{round:06d}.json"


def _part(head: Path, rank: int) -> Path:
    return head.with_name(f"{head.stem}.part-{rank}.json")


def _heads(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("round-*.json") if ".part-" not in path.name)


def _load_head(path: Path) -> dict[str, Any]:
    head = json.loads(path.read_bytes())
    if not isinstance(head, dict) or not str(head.get("format")).startswith(_NAME):
        raise ValueError(f"not a checkpoint of this version ({_FORMAT})")
    if head["format"] != _FORMAT:
        version = head["format"].removeprefix(_NAME).strip()
        raise UserError(
            f"checkpoint {path.with_suffix('')} has format version {version}; expected {_VERSION}, the one that this "
            "version of mmfl reads."
        )
    checksum = head.pop("checksum", None)
    if checksum is not None and checksum != _checksum(head):
        raise ValueError("the checksum of its JSON does not agree")
    return head


def _sealed(head: dict[str, Any]) -> bytes:
    """The JSON of a checkpoint, with a checksum of all the rest of it."""
    return json.dumps({**head, "checksum": _checksum(head)}).encode()


def _checksum(head: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(head).encode()).hexdigest()


def _load_arrays(path: Path, checksum: str) -> Arrays:
    file = path.with_suffix(".safetensors")
    with file.open("rb") as content:
        if hashlib.file_digest(content, "sha256").hexdigest() != checksum:
            raise ValueError("the checksum of its arrays does not agree")
    arrays: Arrays = load_file(file)
    return arrays


def write_arrays(path: Path, arrays: Arrays) -> str:
    """Writes a safetensors file array by array, and returns its checksum.

    The library's own writer first makes a copy of all arrays, for which there may be no room.
    """
    end, header = 0, {}
    for name, tensor in arrays.items():
        begin, end = end, end + tensor.nbytes
        header[name] = {"dtype": _CODES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    digest = hashlib.sha256()
    with atomically(path) as file:
        for content in (len(head).to_bytes(8, "little"), head, *map(_bytes, arrays.values())):
            file.write(content)
            digest.update(content)
    return digest.hexdigest()


def _bytes(tensor: Tensor) -> Any:
    return tensor.flatten().view(torch.uint8).numpy().data if tensor.numel() else b""


def write_atomically(path: Path, content: bytes) -> None:
    """Writes under another name and renames, so that the file is there whole or not at all."""
    with atomically(path) as file:
        file.write(content)


@contextmanager
def atomically(path: Path) -> Iterator[BinaryIO]:
    """A file to write to that takes its name once it is whole and on disk."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with draft.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except BaseException:
        with suppress(OSError):
            draft.unlink()
        raise
