"""Types of options, in the annotations that the library has."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sdort.errors import UsageError
from sdort.options.number_ranges import STEPS, Range
from sdort.options.option_types import check_types, fits

RANGES: Mapping[str, Range[Any]] = {"steps": STEPS, "eta": Range("eta", 0.0, 1.0, "it is a share")}


class Made: ...


made = Made()
TABLE: tuple[tuple[Any, tuple[Any, ...], tuple[Any, ...]], ...] = (
    (bool, (True, False, np.True_, np.bool_(False)), (0, 1, "no", "true", None, [True])),
    (int, (0, -3, np.int64(3), np.uint8(3)), (True, False, np.True_, 1.0, "1", None)),
    (float, (0, 1.5, np.float32(1.5), np.int8(1)), (True, float("nan"), float("inf"), 10**400, "1", None, 1j)),
    (str, ("", "a"), (b"a", 1, None, Path("a"), True)),
    (Path, (Path("a"),), ("a", b"a", None)),
    (Sequence[int], ([], [1], (1, 2), range(3), np.array([1, 2])), ("12", b"12", [1.5], [True], 1, {1})),
    (Sequence[str], (["a"], ("a",)), ("a", ["a", 1], [None])),
    (Mapping[str, int], ({}, {"a": 1}), ({"a": 1.5}, {"a": 1, "b": "c"}, [("a", 1)], None)),
    (int | None, (1, None), ("1", 1.5)),
    (str | int, (1, "1"), (1.5, None, True)),
    (str | Sequence[str], ("a", ["a"]), (1, [1])),
    (Any, (None, object()), ()),
    (object, (None, 1), ()),
    (None, (None,), (0, False)),
    (Callable[[int], int], (abs, lambda value: value), (1, None)),
    (Made, (made,), (Made, None)),
)  # fmt: skip


@pytest.mark.parametrize(("annotation", "taken", "refused"), TABLE, ids=[str(row[0]) for row in TABLE])
def test_values_of_a_type(annotation: Any, taken: tuple[Any, ...], refused: tuple[Any, ...]) -> None:
    for value in taken:
        assert fits(value, annotation), value
    for value in refused:
        assert not fits(value, annotation), value


@pytest.mark.parametrize(
    ("name", "value", "annotation", "words"),
    [
        ("some_thing", 1, bool, "--some-thing 1 is not true or false"),
        ("some_thing", "a", int | str | None, None),
        ("some_thing", 1.5, int | str | Sequence[int], "--some-thing 1.5 is not a whole number, a text or a l"),
        ("some_thing", 1, Path, "--some-thing 1 is not a path"),
        ("some_thing", 1, Mapping[str, int], "--some-thing 1 is not a table"),
        ("some_thing", 1, Made, "--some-thing 1 is not Made"),
        ("some_thing", "a", float, "--some-thing 'a' is not a number"),
        ("some_thing", None, bool, None),
        ("steps", "a", int, "--steps 'a' is not a whole number from 1 to 1,000"),
        ("eta", True, float, "--eta True is not a number from 0 to 1"),
    ],
)  # fmt: skip
def test_a_refusal_names_option_value_and_type(name: str, value: Any, annotation: Any, words: str | None) -> None:
    options, annotations = {"other": 1, name: value}, {"other": int, name: annotation, "unused": str}
    if words is None:
        check_types(options, annotations, RANGES)
        return
    with pytest.raises(UsageError) as caught:
        check_types(options, annotations, RANGES)
    assert str(caught.value).startswith(words)
