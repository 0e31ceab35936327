"""Weights of drawn expressions over parameters, with the same in numpy, and files that hold them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sdort.graph.signature import Array
from sdort.graph.stored_values import StoredValues
from sdort.graph.weights import (
    Absent,
    Cast,
    Combined,
    Concatenated,
    Reshaped,
    Scaled,
    Transposed,
    Weight,
)
from sdort.onnx_io.expression_json import origins_json
from sdort.onnx_io.overridable import ReplaceableWeight
from sdort.onnx_io.weight_origins import read_origins

Values = dict[str, Array]


@dataclass
class Chain:
    """An expression and the same in numpy, over parameters of the same names."""

    weight: Weight
    compute: Callable[[Values], Array]


def leaf(name: str, shape: tuple[int, ...]) -> Chain:
    return Chain(Absent(name, shape, np.float32), lambda values: values[name])


def grown(random: np.random.Generator, chain: Chain) -> Chain:
    """A chain with one step more; sums come with float16 or not, as the optimizer makes them."""
    weight, compute = chain.weight, chain.compute
    match random.integers(5):
        case 0:
            perm = random.permutation(len(weight.shape))
            return Chain(Transposed(weight, perm.tolist()), lambda values: compute(values).transpose(perm))
        case 1:
            shape = (*weight.shape[:-2], weight.shape[-2] * weight.shape[-1], 1)
            return Chain(Reshaped(weight, shape), lambda values: compute(values).reshape(shape))
        case 2:
            factor = float(random.choice([0.5, -0.25, 3.0]))
            return Chain(Scaled(weight, factor), lambda values: compute(values) * factor)
        case 3:
            axis = int(random.integers(len(weight.shape)))
            matrix = (
                random.integers(-1, 2, (weight.shape[axis] + 1, weight.shape[axis]))
                + np.eye(weight.shape[axis] + 1, weight.shape[axis]) * 3
            )

            def combined(values: Array) -> Array:
                return np.moveaxis(np.tensordot(matrix, values, (1, axis)), 0, axis)

            return Chain(Combined(weight, axis, matrix.tolist()), lambda values: combined(compute(values)))
    return chain


def drawn(seed: int) -> tuple[Chain, dict[str, tuple[int, ...]]]:
    """Parameters, each through some steps, one behind the other, and more steps."""
    random = np.random.default_rng(seed)
    shape = ((4, 6), (4, 2, 3, 3))[seed % 2]
    axis = int(random.integers(len(shape)))
    shapes, parts = {}, []
    for number in range(int(random.integers(1, 4))):
        size = tuple(int(random.integers(1, 5)) if place == axis else side for place, side in enumerate(shape))
        shapes[f"p{number}"] = size
        part = leaf(f"p{number}", size)
        perm = random.permutation(len(size))  # there and back
        turned = Transposed(Transposed(part.weight, perm.tolist()), np.argsort(perm).tolist())
        parts.append(Chain(turned, part.compute))
    computed = [part.compute for part in parts]
    chain = Chain(
        Concatenated([part.weight for part in parts], axis),
        lambda values: np.concatenate([compute(values) for compute in computed], axis),
    )
    for _ in range(int(random.integers(4))):
        chain = grown(random, chain)
    if seed % 3 == 0:
        chain = Chain(Cast(chain.weight, np.float16), chain.compute)
    return chain, shapes


def store(folder: Path, name: str, values: Array) -> StoredValues:
    values.tofile(folder / name)
    return StoredValues(folder / name, 0, values.shape, values.dtype)


def replaceable(folder: Path, name: str, chain: Chain, values: Values) -> ReplaceableWeight:
    """The weight that a chain makes, with its record, as they come from a model's file."""
    record = origins_json({name: chain.weight}, {})
    assert record
    made = chain.compute({key: array.astype(np.float64) for key, array in values.items()})
    stored = store(folder, name, made.astype(chain.weight.dtype))
    return ReplaceableWeight(
        stored, read_origins({"sdort.weights": record})[name], {key: array.shape for key, array in values.items()}
    )
