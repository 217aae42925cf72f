"""Lets Triton 3.6 interpret kernels under NumPy 2.4, which no longer takes an array of one number for that number."""

from typing import Any


def repair() -> None:
    """Makes loops over ranges whose bounds are computed in the kernel work."""
    from triton.runtime import interpreter

    patch = interpreter._patch_lang_tensor

    def patch_with_index(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patch_with_index
