"""Messages at each verbosity, bars' lines, documents in JSON."""

from __future__ import annotations

import enum
import logging
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sdort import console


@pytest.fixture(autouse=True)
def _verbosity() -> Iterator[None]:
    before = console.verbosity()
    yield
    console.set_verbosity(before)


SHOWN = {
    console.SILENT: (),
    console.QUIET: ("warn", "print_error"),
    console.NORMAL: ("say", "warn", "print_error"),
    console.VERBOSE: ("say", "detail", "warn", "print_error"),
}
LEVELS = {"say": logging.INFO, "detail": logging.DEBUG, "warn": logging.WARNING}


@pytest.mark.parametrize("level", SHOWN)
@pytest.mark.parametrize("name", ["say", "detail", "warn", "print_error"])
def test_who_hears_what(
    name: str, level: int, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    console.set_verbosity(level)
    with caplog.at_level(logging.DEBUG, "sdort"):
        getattr(console, name)("some\x1bthing")
    out, err = capsys.readouterr()
    assert out == ""
    if level == console.SILENT and name != "print_error":
        assert err == ""
        assert [(record.name, record.levelno, record.getMessage()) for record in caplog.records] == [
            ("sdort", LEVELS[name], "some\\x1bthing")
        ]
        return
    assert caplog.records == []
    beginning = {"warn": "warning: ", "print_error": "Error: "}.get(name, "")
    expected = f"{beginning}some\\x1bthing\n" if name in SHOWN[level] or name == "print_error" else ""
    assert err == expected


@pytest.mark.parametrize(
    ("level", "kept", "quiet"),
    [(-5, -2, True), (-2, -2, True), (-1, -1, True), (0, 0, False), (1, 1, False), (9, 1, False)],
)
def test_levels_beyond_are_the_nearest(level: int, kept: int, quiet: bool) -> None:
    console.set_verbosity(level)
    assert (console.verbosity(), console.is_quiet()) == (kept, quiet)


def test_a_warning_once_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    console.set_verbosity(console.NORMAL)
    for text in ("only here one", "only here two", "only here one"):
        console.warn_once(text)
    assert capsys.readouterr().err == "warning: only here one\nwarning: only here two\n"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-:--:--"),
        (0, "0:00:00"),
        (0.4, "0:00:00"),
        (89.6, "0:01:30"),
        (3661, "1:01:01"),
        (90000, "1 day, 1:00:00"),
    ],
)
def test_a_clock(seconds: float | None, text: str) -> None:
    assert console.clock(seconds) == text


@pytest.mark.parametrize(
    ("width", "shown", "kept", "bar"),
    [
        (100, "loading", [" 50%", "0:00:10 left", "0:00:10"], 40),
        (74, "loading", [" 50%", "0:00:10 left", "0:00:10"], 40),
        (73, "loading", [" 50%", "0:00:10 left", "0:00:10"], 39),
        (42, "loading", [" 50%", "0:00:10 left", "0:00:10"], 8),
        (41, "loading", [" 50%", "0:00:10 left", "0:00:10"], 0),
        (33, "loading", [" 50%", "0:00:10 left", "0:00:10"], 0),
        (32, "loading", [" 50%", "0:00:10 left"], 0),
        (24, "loading", [" 50%"], 11),
        (12, "loading", [" 50%"], 0),
        (11, "loa...", [" 50%"], 0),
        (8, "...", [" 50%"], 0),
    ],
)
def test_what_does_not_fit_a_bars_line_is_left_out(width: int, shown: str, kept: list[str], bar: int) -> None:
    numbers = [" 50%", "0:00:10 left", "0:00:10"]
    assert console.bar_layout("loading", numbers, width) == (shown, kept, bar)
    assert numbers == [" 50%", "0:00:10 left", "0:00:10"]
    used = len(shown) + sum(1 + len(number) for number in kept) + (1 + bar if bar else 0)
    assert used <= width


def test_a_follower_hears_of_all_work() -> None:
    heard: list[tuple[str, float, float | None]] = []
    names = iter(["one", "two\n", "three"])
    with console.following(lambda *told: heard.append(told)):
        with console.progress("fixed", 10) as advance:
            advance(2)
            with console.progress(lambda: next(names)) as inner:
                inner(1.5)
                inner(0.5)
            advance(3)
        with console.following(lambda *told: None), console.progress("unheard"):
            pass
    with console.progress("unheard") as advance:
        advance(1)
    assert heard == [
        ("fixed", 0, 10), ("fixed", 2, 10), ("one", 0, None), ("two\\n", 1.5, None), ("three", 2.0, None),
        ("fixed", 5, 10),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "width", "expected"),
    [
        ("a b c", 3, "a b\nc"),
        ("  a b c", 5, "  a b\n  c"),
        ("    a b c", 5, "    a b c"),
        ("   a b c", 6, "   a b\n   c"),
        ("a longword b", 4, "a\nlongword\nb"),
        ("a-b-c-d", 3, "a-b-c-d"),
        ("abc\nd e f", 3, "abc\nd e\nf"),
        ("abc", 3, "abc"),
    ],
)
def test_lines_are_broken_at_spaces(text: str, width: int, expected: str) -> None:
    assert console.wrap(text, width) == expected


class Colour(enum.Enum):
    RED = "red"
    PATH = Path("a")


@dataclass
class Inner:
    number: float
    renamed: int = field(default=1, metadata={"json": "other"})
    hidden: int = field(default=2, metadata={"json": None})


@console.document("of-a-test", 3)
@dataclass
class Outer:
    inner: Inner
    names: tuple[str, ...] = ()


# At once: the tests of all documents may run in this process.
REGISTERED = console.DOCUMENTS.pop("sdort-of-a-test-3")


class Derived(Outer):
    """Has no schema of its own."""


JSON: list[tuple[Any, Any]] = [
    (None, None), (True, True), (3, 3), (1.5, 1.5), (math.nan, None), (math.inf, "inf"), (-math.inf, "-inf"),
    ("a\ud800", "a\\ud800"), (Path("a/\udcff"), "a/\\udcff"), (Colour.RED, "red"), (Colour.PATH, "a"),
    ({1: "a", "b\udcff": [1]}, {"1": "a", "b\\udcff": [1]}), ({3, 1, 2}, [1, 2, 3]), (frozenset("ba"), ["a", "b"]),
    ((1, [2, (3,)]), [1, [2, [3]]]), (np.float32(0.5), 0.5), (np.int64(7), 7), (np.bool_(True), True),
    (np.float64(math.nan), None), (Inner(1.0), {"number": 1.0, "other": 1}),
    (Outer(Inner(2.0), ("a",)),
     {"schema": "sdort-of-a-test-3", "inner": {"number": 2.0, "other": 1}, "names": ["a"]}),
    (Derived(Inner(2.0)), {"inner": {"number": 2.0, "other": 1}, "names": []}),
]  # fmt: skip


@pytest.mark.parametrize(("value", "expected"), JSON, ids=lambda value: type(value).__name__)
def test_reports_become_plain_values(value: Any, expected: Any) -> None:
    found = console.to_json(value)
    assert found == expected
    assert type(found) is type(expected)
    if isinstance(found, dict):
        assert list(found) == list(expected)


@pytest.mark.parametrize("value", [object(), Inner, np.zeros(2), b"a", 1j])
def test_what_has_no_json_is_an_error(value: Any) -> None:
    with pytest.raises(TypeError, match="has no JSON"):
        console.to_json(value)


def test_documents_are_known_by_their_schema() -> None:
    assert REGISTERED is Outer
    assert not Outer.__is_open__  # type: ignore[attr-defined]
