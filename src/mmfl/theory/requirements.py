"""Checks of the constants that the theorems assume."""

from math import isfinite

import numpy as np

from mmfl.errors import UserError


def require(holds: bool | np.bool_, where: str, what: str, expected: str) -> None:
    """Raises a `UserError` unless the condition holds."""
    if not holds:
        raise UserError(f"{where}: {what}; expected {expected}.")


def require_number(where: str, name: str, value: float, minimum: float, strictly: bool = False) -> None:
    """Requires a finite number of at least `minimum`, or above it."""
    inside = value > minimum if strictly else value >= minimum
    sign = ">" if strictly else ">="
    require(inside and isfinite(value), where, f"{name} is {value}", f"a finite number {sign} {minimum:g}")


def require_count(where: str, name: str, value: int) -> None:
    """Requires a whole number of at least 1."""
    whole = isinstance(value, int | np.integer)
    require(whole and value >= 1, where, f"{name} is {value}", "a whole number >= 1")


def require_curvature(where: str, smoothness: float, strong_convexity: float) -> None:
    """Requires 0 < mu <= L."""
    require_number(where, "strong_convexity (mu)", strong_convexity, 0, strictly=True)
    require_number(where, "smoothness (L)", smoothness, 0, strictly=True)
    what = f"smoothness (L) is {smoothness:g}, strong_convexity (mu) is {strong_convexity:g}"
    require(smoothness >= strong_convexity, where, what, "L >= mu, as no function is more convex than smooth")
