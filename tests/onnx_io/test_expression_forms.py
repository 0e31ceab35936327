"""Weights as JSON and back, and parameters read back from what was made of them: random expressions in float64."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from sdort.graph.signature import Array
from sdort.graph.weights import Absent, Cast, Combined, Concatenated, Inline, Reshaped, Scaled, Transposed, Weight
from sdort.onnx_io.expression_factors import parameter_values
from sdort.onnx_io.expression_json import UNREADABLE, decode, decode_origin, encode, origins_json

Shape = tuple[int, ...]


class Made:
    """A random expression over parameters, with what it computes."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.values: dict[str, Array] = {}

    def parameter(self, shape: Shape) -> tuple[Weight, Array]:
        name = f"p{len(self.values)}"
        self.values[name] = self.random.standard_normal(shape).astype(np.float32)
        return Absent(name, shape, np.float32), self.values[name].astype(np.float64)

    def expression(self, depth: int, shape: Shape = (4, 6, 2)) -> tuple[Weight, Array]:
        if not depth:
            return self.parameter(shape)
        match self.random.integers(5):
            case 0:
                weight, values = self.expression(depth - 1, shape)
                perm = [int(axis) for axis in self.random.permutation(len(values.shape))]
                return Transposed(weight, perm), values.transpose(perm)
            case 1:
                weight, values = self.expression(depth - 1, shape)
                rows = int(self.random.choice([1, values.shape[0], values.size // values.shape[-1]]))
                new = (rows, values.size // rows)
                return Reshaped(weight, new), values.reshape(new)
            case 2:
                weight, values = self.expression(depth - 1, shape)
                return Scaled(weight, -1.75), values * -1.75
            case 3:
                axis = int(self.random.integers(3))
                parts = [
                    self.parameter(tuple(n + (i if a == axis else 0) for a, n in enumerate(shape))) for i in range(3)
                ]
                return (Concatenated([weight for weight, _ in parts], axis),
                        np.concatenate([values for _, values in parts], axis))  # fmt: skip
            case _:
                weight, values = self.expression(depth - 1, shape)
                axis = int(self.random.integers(len(values.shape)))
                matrix = self.random.standard_normal((values.shape[axis] + 1, values.shape[axis])).tolist()
                moved = np.tensordot(np.array(matrix), values, (1, axis))
                return Combined(weight, axis, matrix), np.moveaxis(moved, 0, axis)


def bound(weight: Weight, values: Mapping[str, Array]) -> Weight:
    """The expression over values, by way of JSON."""
    return decode(json.loads(json.dumps(encode(weight))), {name: Inline(array) for name, array in values.items()})


@pytest.mark.parametrize("seed", range(40))
def test_an_expression_comes_back_and_its_parameters_from_its_values(seed: int) -> None:
    made = Made(seed)
    weight, expected = made.expression(1 + seed % 4)
    found = bound(weight, made.values)
    assert found.shape == weight.shape == expected.shape
    np.testing.assert_allclose(found.load(), expected, rtol=1e-4, atol=1e-4)
    back = dict(parameter_values(weight, found.load()))
    assert back.keys() == made.values.keys()
    for name, array in made.values.items():
        assert back[name].shape == array.shape
        assert back[name].dtype == np.float32
        np.testing.assert_allclose(back[name], array, rtol=5e-3, atol=5e-3)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.int64, np.int8, np.bool_])
def test_values_of_each_type(dtype: Any) -> None:
    array = np.arange(6).reshape(2, 3).astype(dtype)
    found = bound(Inline(array), {}).load()
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, array)
    cast = bound(Cast(Inline(np.ones((2, 2), np.float32)), dtype), {})
    assert cast.dtype == dtype


P = {"parameter": "p"}
BROKEN: list[Any] = [
    {"parameter": "q"}, {}, {"transposed": P, "perm": [0, 0]}, {"transposed": P, "perm": [0]},
    {"transposed": P, "perm": [0, 1, 2]}, {"transposed": P}, {"reshaped": P, "shape": [5]}, {"cast": P, "dtype": 8},
    {"cast": P, "dtype": 99}, {"combined": P, "axis": 0, "matrix": [[1.0]]},
    {"concatenated": [P, {"transposed": P, "perm": [1, 0]}], "axis": 0}, {"concatenated": [P, P], "axis": 2},
    {"concatenated": [], "axis": 0}, {"concatenated": [P, {"cast": P, "dtype": 10}], "axis": 0},
    {"values": "?", "dtype": 1, "shape": [1]}, {"values": "AAAA", "dtype": 1, "shape": [1]}, 5, None,
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(BROKEN)))
def test_what_is_no_expression(number: int) -> None:
    with pytest.raises(UNREADABLE):
        decode(BROKEN[number], {"p": Inline(np.ones((2, 3), np.float32))})


def test_expressions_are_nested_32_deep_at_most() -> None:
    entry: Any = {"parameter": "p", "shape": [2]}
    for _ in range(32):
        entry = {"scaled": entry, "factor": 1.0}
    assert decode_origin(entry).shape == (2,)
    with pytest.raises(ValueError, match="nested too deep"):
        decode_origin({"scaled": entry, "factor": 1.0})


def test_the_record_has_matrices_of_floats_alone() -> None:
    matrix, vector = Absent("a", (2, 3), np.float32), Absent("b", (3,), np.float32)
    known = {"parameter": "a", "shape": [2, 3]}
    weights: dict[str, Weight] = {
        "matrix": matrix, "half": Cast(matrix, np.float16), "double": Cast(matrix, np.float64), "vector": vector,
        "number": Cast(matrix, np.int64), "turned": Transposed(matrix, (1, 0)), "values": Inline(np.ones((2, 2), "f4")),
        "mixed": Concatenated([matrix, Inline(np.ones((2, 3), np.float32))], 0), "column": Reshaped(vector, (3, 1)),
    }  # fmt: skip
    record = json.loads(origins_json(weights, {}) or "")
    assert record == {
        "column": {"reshaped": {"parameter": "b", "shape": [3]}, "shape": [3, 1]}, "half": {"cast": known, "dtype": 10},
        "matrix": known, "turned": {"transposed": known, "perm": [1, 0]},
    }  # fmt: skip
    assert list(record) == sorted(record)
    assert origins_json({"vector": vector}, {}) is None
    assert decode_origin(record["turned"]).shape == (3, 2)


def test_a_part_that_is_no_parameter_is_refused() -> None:
    with pytest.raises(ValueError, match="is no parameter"):
        list(parameter_values(Inline(np.ones(2, np.float32)), np.ones(2, np.float32)))
    half = Cast(Absent("a", (2,), np.float32), np.float16)
    ((name, values),) = parameter_values(half, np.array([1.5, 2.5], np.float16))
    assert (name, values.tolist()) == ("a", [1.5, 2.5])
    assert values.dtype == np.float32
