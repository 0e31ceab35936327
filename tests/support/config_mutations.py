"""Damaged and hostile forms of a JSON file: what a disk, a bad tool or a stranger makes of it.

Every form is bytes, as a program finds them on the disk; its name says what was done where, so that a failure can be
made again.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Sequence
from typing import Any

Path = tuple[str | int, ...]
"""The keys and positions that lead to a value."""

DEEP = 100_000
LONG = 50_000_000
INFINITY, NAN = float("inf"), float("nan")
SCALARS: tuple[Any, ...] = (
    None, True, False, "", "text", "0.18", "../../etc", "\x1b]0;x\x07", "\ud800",
    0, 1, 3, 7, -1, 10**9, 2**63, 10**400, 0.5, 1.0, -0.0, 1e-300, 1e308, INFINITY, -INFINITY, NAN,
)  # fmt: skip
LISTS: tuple[Any, ...] = ([], {}, [1], [[1]], [None], ["a"], {"a": 1}, [0.5] * 3, [10**9], [3, 5], list(range(5000)))
_HOLE = "\0the mutated value\0"


def places(document: Any, depth: int = 3) -> Iterator[Path]:
    """The places of all values of a document, down to ``depth`` levels, the first three elements of each list."""
    if depth == 0:
        return
    items: Sequence[tuple[str | int, Any]] = ()
    if isinstance(document, dict):
        items = list(document.items())[:200]
    elif isinstance(document, list):
        items = list(enumerate(document))[:3]
    for key, value in items:
        yield (key,)
        yield from ((key, *rest) for rest in places(value, depth - 1))


def changed(document: Any, place: Path, value: Any) -> Any:
    """A copy with ``value`` at ``place``."""
    result = copy.deepcopy(document)
    holder = result
    for key in place[:-1]:
        holder = holder[key]
    holder[place[-1]] = value
    return result


def dropped(document: Any, place: Path) -> Any:
    """A copy without the value at ``place``."""
    result = copy.deepcopy(document)
    holder = result
    for key in place[:-1]:
        holder = holder[key]
    del holder[place[-1]]
    return result


def _at(document: Any, place: Path) -> Any:
    for key in place:
        document = document[key]
    return document


def _encoded(document: Any) -> bytes:
    return json.dumps(document).encode()


def value_mutations(document: Any) -> Iterator[tuple[str, bytes]]:
    """Every place dropped and set to every value of another kind, length or size."""
    for place in places(document):
        where = ".".join(map(str, place))
        yield f"{where}: dropped", _encoded(dropped(document, place))
        now = _at(document, place)
        if isinstance(now, list):
            for name, value in (("doubled", now * 2), ("shortened", now[:-1]), ("reversed", now[::-1])):
                yield f"{where}: {name}", _encoded(changed(document, place, value))
        if type(now) is int:
            for number in (now + 1, now - 1, now * 2, float(now)):
                yield f"{where} = {number}", _encoded(changed(document, place, number))
        if isinstance(now, str):
            yield f"{where}: upper case", _encoded(changed(document, place, now.upper()))
        for value in (*SCALARS, *LISTS):
            text = str(value) if not isinstance(value, int) or value < 2**64 else "10**400"
            yield f"{where} = {text[:30]!r}", _encoded(changed(document, place, value))


def text_mutations(document: Any, *, large: bool = True) -> Iterator[tuple[str, bytes]]:
    """Forms that are no value: too deep, too long, said twice, in another encoding, cut.

    Args:
        large: those of many megabytes too.
    """
    whole = _encoded(document)
    yield "cut in the middle", whole[: len(whole) // 2]
    yield from (
        ("empty", b""), ("null", b"null"), ("a number", b"3"), ("a list", b"[]"), ("no keys", b"{}"), ("spaces", b"  "),
        ("text behind", whole + b"x"), ("a second document", whole + whole), ("NUL in front", b"\0" + whole),
        ("open brackets", b"[" * DEEP), ("open objects", b'{"a":' * DEEP), ("open string", b'{"a": "' + b'\\"' * DEEP),
        ("utf-16", whole.decode().encode("utf-16")), ("utf-32", whole.decode().encode("utf-32")),
        ("byte order mark", b"\xef\xbb\xbf" + whole), ("latin-1", b'{"a": "\xe9", ' + whole[1:]),
        ("5000 digits", b'{"a": ' + b"9" * 5000 + b", " + whole[1:]), ("1e999", b'{"a": 1e999, ' + whole[1:]),
        ("zeros", bytes(len(whole))),
    )  # fmt: skip
    if not isinstance(document, dict):
        return
    for key in document:
        hole = _encoded({**document, key: _HOLE})
        mark = json.dumps(_HOLE).encode()
        yield f"{key}: 500 deep", hole.replace(mark, b"[" * 500 + b"1" + b"]" * 500)
        yield f"{key}: {DEEP} deep", hole.replace(mark, b"[" * DEEP + b"1" + b"]" * DEEP)
        yield f"{key}: twice", whole[:-1] + b", " + json.dumps(key).encode() + b": null}"
        yield f"{key} = 1e999", hole.replace(mark, b"1e999")
    if large:
        for key in list(document)[:2]:
            yield f"{key}: a long string", _encoded({**document, key: "a" * LONG})
            yield f"{key}: a long list", _encoded({**document, key: [0] * (LONG // 10)})


def mutations(document: Any, *, large: bool = True) -> Iterator[tuple[str, bytes]]:
    """:func:`text_mutations` and :func:`value_mutations`."""
    yield from text_mutations(document, large=large)
    yield from value_mutations(document)
