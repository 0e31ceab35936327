"""GatedSum: of one image, or of two."""

from __future__ import annotations

from typing import Any

import numpy as np
from support.group_norm_cases import tolerance
from support.row_cases import Rows, normal
from support.rows import Array, Inputs, Promise, Results, RowOperator


def image_rows(case: Rows) -> int:
    return case.rows // images(case)


def images(case: Rows) -> int:
    return 2 if case.rows % 2 == 0 else 1


def inputs(case: Rows) -> Inputs:
    x, branch = (case.grid(i, case.rows, case.width, mean=case.mean) for i in (0, 1))
    gate = normal(np.random.default_rng([case.seed, 3]), images(case), case.width, dtype=case.dtype, scale=0.25)
    return {"x": x, "branch": branch, "bias": case.grid(2, case.width), "gate": gate}


def sum_of(case: Rows, tensors: dict[str, Any]) -> tuple[Array, Array]:
    """The sum, and the sizes of its terms, each of which float32 rounds."""
    x, branch, bias, gate = (np.asarray(tensors[name], np.float64) for name in ("x", "branch", "bias", "gate"))
    gate = np.repeat(gate, image_rows(case), 0)
    return x + gate * (branch + bias), np.abs(x) + 2 * np.abs(gate) * (np.abs(branch) + np.abs(bias))


def results(case: Rows, tensors: Inputs) -> Results:
    exact, sizes = sum_of(case, dict(tensors))
    return {"y": (exact, tolerance(exact, sizes * 2.0**-24 * 2, case.dtype))}


def promise(variant: str, nvidia: bool) -> Promise:
    if variant == "narrow":
        return Promise(blocks=8)
    return Promise(blocks=6 if nvidia else 8, in_flight=3, loads=4, stores=1)  # X, branch, gate, bias; Y


def as_input(case: Rows, name: str, value: Array) -> Array:
    """Rows as (B, S, C), gates as (B, 1, C)."""
    return value if name == "bias" else value.reshape(images(case), -1, case.width)


OPERATOR = RowOperator(
    "GatedSum",
    inputs,
    results,
    promise=promise,
    as_input=as_input,
    domain="sdort",
    sizes=lambda case: {"image_rows": image_rows(case)},
)
