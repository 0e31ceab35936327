"""RotaryEmbedding; of cases that are drawn with a bias, RMSNormRotaryEmbedding.

A row is a head of twice the width. Some tokens have two heads; tables are those of one image, or of each.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from support.group_norm_cases import tolerance
from support.row_cases import Rows, normal
from support.rows import Array, Inputs, Promise, Results, RowOperator, rows_of


def sizes(case: Rows) -> dict[str, int]:
    """Heads of a token, and rows of the tables: those of one image, or of two."""
    heads = 2 if case.rows % 2 == 0 else 1
    tokens = case.rows // heads
    return {"heads": heads, "table_rows": tokens // images(case) if case.seed % 3 else tokens}


def images(case: Rows) -> int:
    return 2 if case.rows % 4 == 0 else 1


def inputs(case: Rows) -> Inputs:
    x = case.grid(0, case.rows, 2 * case.width)
    rng = np.random.default_rng([case.seed, 1])
    angles = rng.uniform(-np.pi, np.pi, (sizes(case)["table_rows"], case.width))
    scale = normal(rng, 2 * case.width, dtype=case.dtype) if "bias" in case.optional else None
    tables = [np.ascontiguousarray(table.astype(case.dtype)) for table in (np.cos(angles), np.sin(angles))]
    return {"x": x, "scale": scale, "cos": tables[0], "sin": tables[1]}


def attributes(case: Rows) -> dict[str, Any]:
    return {"interleaved": case.seed // 2 % 2, "epsilon": case.epsilon}


def pairs(values: Array, case: Rows) -> tuple[Array, Array]:
    """First and second elements, each of rows x width."""
    parted = values.reshape((-1, case.width, 2) if attributes(case)["interleaved"] else (-1, 2, case.width))
    axis = 2 if attributes(case)["interleaved"] else 1
    return parted.take(0, axis), parted.take(1, axis)


def joined(first: Array, second: Array, case: Rows) -> Array:
    return np.stack((first, second), 2 if attributes(case)["interleaved"] else 1).reshape(case.rows, 2 * case.width)


def results(case: Rows, tensors: Inputs) -> Results:
    """What float32 loses: rounding of every product and sum, of the squares' sum, and of its root."""
    x, scale = np.asarray(tensors["x"], np.float64), tensors["scale"]
    lost = 4.0
    if scale is not None:
        x = x / np.sqrt((x**2).mean(-1, keepdims=True) + case.epsilon) * scale.astype(np.float64)
        lost += 8 + 2 * case.width / 32
    places = np.arange(case.rows) // sizes(case)["heads"] % sizes(case)["table_rows"]
    cos, sin = (np.asarray(tensors[name], np.float64)[places] for name in ("cos", "sin"))
    a, b = pairs(x, case)
    exact = joined(a * cos - b * sin, b * cos + a * sin, case)
    most = joined(np.abs(a * cos) + np.abs(b * sin), np.abs(b * cos) + np.abs(a * sin), case)
    return {"y": (exact, tolerance(exact, most * 2.0**-24 * lost, case.dtype))}


def variants(dtype: Any, wave: int) -> Iterator[tuple[str, Rows]]:
    """A row more than a block has, each a vector less than its lanes have room for."""
    elements = 16 // np.dtype(dtype).itemsize
    for layout, seed in (("halves", 0), ("pairs", 2)):
        for lanes in (4, 8, 16, 32):
            yield f"{layout}_l{lanes}", replace(rows_of(dtype, 128 // lanes + 1, (lanes - 1) * elements), seed=seed)
        yield f"{layout}_wide", replace(rows_of(dtype, 9, 101), seed=seed)


def promise(variant: str, nvidia: bool) -> Promise:
    if variant.endswith("wide"):
        return Promise(blocks=16)
    return Promise(blocks=9 if nvidia else 16, in_flight=4, loads=6, stores=2)  # X, cos, sin, the scale; Y


def as_input(case: Rows, name: str, value: Array) -> Array:
    """X as (B, S, heads * size), tables as (1 or B, S, size / 2)."""
    if name == "scale":
        return value
    tokens = case.rows // sizes(case)["heads"] // images(case)
    return value.reshape(-1, tokens, value.size // value.shape[0] * (sizes(case)["heads"] if name == "x" else 1))


@dataclass(frozen=True)
class Turned(RowOperator):
    """Of two operators: which one a case's node is, its scale says."""

    def node(self, case: Rows) -> tuple[str, dict[str, Array | None], list[str], dict[str, Any]]:
        name, given, outputs, options = super().node(case)
        if given["scale"] is not None:
            return f"RMSNorm{name}", given, outputs, options
        del given["scale"], options["epsilon"]
        return name, given, outputs, options


OPERATOR = Turned(
    "RotaryEmbedding",
    inputs,
    results,
    variants,
    promise,
    attributes=attributes,
    as_input=as_input,
    domain="sdort",
    sizes=sizes,
)
