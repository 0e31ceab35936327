"""Steps that a reader takes over a text, counted and not timed: linear is what doubles with the text.

Counted are lines of sdort's Python, steps of regular expressions, and characters that methods of texts pass. Python
does not tell the steps of its regular expressions: :class:`CountedPattern` takes them itself over the parsed
expression, in the order in which Python's engine does, and checks its result against Python's.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

import pytest

import sdort

if sys.version_info >= (3, 11):
    from re import _constants as constants  # type: ignore[attr-defined]
    from re import _parser as parser  # type: ignore[attr-defined]
else:
    import sre_constants as constants
    import sre_parse as parser

_PACKAGE = str(Path(sdort.__file__).parent)
_DEEPEST = 100_000

Then = Callable[[int], int]
"""Matches what follows from a place on, and returns where that ends; -1 where it does not match."""
Matcher = Callable[[str, int, Then], int]


class Steps:
    """A number of steps."""

    taken = 0


STEPS = Steps()


class CountedText(str):
    """A text whose methods count the characters that they pass."""

    def __getitem__(self, key: Any) -> CountedText:
        return CountedText(_counted(super().__getitem__(key)))

    def __add__(self, other: str) -> CountedText:
        return CountedText(_counted(super().__add__(other)))

    def __radd__(self, other: str) -> CountedText:
        return CountedText(_counted(str.__add__(other, self)))

    def find(self, part: str, start: int = 0, *end: int) -> int:  # type: ignore[override]
        place = super().find(part, start, *end)
        STEPS.taken += (place if place >= 0 else len(self)) - start
        return place

    def rfind(self, part: str, *bounds: int) -> int:  # type: ignore[override]
        place = super().rfind(part, *bounds)
        STEPS.taken += len(self) - max(place, 0)
        return place


def _counted(value: Any) -> Any:
    if isinstance(value, str):
        STEPS.taken += len(value)
        return CountedText(value)
    return type(value)(map(_counted, value)) if isinstance(value, list | tuple) else value


def _method(name: str) -> Callable[..., Any]:
    plain = getattr(str, name)

    def method(self: str, *args: Any) -> Any:
        STEPS.taken += len(self)
        return _counted(plain(self, *args))

    return method


for _name in (
    *("count", "endswith", "lower", "lstrip", "partition", "removeprefix", "removesuffix", "replace", "rpartition"),
    *("rstrip", "split", "splitlines", "strip", "upper", "__contains__"),
):
    setattr(CountedText, _name, _method(_name))


class CountedMatch:
    """A match whose texts count."""

    def __init__(self, match: re.Match[Any]) -> None:
        self._match = match

    def __getitem__(self, key: Any) -> Any:
        return _counted(self._match[key])

    def group(self, *keys: Any) -> Any:
        return _counted(self._match.group(*keys))

    def groups(self) -> Any:
        return tuple(map(_counted, self._match.groups()))

    def groupdict(self) -> Any:
        return {name: _counted(value) for name, value in self._match.groupdict().items()}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._match, name)


class CountedPattern:
    """A regular expression that counts its steps."""

    def __init__(self, pattern: re.Pattern[Any]) -> None:
        self.plain = pattern
        self._match = _sequence(list(parser.parse(pattern.pattern, pattern.flags)), pattern.flags)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.plain, name)

    def match(self, text: Any, start: int = 0, end: int = sys.maxsize) -> CountedMatch | None:
        return self._checked(self.plain.match(text, start, end), text, [start], end, whole=False)

    def fullmatch(self, text: Any, start: int = 0, end: int = sys.maxsize) -> CountedMatch | None:
        return self._checked(self.plain.fullmatch(text, start, end), text, [start], end, whole=True)

    def search(self, text: Any, start: int = 0, end: int = sys.maxsize) -> CountedMatch | None:
        starts = range(start, min(len(text), end) + 1)
        return self._checked(self.plain.search(text, start, end), text, starts, end, whole=False)

    def finditer(self, text: Any, *bounds: int) -> Iterator[CountedMatch]:
        place = bounds[0] if bounds else 0
        for found in self.plain.finditer(text, *bounds):
            self._searched(text, place)
            yield CountedMatch(found)
            place = found.end() + (found.end() == found.start())
        self._searched(text, place)

    def findall(self, text: Any) -> list[Any]:
        list(self.finditer(text))
        return _counted(self.plain.findall(text))  # type: ignore[no-any-return]

    def split(self, text: Any, *most: int) -> list[Any]:
        list(self.finditer(text))
        return _counted(self.plain.split(text, *most))  # type: ignore[no-any-return]

    def sub(self, new: Any, text: Any, count: int = 0) -> Any:
        list(self.finditer(text))
        return _counted(self.plain.sub(new, text, count))

    def _searched(self, text: Any, place: int) -> None:
        self._run(text, range(place, len(text) + 1), sys.maxsize, whole=False)

    def _checked(
        self, found: re.Match[Any] | None, text: Any, starts: Sequence[int], end: int, *, whole: bool
    ) -> CountedMatch | None:
        assert self._run(text, starts, end, whole=whole) == (found.span() if found else None), (self.plain, text)
        return CountedMatch(found) if found else None

    def _run(self, text: Any, starts: Sequence[int], end: int, *, whole: bool) -> tuple[int, int] | None:
        plain = text.decode("latin-1") if isinstance(text, bytes) else str(text)
        plain = plain[: min(end, len(plain))]
        for start in starts:
            STEPS.taken += 1
            found = self._match(plain, start, lambda place: place if not whole or place == len(plain) else -1)
            if found >= 0:
                return start, found
        return None


class CountedModule:
    """The module ``re`` with patterns that count."""

    def __getattr__(self, name: str) -> Any:
        if name not in ("match", "fullmatch", "search", "finditer", "findall", "split", "sub"):
            return getattr(re, name)
        if name == "sub":
            return lambda pattern, new, text, *rest, flags=0: _compiled(pattern, flags).sub(new, text, *rest)
        return lambda pattern, text, flags=0: getattr(_compiled(pattern, flags), name)(text)


class CountedJson:
    """The module ``json``, whose errors count the lines before them."""

    def __getattr__(self, name: str) -> Any:
        return getattr(json, name)

    class JSONDecoder(json.JSONDecoder):
        def raw_decode(self, text: str, idx: int = 0) -> tuple[Any, int]:
            try:
                value, end = super().raw_decode(str(text), idx)
            except json.JSONDecodeError as error:
                STEPS.taken += error.pos
                raise
            STEPS.taken += end - idx
            return value, end


def _compiled(pattern: Any, flags: int) -> CountedPattern:
    return CountedPattern(re.compile(pattern.plain if isinstance(pattern, CountedPattern) else pattern, flags))


def _sequence(items: list[Any], flags: int) -> Matcher:
    matchers = [_matcher(op, value, flags) for op, value in items]

    def match(text: str, place: int, then: Then) -> int:
        def rest(number: int, place: int) -> int:
            if number == len(matchers):
                return then(place)
            return matchers[number](text, place, lambda end: rest(number + 1, end))

        return rest(0, place)

    return match


def _matcher(op: Any, value: Any, flags: int) -> Matcher:
    match str(op):
        case "MAX_REPEAT" | "MIN_REPEAT":
            return _repeat(value, flags, is_lazy=str(op) == "MIN_REPEAT")
        case "SUBPATTERN":
            _, more, less, inside = value
            return _sequence(list(inside), (flags | more) & ~less)
        case "BRANCH":
            return _branch([_sequence(list(each), flags) for each in value[1]])
        case "ASSERT" | "ASSERT_NOT":
            return _look(value, flags, wanted=str(op) == "ASSERT")
        case "AT":
            return lambda text, place, then: then(place) if _stands(value, text, place, flags) else -1
    letter = _letter(op, value, flags)

    def match(text: str, place: int, then: Then) -> int:
        STEPS.taken += 1
        return then(place + 1) if place < len(text) and letter(text[place]) else -1

    return match


def _repeat(value: Any, flags: int, *, is_lazy: bool) -> Matcher:
    least, most, inside = value
    most = sys.maxsize if most is constants.MAXREPEAT else most
    items = list(inside)
    if len(items) == 1 and str(items[0][0]) in ("LITERAL", "NOT_LITERAL", "ANY", "IN") and not is_lazy:
        return _run_of_letters(_letter(items[0][0], items[0][1], flags), least, most)
    one = _sequence(items, flags)

    def match(text: str, place: int, then: Then, done: int = 0) -> int:
        STEPS.taken += 1

        def more(end: int) -> int:
            return -1 if end == place and done >= least else match(text, end, then, done + 1)

        tries: list[Callable[[], int]] = [
            lambda: one(text, place, more) if done < most else -1,
            lambda: then(place) if done >= least else -1,
        ]
        return next((end for each in (reversed(tries) if is_lazy else tries) if (end := each()) >= 0), -1)

    return match


def _run_of_letters(letter: Callable[[str], bool], least: int, most: int) -> Matcher:
    def match(text: str, place: int, then: Then) -> int:
        end = place
        while end < len(text) and end - place < most and letter(text[end]):
            end += 1
        STEPS.taken += end - place + 1
        for last in range(end, place + least - 1, -1):
            STEPS.taken += 1
            if (found := then(last)) >= 0:
                return found
        return -1

    return match


def _branch(ways: list[Matcher]) -> Matcher:
    return lambda text, place, then: next((end for way in ways if (end := way(text, place, then)) >= 0), -1)


def _look(value: Any, flags: int, *, wanted: bool) -> Matcher:
    direction, inside = value
    items = _sequence(list(inside), flags)
    width = inside.getwidth()[0] if direction < 0 else 0

    def match(text: str, place: int, then: Then) -> int:
        found = place >= width and items(text, place - width, lambda end: end) >= 0
        return then(place) if found == wanted else -1

    return match


def _stands(where: Any, text: str, place: int, flags: int) -> bool:
    name = str(where).removeprefix("AT_")
    lines = bool(flags & re.MULTILINE)
    if name in ("BOUNDARY", "NON_BOUNDARY"):
        word = _category("WORD", flags)
        sides = [bool(side) and word(side) for side in (text[max(place - 1, 0) : place], text[place : place + 1])]
        return (sides[0] != sides[1]) == (name == "BOUNDARY")
    if name.startswith("BEGINNING"):
        return place == 0 or (lines and name == "BEGINNING" and text[place - 1] == "\n")
    if name == "END_STRING":
        return place == len(text)
    return place == len(text) or (text[place] == "\n" and (lines or place == len(text) - 1))


def _letter(op: Any, value: Any, flags: int) -> Callable[[str], bool]:
    ignore = bool(flags & re.IGNORECASE)
    match str(op):
        case "ANY":
            return lambda letter: bool(flags & re.DOTALL) or letter != "\n"
        case "LITERAL" | "NOT_LITERAL":
            wanted = chr(value).lower() if ignore else chr(value)
            is_not = str(op) == "NOT_LITERAL"
            return lambda letter: ((letter.lower() if ignore else letter) == wanted) != is_not
        case "IN":
            parts = [_part(kind, each, flags) for kind, each in value if str(kind) != "NEGATE"]
            negates = str(value[0][0]) == "NEGATE"

            def is_in(letter: str) -> bool:
                cases = {letter, letter.lower(), letter.upper()} if ignore else {letter}
                return any(part(each) for each in cases for part in parts) != negates

            return is_in
    raise NotImplementedError(f"regular expressions with {op} are not counted")


def _part(op: Any, value: Any, flags: int) -> Callable[[str], bool]:
    match str(op):
        case "RANGE":
            return lambda letter: len(letter) == 1 and value[0] <= ord(letter) <= value[1]
        case "CATEGORY":
            return _category(str(value).removeprefix("CATEGORY_"), flags)
    return lambda letter: letter == chr(value)


def _category(name: str, flags: int) -> Callable[[str], bool]:
    kinds: dict[str, Callable[[str], bool]] = {
        "DIGIT": str.isdecimal,
        "SPACE": str.isspace,
        "WORD": lambda letter: letter.isalnum() or letter == "_",
    }
    kind = kinds[name.removeprefix("NOT_")]
    is_ascii = bool(flags & re.ASCII) or not flags & re.UNICODE
    wanted = not name.startswith("NOT_")
    return lambda letter: (kind(letter) and (letter.isascii() or not is_ascii)) == wanted


def all_modules() -> list[ModuleType]:
    """sdort's modules, but those of other programs, which need these."""
    names = [found.name for found in pkgutil.walk_packages(sdort.__path__, "sdort.", onerror=lambda _: None)]
    return [importlib.import_module(name) for name in names if ".integrations" not in name and "__main__" not in name]


def count_in_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the regular expressions of sdort's loaded modules count for the rest of a test."""
    for module in [module for name, module in sys.modules.items() if name.startswith("sdort.")]:
        for name, value in list(vars(module).items()):
            if isinstance(value, re.Pattern):
                monkeypatch.setattr(module, name, CountedPattern(value))
            elif value is re or value is json:
                monkeypatch.setattr(module, name, CountedModule() if value is re else CountedJson())


def steps_of(read: Callable[[], object]) -> int:
    """The steps that a call takes."""
    STEPS.taken = 0

    def on_line(frame: FrameType, event: str, arg: object) -> Any:
        STEPS.taken += event == "line"
        return on_line

    def on_call(frame: FrameType, event: str, arg: object) -> Any:
        return on_line if frame.f_code.co_filename.startswith(_PACKAGE) else None

    before, deepest = sys.gettrace(), sys.getrecursionlimit()
    sys.setrecursionlimit(_DEEPEST)
    sys.settrace(on_call)
    try:
        read()
    finally:
        sys.settrace(before)
        sys.setrecursionlimit(deepest)
    return STEPS.taken


SIZES, LARGER = (8, 16, 32), (100, 200, 400)
"""Repetitions of a text's part, and those that are tried where steps grow among the first: a limit may stand there."""


def grows_faster(
    read: Callable[[CountedText], object], text: Callable[[int], str], sizes: tuple[int, int, int] = SIZES
) -> str:
    """How the steps grow with a text where they more than double with it; empty where they do not.

    Args:
        text: of a number of repetitions.
    """
    counts = [steps_of(partial(read, CountedText(text(size)))) for size in sizes]
    first, second = counts[1] - counts[0], counts[2] - counts[1]
    # Of a linear reader the second is twice the first, of a quadratic one four times; a few steps are no growth.
    if second <= 2.6 * max(first, 0) + sizes[0] * 4:
        return ""
    return grows_faster(read, text, LARGER) if sizes == SIZES else f"{counts} steps for {sizes} repetitions"
