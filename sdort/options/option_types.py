"""Types of options: a value that a caller or a file gives is held to the annotation of the option.

Python takes any text for true; an option that is switched on by ``"no"`` is worse than a refusal.
"""

from __future__ import annotations

import inspect
import math
import numbers
import os
import re
import sys
import textwrap
import types
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, ParamSpec, TypeGuard, TypeVar, Union, get_args, get_origin, get_type_hints

from sdort.errors import UsageError
from sdort.options.declared_options import Option, declared, lone_option, ranges_of
from sdort.options.number_ranges import RANGES, Range, flag_of, shown

P = ParamSpec("P")
R = TypeVar("R")
_KEYWORD, _OPTIONS = inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD
_WORDS: Mapping[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text",
    Path: "a path",
    Sequence: "a list",
    Collection: "a list",
    Mapping: "a table",
    Callable: "a function",
}


def typed(function: Callable[P, R]) -> Callable[P, R]:
    """A command's function whose parameters are held to their annotations, as :func:`check_types` holds options.

    None is taken where an annotation names it. Options that are taken as ``**options`` are checked where they are read.
    """
    signature, module = inspect.signature(function), sys.modules[function.__module__]
    kinds = {name: each.kind for name, each in signature.parameters.items() if each.kind is not _OPTIONS}
    # Without the others, whose types are there for type checkers alone.
    texts = SimpleNamespace(__annotations__={name: signature.parameters[name].annotation for name in kinds})

    @wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        given, annotations = signature.bind(*args, **kwargs).arguments, get_type_hints(texts, vars(module))
        for name in [name for name in given if name in kinds]:
            _check(flag_of(name) if kinds[name] is _KEYWORD else name, name, given[name], annotations[name])
        return function(*args, **kwargs)

    return checked


def with_options(*classes: type) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A function that takes the options of dataclasses as ``**options``: they are held to their types, are refused
    without those that they need, and stand in its signature and its documentation as if each was a parameter.

    Args:
        classes: declare the options (:mod:`sdort.options.declared_options`).
    """
    found = {name: each for name, each in declared(*classes).items() if not each.positional}

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        signature = _with_parameters(inspect.signature(function), found.values())

        @wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> R:
            signature.bind(*args, **kwargs)
            for owner in classes:
                _check_all({name: kwargs[name] for name in declared(owner) if name in kwargs}, owner)
            if problem := lone_option(kwargs, *classes):
                raise UsageError(problem)
            return function(*args, **kwargs)

        checked.__signature__ = signature  # type: ignore[attr-defined]
        checked.__doc__ = _with_texts(function.__doc__ or "", found.values())
        return checked

    return decorate


def _with_parameters(signature: inspect.Signature, options: Iterable[Option]) -> inspect.Signature:
    own = [each for each in signature.parameters.values() if each.kind is not _OPTIONS]
    more = [
        inspect.Parameter(
            each.name, _KEYWORD, default=None if each.default == {} else each.default, annotation=each.keyword
        )
        for each in options
    ]
    return signature.replace(parameters=sorted([*own, *more], key=lambda each: each.kind))


def _with_texts(documentation: str, options: Iterable[Option]) -> str:
    """A docstring with an entry for each option in the place of its line ``options: ...``."""
    entries = [
        textwrap.fill(f"{each.name}: {each.text}", 120, initial_indent=" " * 8, subsequent_indent=" " * 12)
        for each in options
    ]
    return re.sub(r"^ {8}options: .*(\n {12}.*)*", lambda _: "\n".join(entries), documentation, flags=re.MULTILINE)


def _check_all(given: Mapping[str, object], owner: type) -> None:
    options, ranges = declared(owner), ranges_of(owner)
    texts = SimpleNamespace(__annotations__={name: options[name].keyword for name in given})
    annotations = get_type_hints(texts, vars(sys.modules[owner.__module__]))
    for name, value in given.items():
        if value is not None or options[name].default is not None:
            _check(flag_of(name), name, value, annotations[name], ranges)


def check_types(
    options: Mapping[str, object], annotations: Mapping[str, Any], ranges: Mapping[str, Range[Any]] = RANGES
) -> None:
    """Refuse values of other types than their options have; None leaves an option to its default.

    A whole number is a number, true and false are neither; numpy's scalars are what Python's are.

    Args:
        options: name -> value.
        annotations: name -> type, as :func:`typing.get_type_hints` gives it, of all options that there are.
        ranges: name -> range, of options that are numbers.

    Raises:
        TypeError: there is no option of that name.
        UsageError: which option, its value, and what it takes.
    """
    if unknown := sorted(options.keys() - annotations.keys()):
        raise TypeError(f"there is no option {', '.join(unknown)}; there are {', '.join(annotations)}")
    for name, value in options.items():
        if value is not None:
            _check(flag_of(name), name, value, annotations[name], ranges)


def _check(words: str, name: str, value: object, annotation: Any, ranges: Mapping[str, Range[Any]] = RANGES) -> None:
    if fits(value, annotation):
        return
    if name in ranges and {int, float} & {*_parts(annotation)}:
        ranges[name].check(value)  # says the bounds too
    raise UsageError(f"{words} {shown(value)} is not {_words(annotation)}")


def fits(value: object, annotation: Any) -> bool:
    """Whether a value is of the type that an annotation says."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        return any(fits(value, each) for each in arguments)
    if annotation in (Any, object):
        return True
    if annotation in (None, types.NoneType):
        return value is None
    if origin is Literal:
        return isinstance(value, str) and value in arguments
    if origin is Mapping:
        return isinstance(value, Mapping) and all(fits(each, arguments[1]) for each in value.values())
    if origin in (Sequence, Collection):
        return _is_list(value, origin) and all(fits(each, arguments[0]) for each in _different(value))
    if origin is tuple:
        return _is_list(value) and len(value) == len(arguments) and all(map(fits, value, arguments))
    return callable(value) if origin is Callable else _is_plain(value, origin or annotation)


def _is_plain(value: object, kind: type) -> bool:
    if kind is bool:
        return isinstance(value, bool) or type(value).__name__ in ("bool", "bool_")  # numpy's, of two ages
    if isinstance(value, bool):
        return False
    if kind is int:
        return isinstance(value, numbers.Integral)
    if kind is float:
        return isinstance(value, numbers.Real) and _is_finite(value)
    return isinstance(value, os.PathLike if kind is Path else kind)


def _is_finite(value: Any) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number of hundreds of digits
        return False


def _is_list(value: object, kind: type = Sequence) -> TypeGuard[Collection[object]]:
    """Whether it is a list, a tuple, a range or numpy's array, or a set as a ``Collection``: a text is none, though it
    has parts."""
    if hasattr(value, "tolist"):
        return getattr(value, "ndim", 1) > 0
    return isinstance(value, kind) and not isinstance(value, str | bytes | bytearray | Mapping)


def _different(values: Collection[object]) -> Iterable[object]:
    """The values of a list, of a range one: all of it are whole numbers, and it may have billions."""
    return values[:1] if isinstance(values, range) else values


def _parts(annotation: Any) -> list[Any]:
    """The types that an annotation allows beside None."""
    parts = get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)
    return [part for part in parts if part is not types.NoneType]


def _words(annotation: Any) -> str:
    """``a whole number, a text or a list (each a whole number)`` for ``int | str | Sequence[int] | None``."""
    words = [*dict.fromkeys(word for part in _parts(annotation) for word in _words_of(part))]
    return " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def _words_of(part: Any) -> list[str]:
    kind, arguments = get_origin(part) or part, get_args(part)
    if kind is Literal:
        return [*map(repr, arguments)]
    if kind is tuple:
        return [f"a list of {len(arguments)}"]
    word = str(_WORDS.get(kind) or getattr(kind, "__name__", kind))
    return [f"{word} (each {_words(arguments[-1])})" if kind in (Sequence, Collection, Mapping) else word]
