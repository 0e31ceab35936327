"""Whatever form of Attention comes in, every target gets one that it runs, and it computes what was asked for."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator
from support.attention_forms import DOUBLE, FLOAT, HALF, Form, expected, inputs_of, model_of, random_form
from support.small_graphs import run, to_proto

from sdort.lowering.component_report import ComponentReport
from sdort.lowering.steps import OptimizeOptions, optimize_model
from sdort.onnx_io.load import from_proto
from sdort.providers import PROVIDER_NAMES, load_target

MASKS = ("float", "bool", "infinite")
SINGLE = (
    Form(), Form(apart=True), Form(kv_heads=2), Form(apart=True, kv_heads=1), Form(value_size=6), Form(past=3),
    Form(apart=True, past=3, causal=True), Form(causal=True), Form(causal=True, rows=7, keys=5),
    Form(causal=True, keys=5), Form(causal=True, keys=5, past=2, kv_heads=2), Form(causal=True, keys=2, past=3),
    Form(scale=0.3), Form(softcap=1.5),
    Form(precision=FLOAT), Form(precision=HALF), Form(precision=DOUBLE),
    *(Form(mode=mode, softcap=1.5, causal=True, keys=5) for mode in range(4)),
    *(Form(mask=mask, axes=axes) for mask in MASKS for axes in ("rk", "nrk", "b1rk", "bnrk", "b11k")),
    Form(mask="bool", short=2), Form(mask="infinite", axes="1k"), Form(mask="bool", causal=True, keys=5),
    Form(mask="bool", mode=3), Form(mask="infinite", mode=2, causal=True),
)  # fmt: skip
"""Each property alone, and the pairs that meet in one step."""
DRAWN = 40
TOLERANCE = {"fp32": 2e-5, "fp16": 1e-2}
"""Absolute, of results around 1: 24 and 11 bits, over sums of some ten products."""


def drawn(index: int) -> Form:
    return random_form(np.random.default_rng([20261122, index]))


def optimized(model: onnx.ModelProto, target: str, fp16: bool = False) -> tuple[onnx.ModelProto, ComponentReport]:
    loaded = from_proto(onnx.ModelProto.FromString(model.SerializeToString()), None, "unet")
    report = optimize_model(loaded, OptimizeOptions(load_target(target), fp16))
    return to_proto(loaded), report


def check(form: Form, target: str, precision: str, seed: int = 0) -> ComponentReport:
    """``half`` inputs are in fp16 from the start; ``fp16`` is converted."""
    inputs = inputs_of(form, np.random.default_rng([seed, 7]))
    dtype = HALF if precision == "half" else FLOAT
    proto, report = optimized(model_of(form, inputs, dtype), target, precision == "fp16")
    assert report.misses == []
    assert all(node.op_type != "Attention" or node.domain for node in proto.graph.node)
    feeds = {n: v.astype(np.float16) if dtype == HALF and v.dtype == np.float32 else v for n, v in inputs.items()}
    found = dict(zip([o.name for o in proto.graph.output], run(proto, feeds, target), strict=True))
    wanted = expected(form, feeds)
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        assert found[name].shape == value.shape
        tolerance = TOLERANCE["fp32" if precision == "fp32" else "fp16"]
        np.testing.assert_allclose(found[name].astype(np.float64), value, rtol=0, atol=tolerance, err_msg=name)
    return report


@pytest.mark.parametrize("form", SINGLE, ids=str)
def test_the_expectation_is_onnx_s(form: Form) -> None:
    """The float64 definition of these tests against ONNX's reference implementation."""
    inputs = inputs_of(form, np.random.default_rng([0, 7]))
    model = model_of(form, inputs)
    found = dict(zip([o.name for o in model.graph.output], ReferenceEvaluator(model).run(None, inputs), strict=True))
    wanted = expected(form, inputs)
    if form.mode == 0 and form.softcap:
        del wanted["scores"]  # the reference caps what the specification says is not
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, rtol=0, atol=2e-3 if form.precision == HALF else 1e-5)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("target", PROVIDER_NAMES)
@pytest.mark.parametrize("form", SINGLE, ids=str)
def test_every_form_on_every_target(form: Form, target: str, precision: str) -> None:
    check(form, target, precision)


@pytest.mark.parametrize("index", range(DRAWN), ids=lambda index: f"{index}-{drawn(index)}")
def test_drawn_forms(index: int) -> None:
    """Any properties together; the targets and precisions take turns."""
    form = drawn(index)
    for number, target in enumerate(PROVIDER_NAMES):
        check(form, target, ("fp32", "fp16", "half")[(index + number) % 3], index)
