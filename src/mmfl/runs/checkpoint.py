"""Checkpoints: explicit state as safetensors and JSON, never a pickle; a crash leaves the last good one.

`round-000120.safetensors` holds the arrays, `round-000120.json`, written last, everything else and the checksum of the
arrays: a checkpoint counts once its JSON is there and the checksums agree. Where several processes share a run, each
but the first adds a part (`round-000120.part-1.safetensors`, `.json`) with what only it remembers: the vectors of its
clients, and its part of sums over clients. Any number of processes can go on from it.
"""

import hashlib
import json
import logging
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from mmfl.errors import UserError
from mmfl.runs.files import atomically, write_atomically
from mmfl.updates.world import SINGLE_PROCESS, World

OWN = {"own": True}
"""Metadata of a dataclass field that each process has for itself."""
_log = logging.getLogger(__name__)
_NAME, _VERSION = "mmfl checkpoint", 7
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
        own = state.copy() if isinstance(state, np.ndarray) and not state.flags.writeable else state  # of a view
        arrays[name] = torch.as_tensor(own).detach().cpu().contiguous()
        return {"$tensor" if isinstance(state, Tensor) else "$array": name}
    if is_dataclass(type(state)):
        save = getattr(state, "saved", None)
        state, whole = (state, whole) if save is None else (save(), True)
        return {
            f.name: pack(getattr(state, f.name), arrays, f"{name}.{f.name}", whole or "partial" in f.metadata)
            for f in fields(state)
        }
    if isinstance(state, dict):
        return {str(key): pack(value, arrays, f"{name}.{key}", whole) for key, value in state.items()}
    if isinstance(state, list | tuple):
        return [pack(value, arrays, f"{name}.{n}", whole) for n, value in enumerate(state)]
    if isinstance(state, np.generic):
        return state.item()
    if isinstance(state, bool | int | float | str | None):
        return state
    kind = type(state).__name__
    raise TypeError(f"a state may hold arrays, numbers, texts, lists and dataclasses, not {kind} ({name})")


def unpack(parts: Sequence[Packed], like: Any, world: World = SINGLE_PROCESS) -> Any:
    """The state again, from what every process packed, the first one's whole; `like`, a state of the same kind, gives
    the dataclasses and the devices.

    Of a dataclass with a method `adopt` it is what that makes of all the restored ones. Where there are as many
    processes as before, each has its part of sums over clients again, to the bit, and its fields that are marked OWN;
    otherwise the first one has all of the sum, and everyone the fields of the first.
    """
    return _restore([_fill(packed, arrays) for packed, arrays in parts], like, world)


def _fill(packed: Any, arrays: Arrays) -> Any:
    """Packed values with the arrays, not copied, in their places."""
    match packed:
        case {"$tensor": name}:
            return arrays[name]
        case {"$array": name}:
            return arrays[name].numpy()
        case dict():
            return {key: _fill(value, arrays) for key, value in packed.items()}
        case list():
            return [_fill(value, arrays) for value in packed]
    return packed


def _restore(parts: Sequence[Any], like: Any, world: World) -> Any:
    def below(key: Any, known: Any, restore: Any = _restore) -> Any:
        return restore([part[key] for part in parts], known, world)

    whole = parts[0]
    if isinstance(whole, Tensor):
        return whole.to(like.device, copy=True) if isinstance(like, Tensor) else whole
    if isinstance(whole, np.ndarray):
        return whole.copy()
    if hasattr(like, "adopt"):
        return like.adopt([_as_dataclass(part, like) for part in parts])
    if is_dataclass(type(like)):
        kinds = {"partial": _sum, "own": _own}
        rules = {f.name: next((kinds[key] for key in kinds if key in f.metadata), _restore) for f in fields(like)}
        return type(like)(**{name: below(name, getattr(like, name), rule) for name, rule in rules.items()})
    if isinstance(whole, dict):
        named = like if isinstance(like, dict) else {}
        return {key: below(key, named.get(key)) for key in whole}
    if isinstance(whole, list):
        known = list(like) if isinstance(like, list | tuple) else []
        items = [below(n, known[n] if n < len(known) else None) for n in range(len(whole))]
        return tuple(items) if isinstance(like, tuple) else items
    return whole


def _sum(parts: Sequence[Tensor], like: Tensor, world: World) -> Tensor:
    if len(parts) == world.size:
        return parts[world.rank].to(like.device, copy=True)
    total = torch.zeros_like(like)
    for part in parts if world.first else ():
        total += part.to(total.device)
    return total


def _own(parts: Sequence[Any], like: Any, world: World) -> Any:
    return _restore([parts[world.rank if len(parts) == world.size else 0]], like, world)


def _as_dataclass(values: Any, like: Any) -> Any:
    if not is_dataclass(type(like)):
        return values
    return type(like)(**{f.name: _as_dataclass(values[f.name], getattr(like, f.name)) for f in fields(like)})


def write(folder: Path, round: int, fingerprint: str, state: Any, world: World = SINGLE_PROCESS) -> None:
    """Saves the state of a round and drops all older checkpoints but one."""
    folder.mkdir(parents=True, exist_ok=True)
    arrays: Arrays = {}
    packed = pack(state, arrays, whole=world.first)
    path = _path(folder / f"round-{round:06d}.json", world.rank)
    head = {
        "format": _FORMAT,
        "fingerprint": fingerprint,
        "round": round,
        "processes": world.size,
        "sha256": write_arrays(path.with_suffix(".safetensors"), arrays),
        "state": packed,
    }
    content = json.dumps({**head, "checksum": _checksum(head)}).encode()
    if not world.first:
        write_atomically(path, content)
    world.wait()
    if world.first:
        write_atomically(path, content)
        for old in _heads(folder)[:-2]:
            for file in folder.glob(f"{old.stem}.*"):
                file.unlink(missing_ok=True)


def read(folder: Path, fingerprint: str, like: Any, world: World = SINGLE_PROCESS) -> tuple[int, Any] | None:
    """The newest good checkpoint as (round, state); None where none was ever written.

    A damaged one gives way to the one before it, with a warning; if all are damaged, or it belongs to another run or
    has the format of another version, that is an error.
    """
    problems: list[str] = []
    for path in _heads(folder)[::-1]:
        try:
            head, arrays = _load(path)
            others = [_load(_path(path, rank)) for rank in range(1, head["processes"])]
        except (OSError, ValueError, KeyError, TypeError) as error:
            problems.append(f"{path.with_suffix('')}: {_reason(error)}")
            continue
        if head["fingerprint"] != fingerprint:
            raise UserError(
                f"checkpoint {path.with_suffix('')} belongs to another run: its tasks, clients, methods, seeds "
                "or frozen parameters differ from this configuration's."
            )
        for problem in problems if world.first else ():
            _log.warning("damaged checkpoint %s; going on from the one before, after round %d", problem, head["round"])
        packed = [(each["state"], own) for each, own in [(head, arrays), *others]]
        return int(head["round"]), unpack(packed, like, world)
    if problems:
        raise UserError(f"no checkpoint can be read: {problems[0]}.")
    return None


def newest_round(folder: Path) -> int:
    """The round of the newest good checkpoint; 0 where there is none."""
    for path in _heads(folder)[::-1]:
        try:
            return int(_load(path)[0]["round"])
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return 0


def _reason(error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return f"{Path(error.filename).name} is missing"
    if isinstance(error, json.JSONDecodeError | UnicodeDecodeError):
        return "its JSON is cut short or changed"
    if isinstance(error, KeyError):
        return f"its JSON lacks {error}"
    return getattr(error, "strerror", None) or str(error)


def _path(head: Path, rank: int) -> Path:
    """The JSON of a process, beside that of the first."""
    return head.with_name(f"{head.stem}.part-{rank}.json") if rank else head


def _heads(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("round-*.json") if ".part-" not in path.name)


def _load(path: Path) -> tuple[dict[str, Any], Arrays]:
    """What a process wrote, its JSON and its arrays, checked."""
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
    file = path.with_suffix(".safetensors")
    with file.open("rb") as content:
        if hashlib.file_digest(content, "sha256").hexdigest() != head["sha256"]:
            raise ValueError("the checksum of its arrays does not agree")
    return head, load_file(file)


def _checksum(head: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(head).encode()).hexdigest()


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
