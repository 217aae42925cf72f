"""Errors that end with a word instead of a traceback, and the search for what the user meant."""

import unicodedata
from collections.abc import Iterable
from difflib import get_close_matches


class UserError(Exception):
    """Something in the input is wrong; the message says what, where, and what was expected.

    The command line prints it on one or two lines and exits with code 2, without a traceback.
    """


class LostProcessError(UserError):
    """One of the processes of a run is gone, and with it the updates of its clients since the last checkpoint."""


def check_name(kind: str, name: str) -> None:
    """Refuses a name that no file can have or no page can show.

    >>> check_name("method", chr(0))
    Traceback (most recent call last):
    ...
    mmfl.errors.UserError: method '\\x00': the name has a control character or a line break; expected plain text.
    """
    found = {unicodedata.category(letter) for letter in name}
    if "Cs" in found:  # half a character
        raise UserError(f"{kind} {name!r}: the name is not valid Unicode; expected plain text.")
    if found & {"Cc", "Zl", "Zp"}:
        raise UserError(f"{kind} {name!r}: the name has a control character or a line break; expected plain text.")


def shorten(text: object, longest: int = 80) -> str:
    """The beginning of a text that is too long for a message.

    >>> shorten("a" * 300, 5)
    'aaaaa...'
    """
    return text if len(text := str(text)) <= longest else f"{text[:longest]}..."


def nearest(name: str, choices: Iterable[str]) -> str:
    """A hint naming the choice closest to `name`, or all of them when none is close.

    >>> nearest("mmfl-lrv", ["mmfl-lvr", "full"])
    "did you mean 'mmfl-lvr'?"
    """
    choices = sorted(choices)
    close = get_close_matches(name, choices, n=1, cutoff=0.6)
    if close:
        return f"did you mean '{close[0]}'?"
    return f"expected one of: {', '.join(choices)}." if choices else "there are none."
