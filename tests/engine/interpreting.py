"""Lets Triton 3.6 interpret kernels under NumPy 2.4, which no longer takes an array of one number for that number."""

from typing import Any

from triton.runtime import interpreter

_patch = interpreter._patch_lang_tensor


def _patch_with_index(tensor: Any, scope: Any) -> None:
    _patch(tensor, scope)
    scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))


def repair() -> None:
    """Makes loops over ranges whose bounds are computed in the kernel work."""
    interpreter._patch_lang_tensor = _patch_with_index
