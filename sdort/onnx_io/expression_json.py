"""Weights as JSON: expressions over the parameters of a checkpoint, and over values in the document itself."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from onnx import helper

from sdort.graph.weights import (
    Absent,
    Cast,
    Combined,
    Concatenated,
    Inline,
    Reshaped,
    Scaled,
    Stored,
    Transposed,
    Unwritten,
    Weight,
)
from sdort.onnx_io.check_tensors import ITEMSIZE
from sdort.onnx_io.weight_origins import Expression, Region, region_of, shapes_of

UNREADABLE = (ValueError, KeyError, TypeError, AttributeError, ArithmeticError, IndexError, RecursionError)
"""Errors of reading an expression that somebody made up."""

_MAX_DEPTH = 32
"""Nested expressions; those of the passes have at most seven."""


def _encode_leaf(leaf: Weight) -> Expression:
    match leaf:
        case Absent():
            return {"parameter": leaf.name}
        case Inline():
            values = base64.b64encode(leaf.array.tobytes()).decode()
            return {"values": values, "dtype": _dtype(leaf), "shape": list(leaf.shape)}
    raise TypeError(f"{leaf} has no form in JSON")


def encode(weight: Weight, leaf: Callable[[Weight], Expression] = _encode_leaf) -> Expression:
    """The expression of a weight.

    Args:
        leaf: the expression of what is computed from nothing else.

    Raises:
        TypeError: a part of it has no form in JSON.
    """
    match weight:
        case Transposed():
            return {"transposed": encode(weight.operand, leaf), "perm": list(weight.perm)}
        case Reshaped():
            return {"reshaped": encode(weight.operand, leaf), "shape": list(weight.shape)}
        case Cast():
            return {"cast": encode(weight.operand, leaf), "dtype": _dtype(weight)}
        case Scaled():
            return {"scaled": encode(weight.operand, leaf), "factor": weight.factor}
        case Combined():
            matrix = [list(row) for row in weight.matrix]
            return {"combined": encode(weight.operand, leaf), "axis": weight.axis, "matrix": matrix}
        case Concatenated():
            return {"concatenated": [encode(part, leaf) for part in weight.parts], "axis": weight.axis}
    return leaf(weight)


def decode(entry: Expression, weights: Mapping[str, Weight], depth: int = 0) -> Weight:
    """The weight of an expression over ``weights``.

    Raises:
        As in :data:`UNREADABLE`: it is none.
    """
    if depth > _MAX_DEPTH:
        raise ValueError("an expression is nested too deep")
    match entry:
        case {"parameter": name}:
            return weights[name]
        case {"values": values, "dtype": dtype, "shape": shape}:
            array = np.frombuffer(base64.b64decode(values, validate=True), numpy_dtype(dtype))
            return Inline(array.reshape(shape))
        case {"transposed": operand, "perm": perm}:
            weight = decode(operand, weights, depth + 1)
            if sorted(perm) != list(range(len(weight.shape))):
                raise ValueError(f"{perm} does not order {len(weight.shape)} axes")
            return Transposed(weight, perm)
        case {"reshaped": operand, "shape": shape}:
            return Reshaped(decode(operand, weights, depth + 1), shape)
        case {"cast": operand, "dtype": dtype}:
            return Cast(decode(operand, weights, depth + 1), numpy_dtype(dtype))
        case {"scaled": operand, "factor": factor}:
            return Scaled(decode(operand, weights, depth + 1), factor)
        case {"combined": operand, "axis": axis, "matrix": matrix}:
            return Combined(decode(operand, weights, depth + 1), axis, matrix)
        case {"concatenated": parts, "axis": axis}:
            return _concatenated([decode(part, weights, depth + 1) for part in parts], axis)
    raise ValueError(f"{str(entry)[:80]} is no weight")


def _concatenated(parts: list[Weight], axis: int) -> Weight:
    alike = {(part.shape[:axis], part.shape[axis + 1 :], len(part.shape), part.dtype) for part in parts}
    if axis not in range(len(parts[0].shape)) or len(alike) > 1:
        raise ValueError(f"parts that do not fit together along axis {axis!r}")
    return Concatenated(parts, axis)


def numpy_dtype(number: int) -> np.dtype[Any]:
    """The dtype that ONNX gives a number to.

    Raises:
        ValueError: it gives it to none.
    """
    if number not in ITEMSIZE:
        raise ValueError(f"values of type {number!r}")
    return np.dtype(helper.tensor_dtype_to_np_dtype(number))


def _dtype(weight: Weight) -> int:
    return int(helper.np_dtype_to_tensor_dtype(weight.dtype))


def origins_json(weights: Mapping[str, Weight], known: Mapping[Region, Expression]) -> str | None:
    """The record of what ``weights`` are made of (:mod:`sdort.onnx_io.weight_origins`); None if nothing is known.

    It has matrices and convolutions in float32 or float16.

    Args:
        weights: initializer -> weight.
        known: what stored values are made of; a weight over others is left out.
    """
    origins = {name: origin for name, weight in weights.items() if (origin := _origin(weight, known)) is not None}
    return json.dumps(origins, separators=(",", ":"), sort_keys=True) if origins else None


def _origin(weight: Weight, known: Mapping[Region, Expression]) -> Expression | None:
    if len(weight.shape) < 2 or weight.dtype not in (np.float32, np.float16):
        return None

    def leaf(part: Weight) -> Expression:
        if isinstance(part, Absent):
            return {"parameter": part.name, "shape": list(part.shape)}
        if isinstance(part, (Stored, Unwritten)) and region_of(part) in known:
            return known[region_of(part)]
        raise TypeError(f"{part} is no parameter")

    try:
        return encode(weight, leaf)
    except TypeError:
        return None


def decode_origin(origin: Expression) -> Weight:
    """A recorded expression over absent parameters.

    Raises:
        As in :data:`UNREADABLE`: it is none.
    """
    return decode(origin, {name: Absent(name, shape, np.float32) for name, shape in shapes_of(origin).items()})
