"""Rules that wrap another rule: what a wrapper does not define is delegated to the inner rule."""

import inspect
from collections.abc import Callable
from functools import wraps
from operator import attrgetter
from typing import Any, TypeVar

Wrapper = TypeVar("Wrapper", bound=type)


def delegates(rule: type) -> Callable[[Wrapper], Wrapper]:
    """Class decorator for wrappers of a kind of rule: every public method and attribute of `rule` goes to `inner`.

    New members of `rule` are delegated automatically, so no wrapper can forget one. A wrapper overrides what it
    changes; its `to_inner(name, value)` returns the value that the inner rule gets for an argument.

    >>> class Rule:
    ...     loud = False
    ...     def answer(self, state): return f"answer to {state}"
    >>> @delegates(Rule)
    ... class Around(Rule):
    ...     def __init__(self, inner): self.inner = inner
    ...     def to_inner(self, name, value): return value["inner"] if name == "state" else value
    >>> class Loud(Rule):
    ...     loud = True
    >>> wrapped = Around(Loud())
    >>> wrapped.loud, wrapped.answer({"inner": "a question"})
    (True, 'answer to a question')
    """

    def decorate(wrapper: Wrapper) -> Wrapper:
        for name, member in vars(rule).items():
            if not name.startswith("_") and name not in vars(wrapper):
                delegate = _method(member) if inspect.isfunction(member) else property(attrgetter(f"inner.{name}"))
                setattr(wrapper, name, delegate)
        return wrapper

    return decorate


def _method(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method that calls the inner rule's method of the same name."""
    signature = inspect.signature(method)

    @wraps(method)
    def delegate(wrapper: Any, *values: Any, **named: Any) -> Any:
        (_, *arguments) = signature.bind(wrapper, *values, **named).arguments.items()
        return getattr(wrapper.inner, method.__name__)(*(wrapper.to_inner(name, value) for name, value in arguments))

    return delegate
