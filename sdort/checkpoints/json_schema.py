"""Schemas of JSON objects: what the value of each known key may be. Unknown keys are allowed: newer programs add some.

Not JSON Schema: there 4.0 is an integer and a number has no bound but its own, so every consumer would check again; and
the library for it takes 60 ms to import, which is a fifth of the start of ``sdort optimize``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sdort.errors.plain_text import cut


@dataclass(frozen=True)
class Kind:
    """A kind of value: ``words`` say what it is, ``fits`` whether a value is one."""

    words: str
    fits: Callable[[Any], bool]
    parts: Callable[[Any, str], str | None] = lambda value, path: None
    """The problem within a value that fits, at its path; None for none."""

    def __or__(self, other: Kind) -> Kind:
        def fits(value: Any) -> bool:
            return self.problem(value, "") is None or other.problem(value, "") is None

        return Kind(f"{self.words} or {other.words}", fits)

    def problem(self, value: Any, path: str) -> str | None:
        """The problem of a value, in a sentence; None for none.

        Args:
            path: the keys that lead to it.
        """
        return self.parts(value, path) if self.fits(value) else f"{path} is {shortened(value)}, not {self.words}"


def shortened(value: Any) -> str:
    """A value as JSON in ASCII, so that it changes no terminal, and not much of it."""
    return cut(json.dumps(value))


def _below(path: str, key: str) -> str:
    return f"{path}.{key[:60]}".lstrip(".")


NULL = Kind("null", lambda value: value is None)
FLAG = Kind("true or false", lambda value: isinstance(value, bool))
ANYTHING = Kind("anything", lambda value: True)


def whole(low: int, high: int) -> Kind:
    """Integers; 4.0 and true are none."""
    return Kind(f"a whole number from {low} to {high}", lambda value: type(value) is int and low <= value <= high)


def number(low: float, high: float) -> Kind:
    """Integers and fractions, both bounds included."""
    return Kind(
        f"a number from {low:g} to {high:g}", lambda value: type(value) in (int, float) and low <= value <= high
    )


def positive(high: float, low: float = 0.0) -> Kind:
    """Integers and fractions above ``low``, up to ``high``."""
    words = f"a number above {low:g}, up to {high:g}"
    return Kind(words, lambda value: type(value) in (int, float) and low < value <= high)


def text(longest: int = 256) -> Kind:
    """Strings of up to ``longest`` characters, none of which moves a terminal's cursor."""

    def fits(value: Any) -> bool:
        return isinstance(value, str) and len(value) <= longest and value.isprintable()

    return Kind(f"a text of up to {longest} printable characters", fits)


def any_text(longest: int) -> Kind:
    """Strings of up to ``longest`` characters of any kind: what people wrote, and tokens."""
    return Kind(f"a text of up to {longest} characters", lambda value: isinstance(value, str) and len(value) <= longest)


def one_of(*values: str) -> Kind:
    """Some strings."""
    return Kind(" or ".join(map(shortened, values)), lambda value: isinstance(value, str) and value in values)


def list_of(kind: Kind, shortest: int, longest: int) -> Kind:
    """Lists of ``shortest`` to ``longest`` values of one kind."""

    def parts(value: Any, path: str) -> str | None:
        problems = (kind.problem(element, f"{path}[{index}]") for index, element in enumerate(value))
        return next(filter(None, problems), None)

    count = f"{shortest} to {longest}" if shortest < longest else str(shortest)
    return Kind(
        f"a list of {count} times {kind.words}",
        lambda value: isinstance(value, list) and shortest <= len(value) <= longest,
        parts,
    )


def mapping_to(kind: Kind, most: int) -> Kind:
    """Objects whose keys are free and whose values are of one kind."""

    def parts(value: Any, path: str) -> str | None:
        problems = (kind.problem(element, _below(path, key)) for key, element in value.items())
        return next(filter(None, problems), None)

    words = f"an object with up to {most} times {kind.words}"
    return Kind(words, lambda value: isinstance(value, dict) and len(value) <= most, parts)


def record(schema: Mapping[str, Kind], required: tuple[str, ...] = ()) -> Kind:
    """Objects with these keys, and any others."""

    def parts(value: Any, path: str) -> str | None:
        missing = [key for key in required if key not in value]
        if missing:
            return f"{path or 'it'} has no {missing[0]}"
        known = ((kind, key) for key, kind in schema.items() if key in value)
        return next(filter(None, (kind.problem(value[key], _below(path, key)) for kind, key in known)), None)

    return Kind("an object", lambda value: isinstance(value, dict), parts)
