"""JSON of strangers: limits to the last one that is taken, and which constants are."""

from __future__ import annotations

import codecs
import math
from typing import Any

import pytest

from sdort.files.json_text import MAX_DEPTH, parse_json


@pytest.mark.parametrize(
    ("mark", "message"),
    [
        (codecs.BOM_UTF32_LE, "is in UTF-32"),
        (codecs.BOM_UTF32_BE, "is in UTF-32"),
        (codecs.BOM_UTF16_LE, "is in UTF-16"),
        (codecs.BOM_UTF16_BE, "is in UTF-16"),
        (codecs.BOM_UTF8, "begins with a byte order mark"),
    ],
)
def test_each_mark_of_another_encoding_is_named(mark: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}; JSON is UTF-8 without a mark$"):
        parse_json(mark + b"{}")


@pytest.mark.parametrize(
    ("options", "taken"),
    [
        ({}, ()),
        ({"infinity": True}, ("Infinity", "-Infinity")),
        ({"constants": True}, ("Infinity", "-Infinity", "NaN")),
        ({"infinity": True, "constants": True}, ("Infinity", "-Infinity", "NaN")),
    ],
)
def test_constants_are_taken_that_are_asked_for(options: dict[str, bool], taken: tuple[str, ...]) -> None:
    for name in ("Infinity", "-Infinity", "NaN"):
        if name in taken:
            found = parse_json(f"[{name}]".encode(), **options)[0]
            assert found == float(name) or (name == "NaN" and math.isnan(found))
        else:
            with pytest.raises(ValueError, match=rf"^is no JSON \({name} is no number\)$"):
                parse_json(f"[{name}]".encode(), **options)


@pytest.mark.parametrize("brackets", ["[]", "{}"])
def test_levels_are_counted_to_the_last_that_is_taken(brackets: str) -> None:
    def nested(levels: int) -> bytes:
        begin = {"[]": "[", "{}": '{"a":'}[brackets]
        return f"{begin * (levels - 1)}{brackets}{brackets[1] * (levels - 1)}".encode()

    value: Any = parse_json(nested(MAX_DEPTH))
    for _ in range(MAX_DEPTH - 1):
        value = value[0] if brackets == "[]" else value["a"]
    assert not value
    with pytest.raises(ValueError, match=f"more than {MAX_DEPTH} levels"):
        parse_json(nested(MAX_DEPTH + 1))
    assert len(parse_json(b"[" + nested(MAX_DEPTH - 1) + b"," + nested(MAX_DEPTH - 1) + b"]")) == 2
    # Beside each other they are no levels.
    assert len(parse_json(f"[{','.join([brackets] * 100)}]".encode())) == 100
    # Of both kinds together.
    with pytest.raises(ValueError, match=f"more than {MAX_DEPTH} levels"):
        parse_json(b'[{"a":' * (MAX_DEPTH // 2) + b"[]" + b"}]" * (MAX_DEPTH // 2))


def test_numbers_have_forty_digits_at_most() -> None:
    assert parse_json(b"9" * 40) == 10**40 - 1
    assert parse_json(b"-" + b"9" * 39) == 1 - 10**39
    for text in (b"9" * 41, b"-" + b"9" * 40):
        with pytest.raises(ValueError, match=r"a number has 41 digits: -?9999999"):
            parse_json(text)
    assert parse_json(b"1.5e3") == 1500
    with pytest.raises(ValueError, match="-1e999 is larger than any number"):
        parse_json(b"-1e999")


@pytest.mark.parametrize("half", ["\\ud800", "\\uDBFF", "\\udC00", "\\uDfff"])
def test_half_a_pair_is_refused_in_keys_too(half: str) -> None:
    for text in (f'["{half}"]', f'{{"{half}": 1}}'):
        with pytest.raises(ValueError, match="half a surrogate pair"):
            parse_json(text.encode())


def test_a_key_is_named_that_is_there_twice() -> None:
    with pytest.raises(ValueError, match='the key "b" is there twice'):
        parse_json(b'{"a": 1, "b": 1, "c": 3, "b": 2}')
    assert parse_json(b'[{"a": 1}, {"a": 2}]') == [{"a": 1}, {"a": 2}]


def test_a_byte_that_is_no_utf_8_is_told_with_its_place() -> None:
    with pytest.raises(ValueError, match=r"byte 0x80 at 4 is not UTF-8"):
        parse_json(b'"\xc3\xa9a\x80"')
