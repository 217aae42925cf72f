"""Where tests of Triton kernels run: on a GPU if there is one, otherwise interpreted on the CPU, in a process of their
own because Triton must know from its first import."""

import os
import subprocess
import sys
from typing import Any

import pytest
import torch
from small import normal
from torch import Tensor

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cuda" if torch.cuda.is_available() and not INTERPRETED else "cpu"
here = pytest.mark.skipif(DEVICE == "cpu" and not INTERPRETED, reason="checked in another process")
elsewhere = pytest.mark.skipif(DEVICE == "cuda" or INTERPRETED, reason="checked in this process")


def check_interpreted(file: str) -> None:
    """Runs the tests of a file with interpreted kernels."""
    command = [sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", file]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr


def leaf(*shape: int, seed: int) -> Tensor:
    return normal(*shape, seed=seed).to(DEVICE).requires_grad_()


@pytest.fixture
def products_with_all_bits(monkeypatch):
    """Torch's own too: on a GPU its convolutions would take fewer."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    yield
    torch.set_float32_matmul_precision(before)


def repair() -> None:
    """Makes loops over ranges whose bounds are computed in the kernel work: Triton 3.6 interprets them under NumPy 2.4,
    which no longer takes an array of one number for that number."""
    from triton.runtime import interpreter

    patch = interpreter._patch_lang_tensor

    def patch_with_index(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patch_with_index
