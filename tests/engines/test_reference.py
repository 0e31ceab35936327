"""Definitions that stand in for GPU operators, against formulas in float64 and ONNX Runtime's kernels."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
import pytest
from onnx import helper

from sdort.errors import BadModelError
from sdort.onnx_io.standard_operators import REFERENCE_DOMAIN, expand

Array = npt.NDArray[Any]
RNG = np.random.default_rng(7)
# A float16 result is rounded once from a float32 one: half a unit in the last place, and one more for sums in float16.
TOLERANCE = {np.float32: 2e-6, np.float16: 2e-3}


def normal(*shape: int) -> Array:
    return RNG.standard_normal(shape)


def model_of(
    op: str, inputs: Mapping[str, Array | None], outputs: list[str], opset: int = 22, **attributes: Any
) -> Any:
    """A model of one com.microsoft node; an input that is None is left out."""
    present = {name: value for name, value in inputs.items() if value is not None}
    node = helper.make_node(
        op, [name if name in present else "" for name in inputs], outputs, "node", domain="com.microsoft", **attributes
    )
    graph = helper.make_graph(
        [node],
        "graph",
        [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), [None] * value.ndim)
            for name, value in present.items()
        ],
        [helper.make_empty_tensor_value_info(name) for name in outputs if name],
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def run(model: onnx.ModelProto, inputs: Mapping[str, Array | None]) -> list[Array]:
    options = ort.SessionOptions()
    options.log_severity_level = 4  # refusals are asserted, not logged
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    results: list[Array] = session.run(None, {name: value for name, value in inputs.items() if value is not None})
    return results


def evaluate(
    op: str,
    dtype: Any,
    inputs: Mapping[str, Array | None],
    outputs: list[str],
    keep: tuple[str, ...] = (),
    **attributes: Any,
) -> list[Array]:
    """Run one node through the reference in ``dtype``; the inputs named in ``keep`` stay as they are."""
    cast = {
        name: value if value is None or name in keep or value.dtype.kind != "f" else value.astype(dtype)
        for name, value in inputs.items()
    }
    model = model_of(op, cast, outputs, **attributes)
    assert expand(model) == 1
    results = run(model, cast)
    assert all(result.dtype == dtype for result in results)
    return results


def close(result: Array, expected: Array, dtype: Any) -> None:
    assert result.shape == expected.shape
    np.testing.assert_allclose(
        result.astype(np.float64), expected, rtol=0, atol=TOLERANCE[dtype] * np.abs(expected).max()
    )


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def group_norm(x: Array, gamma: Array, beta: Array, groups: int, epsilon: float, silu: bool) -> Array:
    """(N, H, W, C) in float64."""
    n, h, w, c = x.shape
    grouped = x.reshape(n, h * w, groups, c // groups)
    mean = grouped.mean(axis=(1, 3), keepdims=True)
    variance = grouped.var(axis=(1, 3), keepdims=True)
    y = ((grouped - mean) / np.sqrt(variance + epsilon)).reshape(x.shape) * gamma + beta
    result: Array = y * sigmoid(y) if silu else y
    return result


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("silu", [0, 1])
@pytest.mark.parametrize("channels_last", [0, 1])
def test_group_norm(dtype: Any, silu: int, channels_last: int) -> None:
    x, gamma, beta = normal(2, 3, 5, 12) * 2 + 1, normal(12), normal(12)
    expected = group_norm(x.astype(dtype).astype(np.float64), gamma, beta, 4, 0.01, bool(silu))
    inputs = {"x": x, "gamma": gamma.astype(np.float32), "beta": beta.astype(np.float32)}
    if not channels_last:
        inputs["x"], expected = x.transpose(0, 3, 1, 2), expected.transpose(0, 3, 1, 2)
    settings: dict[str, Any] = {"groups": 4, "epsilon": 0.01, "activation": silu, "channels_last": channels_last}
    (y,) = evaluate("GroupNorm", dtype, inputs, ["y"], keep=("gamma", "beta"), **settings)
    close(y, expected, dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("skip_shape", [(2, 3, 5, 12), (2, 1, 1, 12), (2, 12)])
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("with_sum", [False, True])
def test_skip_group_norm(dtype: Any, skip_shape: tuple[int, ...], with_bias: bool, with_sum: bool) -> None:
    gamma, beta = normal(12).astype(np.float32), normal(12).astype(np.float32)
    x, skip, bias = (values.astype(dtype) for values in (normal(2, 3, 5, 12), normal(*skip_shape), normal(12)))
    wide_skip = skip.astype(np.float64).reshape(2, 1, 1, 12) if len(skip_shape) == 2 else skip.astype(np.float64)
    total = x.astype(np.float64) + wide_skip + (bias.astype(np.float64) if with_bias else 0)
    inputs = {"x": x, "gamma": gamma, "beta": beta, "skip": skip, "bias": bias if with_bias else None}
    outputs = ["y", "s"] if with_sum else ["y"]
    settings: dict[str, Any] = {"groups": 3, "epsilon": 1e-5, "activation": 1}
    results = evaluate("SkipGroupNorm", dtype, inputs, outputs, keep=("gamma", "beta"), **settings)
    close(results[0], group_norm(total, gamma, beta, 3, 1e-5, True), dtype)
    if with_sum:
        close(results[1], total, dtype)


def convolve(x: Array, w: Array, bias: Array, strides: tuple[int, int], pads: tuple[int, int, int, int]) -> Array:
    """(N, H, W, C) by (M, kH, kW, C) in float64, straight from the definition."""
    x = np.pad(x, ((0, 0), (pads[0], pads[2]), (pads[1], pads[3]), (0, 0)))
    height = (x.shape[1] - w.shape[1]) // strides[0] + 1
    width = (x.shape[2] - w.shape[2]) // strides[1] + 1
    y = np.zeros((x.shape[0], height, width, w.shape[0]))
    for i in range(height):
        for j in range(width):
            top, left = i * strides[0], j * strides[1]
            window = x[:, top : top + w.shape[1], left : left + w.shape[2]]
            y[:, i, j] = np.einsum("nhwc,mhwc->nm", window, w)
    return y + bias


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("with_bias", [False, True])
def test_nhwc_conv(dtype: Any, with_bias: bool) -> None:
    x, w, bias = (values.astype(dtype) for values in (normal(2, 7, 6, 4), normal(5, 3, 2, 4), normal(5)))
    strides, pads = (2, 1), (1, 0, 0, 1)
    inputs = {"x": x, "w": w, "b": bias if with_bias else None}
    settings: dict[str, Any] = {
        "strides": strides,
        "pads": pads,
        "kernel_shape": (3, 2),
        "dilations": (1, 1),
        "group": 1,
    }
    (y,) = evaluate("NhwcConv", dtype, inputs, ["y"], **settings)
    wide = x.astype(np.float64), w.astype(np.float64), bias.astype(np.float64) * with_bias
    close(y, convolve(*wide, strides, pads), dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_bias_split_gelu(dtype: Any) -> None:
    x, bias = (3 * normal(2, 5, 8)).astype(dtype), normal(8).astype(dtype)
    (y,) = evaluate("BiasSplitGelu", dtype, {"x": x, "bias": bias}, ["y"])
    left, right = np.split(x.astype(np.float64) + bias, 2, axis=-1)
    close(y, left * right * 0.5 * (1 + np.vectorize(math.erf)(right / math.sqrt(2))), dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_bias_add(dtype: Any) -> None:
    x, bias, skip = (values.astype(dtype) for values in (normal(2, 5, 8), normal(8), normal(2, 5, 8)))
    (y,) = evaluate("BiasAdd", dtype, {"x": x, "bias": bias, "skip": skip}, ["y"])
    close(y, x.astype(np.float64) + bias + skip, dtype)


def attention(q: Array, k: Array, v: Array, scale: float, causal: bool) -> Array:
    """(B, S, heads, size) in float64, merged to (B, S, heads * size)."""
    scores = np.einsum("bqhd,bkhd->bhqk", q, k) * scale
    if causal:
        scores = np.where(np.tril(np.ones(scores.shape[-2:])), scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    mixed: Array = np.einsum("bhqk,bkhd->bqhd", weights, v)
    return mixed.reshape(q.shape[0], q.shape[1], -1)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("settings", [{}, {"scale": 0.3}, {"unidirectional": 1}])
def test_packed_self_attention(dtype: Any, settings: dict[str, Any]) -> None:
    qkv = normal(2, 6, 3, 3, 4).astype(dtype)  # B, S, heads, 3, size
    (y,) = evaluate("MultiHeadAttention", dtype, {"qkv": qkv}, ["y"], num_heads=3, **settings)
    q, k, v = np.moveaxis(qkv.astype(np.float64), 3, 0)
    close(y, attention(q, k, v, settings.get("scale", 4**-0.5), "unidirectional" in settings), dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_packed_cross_attention(dtype: Any) -> None:
    query, kv = normal(2, 5, 12).astype(dtype), normal(2, 7, 3, 2, 4).astype(dtype)
    (y,) = evaluate("MultiHeadAttention", dtype, {"query": query, "kv": kv}, ["y"], num_heads=3)
    k, v = np.moveaxis(kv.astype(np.float64), 3, 0)
    close(y, attention(query.astype(np.float64).reshape(2, 5, 3, 4), k, v, 0.5, False), dtype)


def test_packed_attention_hands_its_other_inputs_to_the_kernel() -> None:
    """ONNX Runtime's own kernel on the unpacked tensors, with a bias added to the scores."""
    query, kv, bias = (
        values.astype(np.float32) for values in (normal(2, 5, 12), normal(2, 7, 3, 2, 4), normal(2, 1, 5, 7))
    )
    absent: dict[str, Array | None] = {"value": None, "projection_bias": None, "mask": None}
    packed: dict[str, Array | None] = {"query": query, "key": kv, **absent, "scores": bias}
    (y,) = evaluate("MultiHeadAttention", np.float32, packed, ["y"], num_heads=3)
    halves = {"key": kv[:, :, :, 0].reshape(2, 7, 12), "value": kv[:, :, :, 1].reshape(2, 7, 12)}
    unpacked = {**packed, **halves}
    model = model_of("MultiHeadAttention", unpacked, ["y"], num_heads=3)
    assert expand(model) == 0
    np.testing.assert_array_equal(y, run(model, unpacked)[0])


def test_nodes_of_one_form_share_a_function_and_weights_stay() -> None:
    model = model_of("BiasAdd", {"x": normal(1, 2, 4), "bias": normal(4), "skip": normal(1, 2, 4)}, ["y"])
    again = helper.make_node("BiasAdd", ["y", "bias", "skip"], ["z"], domain="com.microsoft")
    model.graph.node.append(again)
    external = model.graph.initializer.add(name="bias", dims=[4], data_type=1, data_location=1)
    external.external_data.add(key="location", value="missing.data")
    assert expand(model) == 2
    assert len(model.functions) == 1
    assert {node.domain for node in model.graph.node} == {REFERENCE_DOMAIN}
    assert model.graph.initializer[0] == external


def test_an_operator_that_the_cpu_has_is_left_alone() -> None:
    model = model_of("QuickGelu", {"x": normal(3)}, ["y"], alpha=1.702)
    before = model.SerializeToString()
    assert expand(model) == 0
    assert model.SerializeToString() == before


def test_an_older_opset_is_raised_where_it_can_be() -> None:
    """ONNX Runtime's optimizer leaves a model's opset as it is."""
    made = {
        opset: model_of("BiasSplitGelu", {"x": normal(1, 2, 4), "bias": normal(4)}, ["y"], opset=opset)
        for opset in (14, 18)
    }
    for model in made.values():
        assert expand(model) == 1
        assert {entry.domain: entry.version for entry in model.opset_import}[""] == 18
    assert made[14].graph.node == made[18].graph.node
    assert made[14].functions == made[18].functions
    model = model_of("BiasSplitGelu", {"x": normal(1, 2, 4), "bias": normal(4)}, ["y"], opset=14)
    model.graph.node.append(onnx.helper.make_node("NoSuchOperator", ["y"], ["z"]))
    with pytest.raises(BadModelError, match="opset 18 or later, this model has 14"):
        expand(model)


def test_forms_without_a_definition_are_refused() -> None:
    x, c = normal(1, 2, 2, 4), normal(4)
    skip = {"x": x, "gamma": c, "beta": c, "skip": x}
    with pytest.raises(BadModelError, match="channels-last"):
        expand(model_of("SkipGroupNorm", skip, ["y"], groups=2, activation=0, channels_last=0))
    past = {"qkv": normal(1, 2, 2, 3, 4), **dict.fromkeys("abcde"), "past": normal(1, 2, 2, 4)}
    with pytest.raises(BadModelError, match="more inputs"):
        expand(model_of("MultiHeadAttention", past, ["y"], num_heads=2))


def test_stock_onnx_runtime_really_lacks_them() -> None:
    """Why this module exists; should a release bring CPU kernels, the expansion of that operator can go."""
    inputs = {"x": normal(1, 2, 4).astype(np.float32), "bias": normal(4).astype(np.float32)}
    with pytest.raises(Exception, match="implementation"):
        run(model_of("BiasSplitGelu", inputs, ["y"]), dict(inputs))
