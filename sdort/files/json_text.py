"""JSON that a stranger may have made, read strictly.

Python's own parser takes what no other program agrees on, and what breaks whoever reads on: NaN, numbers that overflow
to infinity, the same key twice, half a surrogate pair, a thousand levels. Here each is an error with a reason.
"""

from __future__ import annotations

import codecs
import json
import math
import re
from typing import Any

MAX_DEPTH = 32
"""Levels of lists and objects within each other: sdort's own files have 8, a tokenizer's too."""
_MAX_DIGITS = 40
"""Digits of a number: transformers writes 10^30 for a tokenizer without a longest text."""

# A string, closed or not, or a bracket. The string's end is optional, so that no search starts over.
_STRING_OR_BRACKET = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"?|[\[\]{}]', re.DOTALL)
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_MARKS = {
    codecs.BOM_UTF32_LE: "is in UTF-32",  # before UTF-16, whose mark it begins with
    codecs.BOM_UTF32_BE: "is in UTF-32",
    codecs.BOM_UTF16_LE: "is in UTF-16",
    codecs.BOM_UTF16_BE: "is in UTF-16",
    codecs.BOM_UTF8: "begins with a byte order mark",
}


def parse_json(content: bytes, *, infinity: bool = False, constants: bool = False) -> Any:
    """The value of a JSON text in UTF-8.

    Args:
        infinity: also take ``Infinity`` and ``-Infinity``, which Python writes and JSON has not.
        constants: take ``NaN`` too. Numbers have to be checked where they are used.

    Raises:
        ValueError: what is wrong, to be put behind the file's name: ``is no JSON (...)``.
    """
    text = _decoded(content)
    _check_depth(text)

    def constant(name: str) -> float:
        if not constants and (name == "NaN" or not infinity):
            raise ValueError(f"{name} is no number")
        return float(name)

    try:
        value = json.loads(
            text, parse_int=_integer, parse_float=_number, parse_constant=constant, object_pairs_hook=_without_twins
        )
        if _SURROGATE.search(text):
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise ValueError("is no JSON (a string has half a surrogate pair, which is no character)") from error
    except ValueError as error:
        raise ValueError(f"is no JSON ({error})") from error
    return value


def _decoded(content: bytes) -> str:
    for mark, what in _MARKS.items():
        if content.startswith(mark):
            raise ValueError(f"{what}; JSON is UTF-8 without a mark")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"is no JSON (byte {content[error.start]:#04x} at {error.start} is not UTF-8)") from error


def _check_depth(text: str) -> None:
    if text.count("[") + text.count("{") <= MAX_DEPTH:
        return
    depth = 0
    for match in _STRING_OR_BRACKET.finditer(text):
        depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(match[0], 0)
        if depth > MAX_DEPTH:
            raise ValueError(f"is no JSON that is read here (more than {MAX_DEPTH} levels within each other)")


def _integer(text: str) -> int:
    if len(text) > _MAX_DIGITS:
        raise ValueError(f"a number has {len(text)} digits: {text[:8]}...")
    return int(text)


def _number(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{text[:40]} is larger than any number")
    return value


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        seen: set[str] = set()
        twin = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"the key {json.dumps(twin[:60])} is there twice")
    return result
