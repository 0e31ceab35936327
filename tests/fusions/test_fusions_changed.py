"""A fusion relies on nothing that it does not look at: in a graph that is changed anywhere it declines or is right."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator
from onnxruntime.capi.onnxruntime_pybind11_state import Fail as ORTFail
from support.changed_models import OPEN, changed_models, copy
from support.fusion_models import CASES, CHANGED_CASES, TOLERANCE, before_model
from support.small_graphs import run, to_proto

from sdort.errors import SdortError
from sdort.graph.model import Model
from sdort.onnx_io.load import from_proto
from sdort.onnx_io.standard_operators import expand
from sdort.passes import attention_form
from sdort.rewrite.apply import apply_fusion
from sdort.rewrite.editor import Editor
from sdort.rewrite.fusion import Fusion, load_fusions

Array = npt.NDArray[Any]


@pytest.mark.parametrize(("name", "index"), CHANGED_CASES)
def test_a_changed_graph_is_left_or_computed_right(name: str, index: int) -> None:
    fusion = load_fusions()[name]
    rng = np.random.default_rng([*name.encode(), index])
    wrong, tried = [], 0
    for what, changed in changed_models(before_model(fusion, index, rng)):
        tried += 1
        fused = fuse(fusion, changed)
        if fused is not None and (problem := difference(changed, fused, rng)):
            wrong.append(f"{what}: {problem}")
    assert wrong == []
    assert tried > 5


def fuse(fusion: Fusion, proto: onnx.ModelProto) -> Model | None:
    """The model with the fusion applied; None where it is left as it was, or is no valid model to begin with."""
    try:
        model = from_proto(copy(proto), None, "test")
        editor = Editor(model)
        if fusion.stage in ("fuse", "lower"):
            attention_form.run(editor)  # what comes after it takes an Attention to be in the form that it leaves
        matched = apply_fusion(fusion, editor).matched
    except SdortError:
        return None
    editor.finish()
    return model if matched else None


def difference(before: onnx.ModelProto, after: Model, rng: np.random.Generator) -> str | None:
    """In what the two do not compute the same; None where they do, or where the first computes nothing."""
    inputs = feeds(before, rng)
    try:
        wanted = run(before, inputs)
    except Exception:  # a change that makes no sense, which ONNX Runtime says in many ways
        return None
    try:
        found = compute(after, inputs)
    except Exception as error:
        return f"does not run: {error}"
    for one, other in zip(wanted, found, strict=True):
        if one.shape != other.shape:
            return f"shape {other.shape}, not {one.shape}"
        spread = float(np.std(one)) or float(np.abs(one).max()) or 1.0
        if not np.allclose(one, other, rtol=0, atol=TOLERANCE * spread, equal_nan=True):
            return f"off by {np.abs(one - other).max() / spread:.1e} of its spread"
    return None


def compute(model: Model, inputs: dict[str, Array]) -> list[Array]:
    """By ONNX's own definition where ONNX Runtime's kernel lacks a form: its Attention broadcasts no mask."""
    try:
        return run(model, inputs)
    except ORTFail:
        proto = to_proto(model)
        expand(proto)
        return list(ReferenceEvaluator(proto).run(None, inputs))


def feeds(model: onnx.ModelProto, rng: np.random.Generator) -> dict[str, Array]:
    """Random inputs; a size that is open has its number in its name."""
    found = {}
    for info in model.graph.input:
        kind = info.type.tensor_type
        shape = [d.dim_value or int(d.dim_param.removeprefix(OPEN)) for d in kind.shape.dim]
        found[info.name] = rng.standard_normal(shape).astype(np.float32)
    return found


WITH_EPSILON = [case for case in CASES if "epsilon" in load_fusions()[case[0]].module.EXAMPLE]


@pytest.mark.parametrize(("name", "index"), WITH_EPSILON)
def test_an_epsilon_that_counts_is_kept(name: str, index: int) -> None:
    """One of 1e-5 is lost in the tolerance, and it is what is meant where none is stated."""
    fusion, rng = load_fusions()[name], np.random.default_rng(index)
    model = before_model(fusion, index, rng)
    stated = [attribute for node in model.graph.node for attribute in node.attribute if attribute.name == "epsilon"]
    constants = [tensor for tensor in model.graph.initializer if tensor.name == "epsilon"]
    for attribute in stated:
        attribute.f = 0.5
    for tensor in constants:
        tensor.CopyFrom(numpy_helper.from_array(np.full(tensor.dims, 0.5, np.float32), tensor.name))
    assert stated or constants
    fused = fuse(fusion, model)
    assert fused is not None
    assert difference(model, fused, rng) is None
