"""Checks of the numbers that a user gives: what counts as one, and what is said of what does not."""

import os

import numpy as np

from mmfl.errors import UserError

_GIGABYTE = 1e9


def is_whole(value: object, least: int) -> bool:
    """Whether a value is a whole number of at least `least`; True and False are no numbers."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and bool(value >= least)


def is_number(value: object, least: float, most: float) -> bool:
    """Whether a value is a finite number in [least, most]; True and False are no numbers."""
    real = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
    return real and bool(np.isfinite(value)) and bool(least <= value <= most)  # type: ignore[operator, call-overload]


def is_positive(value: object) -> bool:
    """Whether a value is a finite number above 0."""
    return is_number(value, np.nextafter(0.0, 1.0), np.inf)


def check(right: bool, where: str, name: str, value: object, expected: str) -> None:
    """Refuses a value that is not right; `where` may be empty."""
    if not right:
        plain = value.item() if isinstance(value, np.generic) else value
        raise UserError(f"{where}{where and ': '}{name} is {_short(plain)}; expected {expected}.")


def check_whole(where: str, name: str, value: object, least: int = 1) -> None:
    """Refuses what is no whole number of at least `least`."""
    check(is_whole(value, least), where, name, value, f"a whole number of at least {least}")


def check_positive(where: str, name: str, value: object) -> None:
    """Refuses what is no finite number above 0."""
    check(is_positive(value), where, name, value, "a positive number")


def check_share(where: str, name: str, value: object) -> None:
    """Refuses what is no number strictly between 0 and 1."""
    right = is_positive(value) and is_number(value, 0, np.nextafter(1.0, 0.0))
    check(right, where, name, value, "a number between 0 and 1")


def check_memory(what: str, needed: float) -> None:
    """Refuses what needs more bytes than the machine has memory, before they are taken."""
    try:
        there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # a system that does not say
        return
    if needed > there:
        raise UserError(
            f"{what} would take at least {needed / _GIGABYTE:,.0f} GB of memory; "
            f"this machine has {there / _GIGABYTE:,.0f} GB."
        )


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
