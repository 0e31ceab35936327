"""InterleavePhases: sums are exact, so they are rounded once. Heights and widths are even and odd."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from support.row_cases import Rows
from support.rows import Array, Inputs, Promise, Results, RowOperator, rounded_once, rows_of


def sizes(case: Rows) -> dict[str, int]:
    """Height and width of the result: two factors of the rows, the larger one first for every second seed."""
    pixels = case.rows // images(case)
    small = max(n for n in range(1, math.isqrt(pixels) + 1) if pixels % n == 0)
    height, width = (small, pixels // small)[:: 1 - 2 * (case.seed % 2)]
    return {"height": height, "image_width": width}


def images(case: Rows) -> int:
    return 2 if case.rows % 2 == 0 and case.seed % 3 else 1


def inputs(case: Rows) -> Inputs:
    height, width = sizes(case).values()
    grid = [size // 2 + 1 + 2 * (size % 2) for size in (height, width)]
    image = np.zeros((images(case), (height + 1) // 2, (width + 1) // 2, 1), case.dtype)
    x = case.grid(0, images(case), *grid, 4 * case.width, mean=case.mean)
    return {"x": x, "bias": case.grid(1, case.width), "image": image}


def interleaved(phases: Array, axis: int, size: int) -> Array:
    """One axis of phases, in (.., rows, .., 2, ..) with the phase on the axis that follows, as the rows of an image."""
    phases = np.moveaxis(phases, (axis, axis + 1), (0, 1))
    rows = [phases[k // 2 + k % 2, k % 2] for k in range(size)]
    if size % 2:
        rows[-1] = rows[-1] - phases[size // 2 + 1, 1] + phases[size // 2 + 2, 1]
    return np.moveaxis(np.stack(rows), 0, axis)


def results(case: Rows, tensors: Inputs) -> Results:
    x, bias = np.asarray(tensors["x"], np.float64), np.asarray(tensors["bias"], np.float64)
    height, width = sizes(case).values()
    apart = x.reshape(*x.shape[:3], 2, 2, case.width).transpose(0, 1, 3, 2, 4, 5)
    exact = interleaved(interleaved(apart, 1, height), 2, width) + bias
    return {"y": rounded_once(exact, case.dtype)}


def variants(dtype: Any, wave: int) -> Iterator[tuple[str, Rows]]:
    """Images of two odd sizes, more vectors a row than a block has threads, and the second of two images."""
    lanes = 16 // np.dtype(dtype).itemsize
    for pixels in (2, 4):
        yield f"p{pixels}", rows_of(dtype, 3 * 7 + 14 * (pixels - 1), 41 * lanes)
    yield "narrow", rows_of(dtype, 5 * 14, 7)


def promise(variant: str, nvidia: bool) -> Promise:
    if variant == "narrow":
        return Promise(blocks=8)
    pixels = int(variant[1])
    return Promise(blocks={2: 4, 4: 3}[pixels], in_flight=pixels, loads=pixels + 2, stores=pixels)


OPERATOR = RowOperator(
    "InterleavePhases",
    inputs,
    results,
    variants,
    promise,
    domain="sdort",
    sizes=sizes,
    shapes_alone=frozenset({"image"}),
)
