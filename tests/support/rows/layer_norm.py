"""ONNX's LayerNormalization over the last axis: ``l<lanes a row>v<vectors a lane>``."""

from __future__ import annotations

from support.row_cases import NormInputs, Rows, norm_exact, norm_inputs
from support.rows import Inputs, Promise, Results, RowOperator, held


def inputs(case: Rows) -> Inputs:
    """As of SkipLayerNormalization, but for what is added."""
    all_inputs = norm_inputs(case)
    return {"x": all_inputs.x, "gamma": all_inputs.gamma, "beta": all_inputs.beta}


def results(case: Rows, tensors: Inputs) -> Results:
    given = NormInputs(**tensors, skip=None, bias=None)  # type: ignore[arg-type]
    exact, error, _ = norm_exact(case, given)
    return {"y": (exact, error)}


def promise(variant: str, nvidia: bool) -> Promise:
    if variant == "wide":
        return Promise(16)
    vectors = int(variant[-1])
    blocks = {1: 16, 2: 9, 3: 7, 5: 4}[vectors] if nvidia else {1: 16, 2: 16, 3: 12, 5: 8}[vectors]
    return Promise(blocks, vectors, 3 * vectors, vectors)  # X, gamma, beta; Y


OPERATOR = RowOperator(
    "LayerNormalization",
    inputs,
    results,
    held,
    promise,
    attributes=lambda case: {"epsilon": case.epsilon},
    domain="",
)
