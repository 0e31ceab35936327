"""A weight's values come whole or in pieces, and are the same."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import sdort.graph.pieces
from sdort.errors import BadModelError
from sdort.graph.overflow import count_infinite, count_overflow, is_finite, subtract_sources
from sdort.graph.signature import Array
from sdort.graph.weights import (
    Absent,
    Cast,
    Combined,
    Concatenated,
    Dequantized,
    Inline,
    Reshaped,
    Scaled,
    Stored,
    Transposed,
    Weight,
    as_weight,
    cast,
    cast_values,
)

BASE = np.random.default_rng(0).standard_normal((6, 4, 20), np.float32)
MATRIX = np.random.default_rng(1).standard_normal((600, 301), np.float32)


def stored(folder: Path, array: Array, offset: int = 24) -> Stored:
    (folder / "weights.bin").write_bytes(b"\xff" * offset + array.tobytes() + b"\xff" * 8)
    return Stored(folder / "weights.bin", offset, array.shape, array.dtype)


SCALES = np.arange(1, 7, dtype=np.float32) / 3
SUMS = [[1, 0, 0, 1], [0, 0, 1, 0], [0, -2, 0, 0], [0, 0, 0, 1]]
Build = Callable[[Weight], Weight]
EXPRESSIONS: list[tuple[Build, Array]] = [
    (lambda w: w, BASE),
    (lambda w: Inline(w.load()), BASE),
    (lambda w: Transposed(w, (0, 2, 1)), BASE.transpose(0, 2, 1)),
    (lambda w: Transposed(w, (2, 0, 1)), BASE.transpose(2, 0, 1)),
    (lambda w: Transposed(w, (0, 1, 2)), BASE),
    (lambda w: Transposed(Reshaped(w, (24, 20)), (1, 0)), BASE.reshape(24, 20).T),
    (lambda w: Reshaped(Transposed(w, (0, 2, 1)), (8, 60)), BASE.transpose(0, 2, 1).reshape(8, 60)),
    (lambda w: Transposed(Reshaped(w, (480,)), (0,)), BASE.reshape(480)),
    (lambda w: Cast(w, np.float16), BASE.astype(np.float16)),
    (lambda w: Cast(w, ml_dtypes.bfloat16), BASE.astype(ml_dtypes.bfloat16)),
    (lambda w: Cast(Cast(w, ml_dtypes.bfloat16), np.float32), BASE.astype(ml_dtypes.bfloat16).astype(np.float32)),
    (lambda w: Scaled(w, 0.3), BASE * np.float32(0.3)),
    (lambda w: Scaled(Cast(w, np.float16), 0.3), (BASE.astype(np.float16) * np.float32(0.3)).astype(np.float16)),
    (lambda w: Dequantized(w, Inline(np.array([0.3], np.float32)), None, 0), BASE * np.float32(0.3)),
    (lambda w: Dequantized(w, Inline(SCALES), None, 0), BASE * SCALES[:, None, None]),
    (lambda w: Concatenated([w, Scaled(w, 2)], 0), np.concatenate([BASE, BASE * 2])),
    (lambda w: Concatenated([w, Scaled(w, 2)], -1), np.concatenate([BASE, BASE * 2], 2)),
    (lambda w: Combined(w, 1, SUMS), np.stack([BASE[:, 0] + BASE[:, 3], BASE[:, 2], -2 * BASE[:, 1], BASE[:, 3]], 1)),
    (lambda w: Combined(w, 0, (np.eye(6)[::2] + np.eye(6)[1::2]).tolist()), BASE[::2] + BASE[1::2]),
    (
        lambda w: cast(Combined(Cast(w, np.float16), -1, np.eye(20)[::2].tolist()), np.float16),
        BASE[:, :, ::2].astype(np.float16),
    ),
    (
        lambda w: Transposed(Concatenated([Scaled(w, 2), w], 0), (0, 2, 1)),
        np.concatenate([BASE * 2, BASE]).transpose(0, 2, 1),
    ),
    (
        lambda w: cast(Transposed(Transposed(w, (1, 0, 2)), (0, 2, 1)), np.float16),
        BASE.transpose(1, 2, 0).astype(np.float16),
    ),
]


@pytest.mark.parametrize("piece", [1, 7, 64, 100, 2**18])
@pytest.mark.parametrize("case", range(len(EXPRESSIONS)))
def test_pieces_are_the_values_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: int, piece: int) -> None:
    monkeypatch.setattr(sdort.graph.pieces, "PIECE", piece)
    build, expected = EXPRESSIONS[case]
    weight = build(stored(tmp_path, BASE))
    assert (weight.shape, weight.dtype) == (expected.shape, expected.dtype)
    np.testing.assert_array_equal(weight.load(), expected)
    for row in (1, 3, 20, 48, expected.size):
        pieces = [each.copy() for each in weight.pieces(row)]
        assert all(each.ndim == 1 and each.size % row == 0 for each in pieces)
        assert all(each.dtype == expected.dtype for each in pieces)
        np.testing.assert_array_equal(np.concatenate(pieces), expected.reshape(-1))


def test_sums_are_rounded_once() -> None:
    """Not 2048 + 1 to 2048, and then 2049 again; rounding is not pushed below the sum either."""
    taps = np.array([[2048.0, 1.0, 1.0, 2.0]], np.float16)
    assert Combined(Inline(taps), 1, [[1, 1, 1, 1]]).load().tolist() == [[2052.0]]
    singles = np.array([[2.0**24, 1.0, 1.0, 2.0]], np.float32)
    assert Combined(Inline(singles), 1, [[1, 1, 1, 1]]).load().tolist() == [[2.0**24 + 4]]
    close = np.array([[1 + 2**-23, 1.0]], np.float32)
    assert Combined(Inline(close), 1, [[3, -3]]).load().tolist() == [[3 * 2.0**-23]]
    fine = Inline(np.array([[1.0, 2.0**-12, 2.0**-12]], np.float32))
    assert cast(Combined(fine, 1, [[1, 1, 1]]), np.float16).load().tolist() == [[np.float16(1 + 2**-11)]]
    assert cast(Combined(fine, 1, [[1, 1, 0]]), np.float16).load().tolist() == [[1.0]]


@pytest.mark.parametrize("matrix", [[], [[1, 0, 0]], [[1, 0, 0, 1], [1]]])
def test_sums_that_do_not_fit_are_refused(matrix: list[list[float]]) -> None:
    with pytest.raises(ValueError, match="a matrix of"):
        Combined(Inline(BASE), 1, matrix)


@pytest.mark.parametrize("piece", [100, 301, 1000, 2**18])
def test_matrices_are_turned_across_tiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece: int) -> None:
    monkeypatch.setattr(sdort.graph.pieces, "PIECE", piece)
    monkeypatch.setattr(sdort.graph.pieces, "TRANSPOSE_TILE", 64)
    weight = Transposed(stored(tmp_path, MATRIX), (1, 0))
    np.testing.assert_array_equal(weight.load(), MATRIX.T)
    np.testing.assert_array_equal(np.concatenate(list(weight.pieces())), MATRIX.T.reshape(-1))


@pytest.mark.parametrize("shape", [(), (1,), (0,), (0, 3), (3, 0)])
def test_scalars_and_tensors_without_elements(tmp_path: Path, shape: tuple[int, ...]) -> None:
    array = np.ones(shape, np.float32)
    leaf = stored(tmp_path, array)
    for weight in (leaf, Inline(array), Scaled(leaf, 1.0), Reshaped(leaf, shape), Transposed(leaf, range(len(shape)))):
        assert weight.load().shape == shape
        assert sum(piece.size for piece in weight.pieces()) == array.size
        assert all(piece.tolist() == [1.0] for piece in weight.pieces() if piece.size)
    assert Cast(leaf, np.float16).load().shape == shape


@pytest.mark.parametrize(
    "build",
    [
        lambda w: Cast(w, np.float16),
        lambda w: Transposed(Cast(Reshaped(w, (4096, 512, 2)), np.float16), (0, 2, 1)),
        lambda w: Dequantized(w, Inline(np.array([0.3], np.float32)), None, 0),
        lambda w: Concatenated([Scaled(w, 2), Cast(Cast(w, np.float16), np.float32)], 0),
    ],
)
def test_pieces_need_little_memory(tmp_path: Path, build: Build) -> None:
    """16 MB of values go through buffers of a piece each."""
    with open(tmp_path / "weights.bin", "wb") as file:
        file.truncate(2**24)
    weight = build(Stored(tmp_path / "weights.bin", 0, (2**22,), np.float32))
    next(iter(weight.pieces()))  # what is imported at the first use
    tracemalloc.start()
    try:
        total = sum(piece.nbytes for piece in weight.pieces())
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert total == weight.nbytes
    assert peak < 5 * sdort.graph.pieces.PIECE * 4


def test_a_file_that_ends_early_or_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sdort.graph.pieces, "PIECE", 64)
    leaf = stored(tmp_path, BASE)
    with open(leaf.path, "r+b") as file:
        file.truncate(24 + BASE.nbytes - 4)
    for values in (leaf.pieces, leaf.load):
        with pytest.raises(BadModelError, match=r"weights\.bin ends 4 bytes before the end of a tensor"):
            list(values())
    leaf.path.unlink()
    for values in (leaf.pieces, leaf.load):
        with pytest.raises(BadModelError, match=r"cannot read the weights .*No such file"):
            list(values())


def test_infinities_are_counted_by_their_bits() -> None:
    halves = np.arange(2**16, dtype=np.uint16).view(np.float16)
    assert count_infinite(halves) == 2
    assert count_infinite(halves.reshape(256, 256)) == 2
    assert count_infinite(halves[~np.isnan(halves)]) == 2
    assert count_infinite(halves[np.isfinite(halves)]) == 0
    assert count_infinite(halves[np.isnan(halves)]) == 0
    assert count_infinite(halves[:0]) == 0
    assert count_infinite(np.array([np.inf], np.float32)) == 0
    assert count_infinite(np.full(4, 0x7C00, np.uint16)) == 0


def test_only_new_infinities_are_overflow(tmp_path: Path) -> None:
    values = np.array([[np.inf, -np.inf, np.nan, 1e6], [-1e6, 65504, 65520, 0]], np.float32)
    weight = Transposed(Cast(stored(tmp_path, values), np.float16), (1, 0))
    assert count_overflow(weight.load(), weight) == 3
    twice = Concatenated([weight, weight], 0)
    assert count_overflow(twice.load(), twice) == 6


# --- numbers in integers ---

BYTES = np.random.default_rng(2).integers(-128, 128, (3, 4, 5)).astype(np.int8)


@pytest.mark.parametrize("axis", [0, 1, 2, None])
@pytest.mark.parametrize("shifted", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_integers_times_their_scales(axis: int | None, shifted: bool, dtype: type) -> None:
    """(values - zero) * scale, along the axis; one of all is as well a scalar as a vector of one."""
    size = 1 if axis is None else BYTES.shape[axis]
    scale: Array = np.linspace(0.25, 2, size).astype(dtype)
    zero = np.arange(-3, size - 3).astype(np.int8)
    place = [1, 1, 1]
    place[axis or 0] = size
    wanted = (BYTES.astype(np.float64) - zero.reshape(place) * shifted) * scale.reshape(place).astype(np.float64)
    for shape in ((size,), ()) if axis is None else ((size,),):
        parts = Inline(scale.reshape(shape)), Inline(zero.reshape(shape)) if shifted else None
        weight = Dequantized(Inline(BYTES), *parts, axis or 0)
        assert (weight.shape, weight.dtype) == (BYTES.shape, np.dtype(dtype))
        np.testing.assert_allclose(weight.load(), wanted.astype(dtype), rtol=1e-3 if dtype == np.float16 else 1e-6)
        np.testing.assert_array_equal(np.concatenate(list(weight.pieces(5))), weight.load().reshape(-1))
        assert list(weight.leaves()) == [weight.operand, weight.scale, *([weight.zero] if shifted else [])]


@pytest.mark.parametrize("part", ["scale", "zero"])
def test_scales_that_do_not_fit_are_refused(part: str) -> None:
    good, wrong = Inline(np.ones(4, np.float32)), Inline(np.ones(5, np.float32))
    Dequantized(Inline(BYTES), good, good, 1)
    parts = (wrong, good) if part == "scale" else (good, wrong)
    with pytest.raises(ValueError, match=r"a scale of shape \(5,\) for \(3, 4, 5\), axis 1"):
        Dequantized(Inline(BYTES), *parts, 1)


# --- rounding, as deep as it may go ---


def test_a_rounding_goes_below_what_moves_values_and_above_what_computes() -> None:
    leaf, half = Inline(BASE), np.dtype(np.float16)
    moved = cast(Concatenated([Transposed(Reshaped(leaf, (24, 20)), (1, 0)), Inline(BASE.reshape(20, 24))], 1), half)
    assert isinstance(moved, Concatenated)
    assert (moved.axis, moved.shape, moved.dtype) == (1, (20, 48), half)
    left, right = moved.parts
    assert isinstance(left, Transposed)
    assert isinstance(left.operand, Reshaped)
    assert isinstance(left.operand.operand, Cast)
    assert isinstance(right, Cast)
    wanted = np.concatenate([BASE.reshape(24, 20).T, BASE.reshape(20, 24)], 1).astype(half)
    np.testing.assert_array_equal(moved.load(), wanted)
    for computed in (Scaled(leaf, 0.3), Combined(leaf, 2, np.eye(20).tolist()), Cast(leaf, np.float64)):
        rounded = cast(computed, half)
        assert isinstance(rounded, Cast)
        assert rounded.operand is computed


def test_values_of_constants_are_rounded_as_they_are() -> None:
    array = cast_values(np.array([1 + 2**-12, 1e6], np.float32), np.float16)
    assert isinstance(array, np.ndarray)
    assert (array.dtype, array.tolist()) == (np.dtype(np.float16), [1.0, np.inf])
    weight = cast_values(Inline(BASE), np.float16)
    assert isinstance(weight, Cast)
    assert as_weight(weight) is weight
    wrapped = as_weight(BASE)
    assert isinstance(wrapped, Inline)
    assert wrapped.load() is BASE


def test_a_scale_is_rounded_once_whatever_the_type() -> None:
    values = np.random.default_rng(5).standard_normal(1000)
    for dtype in (np.float64, np.float32, np.float16, ml_dtypes.bfloat16):
        held, kind = values.astype(dtype), np.dtype(np.float64 if dtype == np.float64 else np.float32)
        wide: Array = held.astype(kind)
        wanted = (wide * np.array(1 / 3, kind)).astype(dtype)
        np.testing.assert_array_equal(Scaled(Inline(held), 1 / 3).load(), wanted)


def test_parameters_without_values_say_what_to_do() -> None:
    with pytest.raises(BadModelError, match="parameter 'p' has no values") as caught:
        Absent("p", (2, 3), np.float32).load()
    assert "Bind a checkpoint to it first (sdort export MODEL OUT)" in (caught.value.hint or "")


def test_a_reshape_keeps_the_number_of_elements() -> None:
    with pytest.raises(ValueError, match=r"cannot reshape \(6, 4, 20\) to \(6, 4, 21\)"):
        Reshaped(Inline(BASE), (6, 4, 21))


def test_sizes_in_bytes_and_leaves_in_order() -> None:
    left, right = Inline(BASE), Inline(BASE[:1])
    both = Concatenated([Cast(left, np.float16), Scaled(Cast(right, np.float16), 2)], 0)
    assert both.nbytes == 7 * 4 * 20 * 2
    assert list(both.leaves()) == [left, right]
    assert str(both) == "Concatenated(shape=(7, 4, 20), dtype=float16)"


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_finite_is_what_has_neither_infinity_nor_nan(dtype: type) -> None:
    largest = np.finfo(dtype).max
    for values, finite in (
        ([], True),
        ([0, -largest, largest], True),
        ([1, np.nan], False),
        ([-np.inf, 1], False),
        ([np.inf], False),
    ):
        assert is_finite(np.array(values, dtype)) is finite


def test_infinities_that_sources_had_are_taken_off() -> None:
    source = Inline(np.array([np.inf, -np.inf, 1e6, 1], np.float32))
    weight = Cast(source, np.float16)
    assert [subtract_sources(count, weight) for count in (3, 2, 0)] == [1, 0, 0]


@pytest.mark.parametrize("row", [0, 1, 7, 100, 2**20])
def test_pieces_are_whole_rows_of_about_one_size(row: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sdort.graph.pieces, "PIECE", 64)
    size = sdort.graph.pieces.piece_size(row) if row else 64
    assert size == max(64 // row, 1) * row if row else size == 64
    values = np.arange(6 * max(row, 1))
    found = list(sdort.graph.pieces.split(values, row))
    assert all(len(piece) % max(row, 1) == 0 for piece in found)
    np.testing.assert_array_equal(np.concatenate(found), values)
    assert (
        sdort.graph.pieces.gather(iter(found), (2, values.size // 2), values.dtype).tolist()
        == values.reshape(2, -1).tolist()
    )
