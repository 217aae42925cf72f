"""Errors of a user's model, loss or metric, with the task and the place where they happened."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from mmfl.engine.device import is_out_of_memory
from mmfl.errors import UserError, first_line


@contextmanager
def as_user_error(place: Callable[[], str]) -> Iterator[None]:
    """Turns an error of the user's code into a `UserError` that begins with its place, unless memory ran out."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise
        raise UserError(f"{place()}: {first_line(error)}") from error
