"""What the vmapped forms of the engine's layers share."""

from typing import Any


def clients_first(info: Any, in_dims: Any, tensors: Any) -> list[Any]:
    """Tensors with the clients' dimension first; those without one are the same for all clients."""
    return [
        None if t is None else t.expand(info.batch_size, *t.shape) if dim is None else t.movedim(dim, 0)
        for t, dim in zip(tensors, in_dims, strict=False)
    ]
