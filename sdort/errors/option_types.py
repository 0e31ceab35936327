"""Types of options: a value that a caller or a file gives is held to the annotation of the option.

Python takes any text for true; an option that is switched on by ``"no"`` is worse than a refusal.
"""

from __future__ import annotations

import math
import numbers
import os
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Union, get_args, get_origin

from sdort.errors import UsageError
from sdort.errors.number_ranges import RANGES, shown

_WORDS = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text",
    Path: "a path",
    Sequence: "a list",
    Mapping: "a table",
}


def check_types(options: Mapping[str, object], annotations: Mapping[str, Any]) -> None:
    """Refuse values of other types than their options have; None leaves an option to its default.

    A whole number is a number, true and false are neither; numpy's scalars are what Python's are.

    Args:
        options: name -> value.
        annotations: name -> type, as :func:`typing.get_type_hints` gives it, of at least these names.

    Raises:
        UsageError: which option, its value, and what it takes.
    """
    for name, value in options.items():
        if value is None or fits(value, annotations[name]):
            continue
        if name in RANGES:
            RANGES[name].check(value)  # says the bounds too
        raise UsageError(f"--{name.replace('_', '-')} {shown(value)} is not {_words(annotations[name])}")


def fits(value: object, annotation: Any) -> bool:
    """Whether a value is of the type that an annotation says."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        return any(fits(value, each) for each in arguments)
    if annotation in (Any, object):
        return True
    if annotation in (None, types.NoneType):
        return value is None
    if origin is Mapping:
        return isinstance(value, Mapping) and all(fits(each, arguments[1]) for each in value.values())
    if origin is Sequence:
        return _is_list(value) and all(fits(each, arguments[0]) for each in value)  # type: ignore[attr-defined]
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


def _is_list(value: object) -> bool:
    """Whether it is a list, a tuple, a range or numpy's array: a text is none, though it has parts."""
    return hasattr(value, "tolist") or (isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray))


def _words(annotation: Any) -> str:
    """``a whole number, a text or a list`` for ``int | str | Sequence[int] | None``."""
    parts = get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)
    kinds = [get_origin(part) or part for part in parts if part is not types.NoneType]
    words = [_WORDS.get(kind) or getattr(kind, "__name__", str(kind)) for kind in kinds]
    return " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))
