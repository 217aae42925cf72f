"""Rules around another rule: whatever a wrapper does not define itself, the rule inside it answers."""

import inspect
from collections.abc import Callable
from functools import wraps
from operator import attrgetter
from typing import Any, TypeVar

Wrapper = TypeVar("Wrapper", bound=type)


def delegates(rule: type) -> Callable[[Wrapper], Wrapper]:
    """Class decorator for the wrappers of a kind of rule: their `inner` answers every method and attribute of `rule`.

    All that is public in `rule` is delegated, also what it may be given in the future, so that no wrapper can forget a
    method. A wrapper overrides what it changes, and says with `to_inner(name, value)` what the inner rule is handed in
    place of an argument.

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
    """The method of the same name of the inner rule."""
    signature = inspect.signature(method)

    @wraps(method)
    def delegate(wrapper: Any, *values: Any, **named: Any) -> Any:
        (_, *given) = signature.bind(wrapper, *values, **named).arguments.items()
        return getattr(wrapper.inner, method.__name__)(*(wrapper.to_inner(name, value) for name, value in given))

    return delegate
