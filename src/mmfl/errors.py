"""Errors that users cause, and helpers to word their messages."""

import unicodedata
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches


class UserError(Exception):
    """Something in the input is wrong; the message says what, where, and what was expected.

    The command line prints it on one or two lines and exits with code 2, without a traceback.
    """


class LostProcessError(UserError):
    """A process of a run was lost, and with it the stored updates of its clients since the last checkpoint."""


@contextmanager
def at_place(place: str, unless: str = "") -> Iterator[None]:
    """Puts the place of a mistake before the message of an error, unless it begins with `unless`.

    >>> with at_place("experiment.toml"):
    ...     raise UserError("rate is 7.")
    Traceback (most recent call last):
    ...
    mmfl.errors.UserError: experiment.toml: rate is 7.
    """
    try:
        yield
    except UserError as error:
        message = str(error)
        raise UserError(message if unless and message.startswith(unless) else f"{place}: {message}") from None


def check_name(kind: str, name: str) -> None:
    """Refuses a name that cannot be written to a file or shown on a page.

    >>> check_name("method", chr(0))
    Traceback (most recent call last):
    ...
    mmfl.errors.UserError: method '\\x00': the name has a control character or a line break; expected plain text.
    """
    found = {unicodedata.category(letter) for letter in name}
    if "Cs" in found:  # an unpaired surrogate
        raise UserError(f"{kind} {name!r}: the name is not valid Unicode; expected plain text.")
    if found & {"Cc", "Zl", "Zp"}:
        raise UserError(f"{kind} {name!r}: the name has a control character or a line break; expected plain text.")


def first_line(error: Exception) -> str:
    """The first line of an error's message, or the error's type if it has no message."""
    return str(error).strip().split("\n")[0] or type(error).__name__


def shorten(text: object, max_length: int = 80) -> str:
    """A text, cut off if it is too long for a message.

    >>> shorten("a" * 300, 5)
    'aaaaa...'
    """
    return text if len(text := str(text)) <= max_length else f"{text[:max_length]}..."


def nearest(name: str, choices: Iterable[str]) -> str:
    """A hint: the choice closest to `name`, or all choices if none is close.

    >>> nearest("mmfl-lrv", ["mmfl-lvr", "full"])
    "did you mean 'mmfl-lvr'?"
    """
    choices = sorted(choices)
    close = get_close_matches(name, choices, n=1, cutoff=0.6)
    if close:
        return f"did you mean '{close[0]}'?"
    return f"expected one of: {', '.join(choices)}." if choices else "there are none."
