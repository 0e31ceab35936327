"""Matrices in 8 and 4 bits: what is stored, how far it is from the values, and that it is made row by row."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sdort.graph.group_quantized import GroupFormat, Groups, Integers, Scales, ZeroPoints, pack, quantize, turned
from sdort.graph.signature import Array
from sdort.graph.weights import Inline, Stored, Transposed, Weight, expression_key

FORMS = [GroupFormat(bits, group) for bits in (8, 4) for group in (16, 32)]


def values_of(groups: Groups) -> Array:
    """The values that a kernel computes with, [rows, groups * group]."""
    centred = groups.integers.astype(np.float32) - groups.zeros[..., None]
    return (centred * groups.scales[..., None].astype(np.float32)).reshape(len(groups.integers), -1)


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_a_value_is_at_most_half_a_level_off(form: GroupFormat, dtype: Any) -> None:
    rng = np.random.default_rng(form.bits + form.group)
    rows = rng.standard_normal((7, 72)).astype(np.float32) * np.float32(10) ** rng.integers(-4, 4, (7, 1))
    rows[2] = np.abs(rows[2])  # no zero among them
    rows[3] = 0
    groups = quantize(rows, form, dtype)
    assert groups.integers.max() < 2**form.bits
    levels = np.repeat(groups.scales.astype(np.float32), form.group, axis=1)[:, :72]
    # Half a level, and half of one more where the zero point was rounded, in either type of the scale.
    allowed = levels * (0.5 if form.symmetric else 1.01) + np.abs(rows) * 2.0**-9 + 2.0**-24
    assert (np.abs(values_of(groups)[:, :72] - rows) <= allowed).all()
    assert not values_of(groups)[3].any()


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_zero_is_zero(form: GroupFormat) -> None:
    rows = np.where(np.arange(64) % 3, np.linspace(0.5, 9, 64), 0)[None].astype(np.float32)
    found = values_of(quantize(rows, form, np.float16))
    assert (found[rows == 0] == 0).all()


def test_what_a_scale_cannot_hold_is_zero() -> None:
    rows = np.full((1, 16), 1e-9, np.float32)
    assert not values_of(quantize(rows, GroupFormat(4, 16), np.float16)).any()
    assert values_of(quantize(rows, GroupFormat(4, 16), np.float32)) == pytest.approx(1e-9)


def test_the_first_of_two_is_in_the_lower_half() -> None:
    assert pack(np.array([[1, 2, 15]], np.uint8), 4).tolist() == [[0x21, 0x0F]]
    assert pack(np.array([[1, 255]], np.uint8), 8).tolist() == [[1, 255]]


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("part", [Integers, Scales, ZeroPoints])
def test_pieces_are_those_of_the_whole(form: GroupFormat, part: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = np.random.default_rng(1).standard_normal((9, 40)).astype(np.float32)
    weight = part(Inline(rows), form, np.float16)
    whole = weight.load()
    assert (whole.shape, whole.dtype, whole.nbytes) == (weight.shape, weight.dtype, weight.nbytes)
    monkeypatch.setattr("sdort.graph.pieces.PIECE", 80)
    pieces = [piece.copy() for piece in weight.pieces()]
    assert len(pieces) == 5  # of two rows each
    np.testing.assert_array_equal(np.concatenate(pieces), whole.reshape(-1))
    stored = sum(p(Inline(rows), form, np.float16).nbytes for p in (Integers, Scales, *[ZeroPoints] * (form.bits == 4)))
    assert stored == form.stored_bytes(9, 40, 2)


def test_rows_are_read_as_they_are_written() -> None:
    """No more of a matrix is in memory than a piece."""
    read: list[int] = []

    class Noted(Weight):
        def pieces(self, row: int = 1) -> Iterator[Array]:
            for _ in range(self.shape[0]):
                read.append(row)
                yield np.ones(row, np.float32)

    made = Integers(Noted((5, 64), np.float32), GroupFormat(4, 32), np.float16).pieces()
    next(made)
    assert read == [64]
    assert sum(1 for _ in made) == 4


def test_parts_have_keys_of_their_own() -> None:
    """Equal ones share a place in the file, others do not."""
    matrix, other = Stored(Path("a"), 0, (8, 64), np.float32), Stored(Path("b"), 0, (8, 64), np.float32)
    eight, four, wide = GroupFormat(8, 32), GroupFormat(4, 32), GroupFormat(4, 64)
    different = [part(each, form, np.float16) for part in (Integers, Scales) for each in (matrix, other)
                 for form in (eight, four, wide)]  # fmt: skip
    keys = [expression_key(each) for each in [*different, Scales(matrix, four, np.float32)]]
    assert len({*keys}) == len(keys)
    assert expression_key(Scales(matrix, four, np.float16)) == expression_key(Scales(matrix, four, np.float16))


def test_a_transpose_of_a_transpose_is_what_it_is_made_of() -> None:
    matrix = Inline(np.arange(6.0, dtype=np.float32).reshape(2, 3))
    assert turned(Transposed(matrix, (1, 0))) is matrix
    np.testing.assert_array_equal(turned(matrix).load(), matrix.array.T)


def test_more_neighbours_and_fewer_bits_are_coarser() -> None:
    """The figures of the default group, of values with a normal distribution."""
    rows = np.random.default_rng(0).standard_normal((256, 1024)).astype(np.float32)
    errors = {
        (bits, group): float(np.std(values_of(quantize(rows, GroupFormat(bits, group), np.float16)) - rows))
        for bits in (4, 8)
        for group in (32, 64, 128)
    }
    assert [round(errors[4, group], 3) for group in (32, 64, 128)] == [0.081, 0.091, 0.101]
    assert all(errors[8, one] < errors[8, two] < 0.1 * errors[4, one] for one, two in pairwise((32, 64, 128)))
