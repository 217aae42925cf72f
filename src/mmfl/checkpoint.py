"""Checkpoints: explicit state as safetensors and JSON, never a pickle; a crash leaves the last good one.

`round-000120.safetensors` holds the arrays, `round-000120.json`, written last, everything else and the checksum of the
arrays: a checkpoint counts once its JSON is there and the checksum agrees.
"""

import hashlib
import json
import os
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load, save
from torch import Tensor

from mmfl.errors import UserError

_FORMAT = "mmfl checkpoint 1"


def pack(state: Any, arrays: dict[str, Tensor], name: str = "state") -> Any:
    """The state as JSON values, with every array moved to `arrays` under the path of its field.

    A dataclass with a method `saved` is packed as what that returns.
    """
    if isinstance(state, Tensor | np.ndarray):
        kind = "tensor" if isinstance(state, Tensor) else "array"
        tensor = state if isinstance(state, Tensor) else torch.from_numpy(state)
        arrays[name] = tensor.detach().cpu().contiguous()
        return {f"${kind}": name}
    if is_dataclass(state) and not isinstance(state, type):
        state = state.saved() if hasattr(state, "saved") else state
        return {f.name: pack(getattr(state, f.name), arrays, f"{name}.{f.name}") for f in fields(state)}
    if isinstance(state, dict):
        return {str(key): pack(value, arrays, f"{name}.{key}") for key, value in state.items()}
    if isinstance(state, list | tuple):
        return [pack(value, arrays, f"{name}.{n}") for n, value in enumerate(state)]
    if isinstance(state, np.generic):
        return state.item()
    if state is None or isinstance(state, bool | int | float | str):
        return state
    raise TypeError(
        f"a state may hold arrays, numbers, texts, lists and dataclasses, not {type(state).__name__} ({name})"
    )


def unpack(packed: Any, like: Any, arrays: dict[str, Tensor]) -> Any:
    """The state again; `like`, a state of the same kind, gives the dataclasses and the devices.

    A dataclass with a method `adopt` is what that makes of the restored one.
    """
    if isinstance(packed, dict) and set(packed) == {"$tensor"}:
        tensor = arrays[packed["$tensor"]]
        return tensor.to(like.device) if isinstance(like, Tensor) else tensor
    if isinstance(packed, dict) and set(packed) == {"$array"}:
        return arrays[packed["$array"]].numpy()
    if is_dataclass(like) and not isinstance(like, type):
        restored = type(like)(**{f.name: unpack(packed[f.name], getattr(like, f.name), arrays) for f in fields(like)})
        return like.adopt(restored) if hasattr(like, "adopt") else restored
    if isinstance(packed, dict):
        return {
            key: unpack(value, like.get(key) if isinstance(like, dict) else None, arrays)
            for key, value in packed.items()
        }
    if isinstance(packed, list):
        known = list(like) if isinstance(like, list | tuple) else []
        items = [unpack(value, known[n] if n < len(known) else None, arrays) for n, value in enumerate(packed)]
        return tuple(items) if isinstance(like, tuple) else items
    return packed


def write(folder: Path, round: int, fingerprint: str, state: Any) -> None:
    """Saves the state of a round and drops all older checkpoints but one."""
    folder.mkdir(parents=True, exist_ok=True)
    arrays: dict[str, Tensor] = {}
    packed = pack(state, arrays)
    blob = save(arrays)
    head = {
        "format": _FORMAT,
        "fingerprint": fingerprint,
        "round": round,
        "sha256": hashlib.sha256(blob).hexdigest(),
        "state": packed,
    }
    stem = folder / f"round-{round:06d}"
    write_atomically(stem.with_suffix(".safetensors"), blob)
    write_atomically(stem.with_suffix(".json"), json.dumps(head).encode())
    for old in sorted(folder.glob("round-*.json"))[:-2]:
        old.unlink(missing_ok=True)
        old.with_suffix(".safetensors").unlink(missing_ok=True)


def read(folder: Path, fingerprint: str | None, like: Any) -> tuple[int, Any] | None:
    """The newest good checkpoint as (round, state); None where none was ever written.

    A damaged one gives way to the one before it; if all are damaged, or it belongs to another run, that is an error.
    """
    found = sorted(folder.glob("round-*.json"), reverse=True)
    problem = ""
    for path in found:
        try:
            head = json.loads(path.read_bytes())
            if not isinstance(head, dict) or head.get("format") != _FORMAT:
                raise ValueError(f"not a checkpoint of this version ({_FORMAT})")
            blob = path.with_suffix(".safetensors").read_bytes()
            if hashlib.sha256(blob).hexdigest() != head["sha256"]:
                raise ValueError("its checksum does not agree")
            arrays = load(blob)
        except (OSError, ValueError, KeyError) as error:
            problem = problem or f"{path.with_suffix('')}: {error}"
            continue
        if fingerprint is not None and head["fingerprint"] != fingerprint:
            raise UserError(
                f"checkpoint {path.with_suffix('')} belongs to another run: its tasks, clients, methods or seeds "
                "differ from this configuration's."
            )
        return int(head["round"]), unpack(head["state"], like, arrays)
    if found:
        raise UserError(f"no checkpoint can be read: {problem}.")
    return None


def write_atomically(path: Path, content: bytes) -> None:
    """Writes under another name and renames, so that the file is there whole or not at all."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    with draft.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
