"""BiasSplitGelu: ``r1``, ``r2`` and ``r4`` have so many rows on their way."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from support.row_cases import Rows, split_gelu, split_gelu_error
from support.rows import Inputs, Promise, Results, RowOperator, rows_of


def inputs(case: Rows) -> Inputs:
    return {"x": case.grid(0, case.rows, 2 * case.width), "bias": case.grid(1, 2 * case.width)}


def results(case: Rows, tensors: Inputs) -> Results:
    x, bias = tensors["x"], tensors["bias"]
    assert x is not None
    assert bias is not None
    return {"y": (split_gelu(x, bias), split_gelu_error(x, bias, case.dtype))}


def variants(dtype: Any, wave: int) -> Iterator[tuple[str, Rows]]:
    """A row of more than 1024 vectors is begun alone; four more follow: one by one, by twos, all together."""
    for variant in ("r1", "r2", "r4"):
        yield variant, rows_of(dtype, 5, 1025 * (16 // np.dtype(dtype).itemsize), spread=2.0)
    yield "narrow", rows_of(dtype, 2, 1027, spread=2.0)


def promise(variant: str, nvidia: bool) -> Promise:
    rows = 1 if variant == "narrow" else int(variant[1])
    blocks = {1: 5, 2: 4, 4: 3}[rows] if nvidia else {1: 8, 2: 8, 4: 6}[rows]
    if variant == "narrow":
        return Promise(blocks)
    return Promise(blocks, 2 * rows, 2 + 2 * rows, rows)  # two halves of the bias and of each row; Y


OPERATOR = RowOperator("BiasSplitGelu", inputs, results, variants, promise, spread=3.0)
