"""Checks of numbers in the user's input, and the error messages for invalid ones."""

import os

import numpy as np

from mmfl.errors import UserError

_GIGABYTE = 1e9


def is_whole(value: object, minimum: int) -> bool:
    """Whether a value is a whole number of at least `minimum`; True and False are not numbers."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and bool(value >= minimum)


def is_number(value: object, minimum: float, maximum: float) -> bool:
    """Whether a value is a finite number in [minimum, maximum]; True and False are not numbers."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        return False
    return bool(np.isfinite(value)) and bool(minimum <= value <= maximum)


def is_positive(value: object) -> bool:
    """Whether a value is a finite number above 0."""
    return is_number(value, np.nextafter(0.0, 1.0), np.inf)


def check(valid: bool, where: str, name: str, value: object, expected: str) -> None:
    """Raises a `UserError` unless the value is `valid`; `where` may be empty."""
    if not valid:
        plain = value.item() if isinstance(value, np.generic) else value
        raise UserError(f"{where}{where and ': '}{name} is {_short(plain)}; expected {expected}.")


def check_whole(where: str, name: str, value: object, minimum: int = 1) -> None:
    """Refuses a value that is not a whole number of at least `minimum`."""
    check(is_whole(value, minimum), where, name, value, f"a whole number of at least {minimum}")


def check_positive(where: str, name: str, value: object) -> None:
    """Refuses a value that is not a finite number above 0."""
    check(is_positive(value), where, name, value, "a positive number")


def check_at_least(where: str, name: str, value: object, minimum: float) -> None:
    """Refuses a value that is not a finite number of at least `minimum`."""
    check(is_number(value, minimum, np.inf), where, name, value, f"a number of at least {minimum:g}")


def check_share(where: str, name: str, value: object) -> None:
    """Refuses a value that is not a number strictly between 0 and 1."""
    valid = is_positive(value) and is_number(value, 0, np.nextafter(1.0, 0.0))
    check(valid, where, name, value, "a number between 0 and 1")


def check_memory(what: str, needed: float) -> None:
    """Refuses something that needs more bytes than the machine has memory, before they are allocated."""
    try:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not known on this system
        return
    if needed > memory:
        raise UserError(
            f"{what} would take at least {needed / _GIGABYTE:,.0f} GB of memory; "
            f"this machine has {memory / _GIGABYTE:,.0f} GB."
        )


def _short(value: object) -> str:
    text = " ".join(repr(value).split())  # on one line
    return text if len(text) <= 60 else f"{text[:57]}..."
