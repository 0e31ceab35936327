"""SkipLayerNormalization: ``l<lanes a row>v<vectors a lane>``; S is exact but for its rounding."""

from __future__ import annotations

from support.row_cases import Array, NormInputs, Rows, norm_exact, norm_inputs
from support.rows import Inputs, Promise, Results, RowOperator, held, leading_axis, rounded_once


def inputs(case: Rows) -> Inputs:
    return dict(vars(norm_inputs(case)))


def results(case: Rows, tensors: Inputs) -> Results:
    exact, error, total = norm_exact(case, NormInputs(**tensors))  # type: ignore[arg-type]
    return {"y": (exact, error)} | ({"sum": rounded_once(total, case.dtype)} if "sum" in case.optional else {})


def as_input(case: Rows, name: str, value: Array) -> Array:
    """X as (N, S, C) for a skip of (S, C)."""
    return value.reshape(-1, case.skip_rows, case.width) if name == "x" else leading_axis(case, name, value)


def promise(variant: str, nvidia: bool) -> Promise:
    if variant == "wide":
        return Promise(12 if nvidia else 16)
    vectors = int(variant[-1])
    blocks = {1: 12, 2: 8, 3: 6, 5: 3}[vectors] if nvidia else {1: 16, 2: 12, 3: 8, 5: 6}[vectors]
    return Promise(blocks, 2 * vectors, 5 * vectors, 2 * vectors)  # X, skip, gamma, beta, bias; Y, S


OPERATOR = RowOperator(
    "SkipLayerNormalization",
    inputs,
    results,
    held,
    promise,
    outputs={"y": 0, "sum": 3},
    attributes=lambda case: {"epsilon": case.epsilon},
    as_input=as_input,
)
