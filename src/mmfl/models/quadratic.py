"""The model of the quadratic federation."""

import torch
from torch import Tensor, nn

from mmfl.models.options import require_counts


class Quadratic(nn.Module):
    """The point w of the quadratic federation: an example (A_k | b_k) maps to F_k(w), its own loss."""

    def __init__(self, size: int, curvature: float = 2e-4):
        super().__init__()
        require_counts(self, size=size)
        self.point = nn.Parameter(torch.zeros(size))
        self.curvature = curvature

    def forward(self, x: Tensor) -> Tensor:
        """F_k(w) = w'A_k w / 2 - b_k'w + curvature |w|^2 / 2 for each example [size, size + 1]."""
        matrix, vector = x[..., :-1], x[..., -1]
        product = matrix @ self.point
        return 0.5 * product @ self.point - vector @ self.point + 0.5 * self.curvature * self.point.square().sum()
