"""Looks up the objects that a configuration names: built-in names, dotted paths, and options as keywords."""

import importlib
import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from mmfl.errors import UserError, nearest

Spec = str | Mapping[str, Any]


def find(kind: str, name: str, known: Mapping[str, Any]) -> Any:
    """The built-in of that name, or what a dotted path (`package.module.Name` or `package.module:Name`) points to."""
    if name in known:
        return known[name]
    module_name, _, attribute = name.replace(":", ".").rpartition(".")
    if not module_name:
        plural = {"data": "datasets", "method": "methods"}.get(kind)
        listing = f" `mmfl {plural}` lists all {len(known)}." if plural else ""
        raise UserError(f"unknown {kind} '{name}': {nearest(name, known)}{listing}")
    try:
        module = importlib.import_module(module_name)
    except (ImportError, SyntaxError, TypeError) as error:
        raise UserError(f"{kind} '{name}': cannot import '{module_name}' ({error}).") from None
    if not hasattr(module, attribute):
        public = [key for key in vars(module) if not key.startswith("_")]
        raise UserError(f"{kind} '{name}': module '{module_name}' has no '{attribute}': {nearest(attribute, public)}")
    return getattr(module, attribute)


def build(kind: str, spec: Spec, known: Mapping[str, Callable[..., Any]]) -> Any:
    """Builds the object that a spec describes: `"name"`, or a table with `name` and options.

    An option `inner`, or an option that is itself a table with a `name`, is a spec of the same kind and is built first.
    """
    name, options = read_spec(kind, spec)
    for key, value in options.items():
        if (key == "inner" and isinstance(value, str)) or (isinstance(value, Mapping) and "name" in value):
            options[key] = build(kind, value, known)
    return call(kind, name, find(kind, name, known), options)


def bind(kind: str, spec: Spec, known: Mapping[str, Callable[..., Any]]) -> Callable[..., Any]:
    """The function that a spec names, with the options of a table bound to its keywords; of a class, an object.

    An option `inner` is a spec of the same kind.
    """
    name, options = read_spec(kind, spec)
    function: Callable[..., Any] = find(kind, name, known)
    if isinstance(function, type):
        made: Callable[..., Any] = build(kind, spec, known)
        return made
    if not options:
        return function
    parameters = inspect.signature(function).parameters.values()
    keywords = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
    unknown = next((key for key in options if key not in keywords), None)
    if unknown is not None:
        raise UserError(f"{kind} '{name}': unknown option '{unknown}': {nearest(unknown, keywords)}")
    return partial(function, **{k: bind(kind, v, known) if k == "inner" else v for k, v in options.items()})


def read_spec(kind: str, spec: Spec) -> tuple[str, dict[str, Any]]:
    """The name and the options of a spec."""
    if isinstance(spec, str):
        return spec, {}
    if not isinstance(spec, Mapping):
        raise UserError(f"{kind} is {spec!r}; expected a name or a table with a 'name'.")
    options = dict(spec)
    name = options.pop("name", None)
    if not isinstance(name, str):
        raise UserError(f"{kind}: a table needs a 'name', such as {kind} = {{ name = \"...\" }}.")
    return name, options


def call(kind: str, name: str, factory: Any, options: Mapping[str, Any]) -> Any:
    """`factory(**options)`, with a clear error for options that are unknown or missing."""
    if not callable(factory):
        if options:
            raise UserError(f"{kind} '{name}' is not a function, so it takes no options.")
        return factory
    try:
        parameters = inspect.signature(factory).parameters
    except (TypeError, ValueError):  # built in, written in C
        raise UserError(f"{kind} '{name}' has no signature; expected a function or class written in Python.") from None
    if not any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values()):
        unknown = next((key for key in options if key not in parameters), None)
        if unknown is not None:
            raise UserError(f"{kind} '{name}': unknown option '{unknown}': {nearest(unknown, parameters)}")
    variadic = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    required = [p.name for p in parameters.values() if p.default is p.empty and p.kind not in variadic]
    missing = next((key for key in required if key not in options), None)
    if missing is not None:
        raise UserError(f"{kind} '{name}': needs the option '{missing}'.")
    try:
        return factory(**options)
    except TypeError as error:
        settings = ", ".join(f"{key}={value!r}" for key, value in options.items())
        raise UserError(f"{kind} '{name}'{settings and f' with {settings}'}: {error}.") from None
