"""Every form of an operator computes what its formula says, in float64 and by hand; targets take the forms they have.

:mod:`test_operators` holds definitions to ONNX Runtime's kernels, where the CPU has some, in the forms of the examples.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx.inliner
import onnxruntime
import pytest
from onnx import TensorProto, helper

from sdort.errors import BadModelError
from sdort.graph.domains import IN_DEFAULT_DOMAIN, MICROSOFT, OWN_DOMAIN
from sdort.graph.fact import Fact
from sdort.graph.operator import Call
from sdort.graph.symbolic import symbol
from sdort.onnx_io.standard_operators import expand, parse_function
from sdort.operators import channels_axis, find_operator, load_operators, of_category
from sdort.operators.group_norm import even_groups

Array = np.ndarray[Any, Any]
Inputs = Mapping[str, Array]
FLOAT = np.dtype(np.float32)


@dataclass(frozen=True)
class Form:
    """One call of an operator, and what its outputs are by hand."""

    operator: str
    inputs: Mapping[str, tuple[int, ...]]
    formula: Callable[[Inputs], dict[str, Array]]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    operations: int | None = None
    """Arithmetic operations for an element of the first output; None where that is no part of the form."""
    bytes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Dims of the inputs of uint8."""

    def __str__(self) -> str:
        settings = " ".join(f"{name}={value}" for name, value in self.attributes.items())
        return f"{self.operator} {'+'.join(self.inputs)} {settings}"


def call_of(name: str, inputs: Mapping[str, Fact], outputs: tuple[str, ...], attributes: Mapping[str, Any]) -> Call:
    operator = find_operator(*name.rsplit(".", 1))
    assert operator is not None
    given = [inputs.get(each) for each in operator.inputs]
    return operator.call(given, [each in outputs for each in operator.outputs], attributes)


def defined(name: str, call: Call, feeds: Inputs) -> list[Array]:
    """What the operator's definition computes, in ONNX Runtime."""
    operator = find_operator(*name.rsplit(".", 1))
    assert operator is not None
    body = operator.definition(call)
    assert body is not None
    node = helper.make_node("Defined", list(call.inputs), list(call.outputs), domain="test")
    inputs = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(values.dtype), values.shape)
        for n, values in feeds.items()
    ]
    graph = helper.make_graph([node], "g", inputs, [helper.make_empty_tensor_value_info(n) for n in call.outputs])
    opsets = [helper.make_opsetid(domain, version) for domain, version in (("", 18), (MICROSOFT, 1), ("test", 1))]
    function = parse_function("test", "Defined", call.signature, body, 18)
    model = helper.make_model(graph, functions=[function], opset_imports=opsets, ir_version=10)
    model = onnx.inliner.inline_local_functions(model)
    expand(model)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # steps that a form does not need
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return [np.asarray(value) for value in session.run(None, dict(feeds))]


# --- by hand ---


def erf_gelu(x: Array) -> Array:
    return np.asarray(x / 2 * (1 + np.vectorize(math.erf)(x / math.sqrt(2))))


def tanh_gelu(x: Array) -> Array:
    return np.asarray(x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))))


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def group_norm(x: Array, a: Inputs, groups: int, epsilon: float, silu: bool) -> Array:
    """Of a channels-last image."""
    parts = np.moveaxis(x, -1, 1).reshape(len(x), groups, -1)
    normal = (parts - parts.mean(-1, keepdims=True)) / np.sqrt(parts.var(-1, keepdims=True) + epsilon)
    image = np.moveaxis(normal.reshape(len(x), x.shape[-1], *x.shape[1:-1]), 1, -1) * a["gamma"] + a["beta"]
    return np.asarray(image * sigmoid(image) if silu else image)


def row_norm(x: Array, epsilon: float) -> tuple[Array, Array, Array]:
    mean, inverse = x.mean(-1, keepdims=True), 1 / np.sqrt(x.var(-1, keepdims=True) + epsilon)
    return (x - mean) * inverse, mean, inverse


def convolution(x: Array, w: Array, settings: Mapping[str, Any]) -> Array:
    """Of a channels-first image, with filters [out, in / group, height, width], pixel by pixel."""
    groups, strides, dilations = (
        settings.get(k, d) for k, d in (("group", 1), ("strides", [1, 1]), ("dilations", [1, 1]))
    )
    top, left, bottom, right = settings.get("pads", [0, 0, 0, 0])
    padded = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)))
    reach = [d * (k - 1) + 1 for d, k in zip(dilations, w.shape[2:], strict=True)]
    size = [(s - r) // step + 1 for s, r, step in zip(padded.shape[2:], reach, strides, strict=True)]
    out = np.zeros((len(x), len(w), *size))
    wide, narrow = len(w) // groups, w.shape[1]
    for o, i, j in product(range(len(w)), *map(range, size)):
        rows = slice(i * strides[0], i * strides[0] + reach[0], dilations[0])
        columns = slice(j * strides[1], j * strides[1] + reach[1], dilations[1])
        window = padded[:, o // wide * narrow : (o // wide + 1) * narrow, rows, columns]
        out[:, o, i, j] = (window * w[o]).sum((1, 2, 3))
    return out


def attention(
    q: Array, k: Array, v: Array, scale: float | None = None, mask: Array | None = None, causal: bool = False
) -> Array:
    """Of [batch, rows, heads, size]; merged rows."""
    scores = np.einsum("bihd,bjhd->bhij", q, k) * (scale or q.shape[-1] ** -0.5)
    scores = scores if mask is None else scores + mask
    if causal:
        scores = np.where(np.tri(*scores.shape[2:]) > 0, scores, -np.inf)
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    shares /= shares.sum(-1, keepdims=True)
    return np.asarray(np.einsum("bhij,bjhd->bihd", shares, v).reshape(*q.shape[:2], -1))


def split(x: Array, heads: int) -> Array:
    return x.reshape(*x.shape[:2], heads, -1)


# --- the forms ---

GROUPS = {"gamma": (12,), "beta": (12,)}
IMAGE, ROWS = (2, 3, 5, 12), (2, 5, 12)
MODULATED = (
    *(f"sdort.{how}ModulatedLayerNormalization" for how in ("", "Twice", "Gated", "GatedTwice")),
    "sdort.ModulatedRMSNormalization", "sdort.GatedModulatedRMSNormalization",
)  # fmt: skip
SPLIT = ("SplitFastGelu", "SplitSilu")


def forms() -> list[Form]:
    return [
        *elementwise(),
        *row_norms(),
        *modulated_norms(),
        *rotary(),
        *group_norms(),
        *convolutions(),
        *products(),
        *products_of_integers(),
        *attentions(),
    ]


def elementwise() -> list[Form]:
    halves = {"X": (2, 5, 16), "bias": (16,)}

    def geglu(a: Inputs) -> dict[str, Array]:
        left, right = np.split(a["X"] + a["bias"], 2, -1)
        return {"Y": left * erf_gelu(right)}

    def split(a: Inputs, activation: Callable[[Array], Array]) -> dict[str, Array]:
        left, right = np.split(a["X"], 2, -1)
        return {"Y": left * activation(right)}

    sums = {"X": ROWS, "bias": (12,), "skip": ROWS}
    return [
        Form("com.microsoft.Gelu", {"X": ROWS}, lambda a: {"Y": erf_gelu(a["X"])}, operations=8),
        Form("com.microsoft.BiasGelu", {"A": ROWS, "B": (12,)}, lambda a: {"C": erf_gelu(a["A"] + a["B"])}, {}, 9),
        Form("com.microsoft.FastGelu", {"X": ROWS}, lambda a: {"Y": tanh_gelu(a["X"])}, operations=9),
        Form("com.microsoft.FastGelu", {"X": ROWS, "bias": (12,)}, lambda a: {"Y": tanh_gelu(a["X"] + a["bias"])}),
        Form("com.microsoft.QuickGelu", {"X": ROWS}, lambda a: {"Y": a["X"] * sigmoid(1.702 * a["X"])}),
        Form("com.microsoft.QuickGelu", {"X": ROWS}, lambda a: {"Y": a["X"] * sigmoid(0.7 * a["X"])}, {"alpha": 0.7}),
        Form("com.microsoft.BiasSplitGelu", halves, geglu, operations=10),
        Form("sdort.BiasSplitGelu", halves, geglu, operations=10),
        Form("sdort.SplitSilu", {"X": (2, 5, 16)}, lambda a: split(a, lambda x: x * sigmoid(x)), operations=6),
        Form("sdort.SplitFastGelu", {"X": (2, 5, 16)}, lambda a: split(a, tanh_gelu), operations=10),
        Form("com.microsoft.BiasAdd", sums, lambda a: {"Y": a["X"] + a["bias"] + a["skip"]}, operations=2),
    ]  # fmt: skip


def row_norms() -> list[Form]:
    found = []
    for beta, bias, more in product((0, 1), (0, 1), ({}, {"epsilon": 0.25})):
        epsilon = more.get("epsilon", 1e-12)
        optional = {name: (12,) for name, there in (("beta", beta), ("bias", bias)) if there}

        def layer(a: Inputs, epsilon: float = epsilon) -> dict[str, Array]:
            total = a["input"] + a["skip"] + a.get("bias", 0)
            normal, mean, inverse = row_norm(total, epsilon)
            outputs = {"output": normal * a["gamma"] + a.get("beta", 0), "mean": mean, "inv_std_var": inverse}
            return {**outputs, "input_skip_bias_sum": total}

        inputs = {"input": ROWS, "skip": ROWS, "gamma": (12,)}
        found.append(Form("com.microsoft.SkipLayerNormalization", {**inputs, **optional}, layer, more))

        def root(a: Inputs, epsilon: float = epsilon) -> dict[str, Array]:
            total = a["input"] + a["skip"] + a.get("bias", 0)
            inverse = 1 / np.sqrt((total**2).mean(-1, keepdims=True) + epsilon)
            return {"output": total * inverse * a["gamma"], "inv_std_var": inverse, "input_skip_bias_sum": total}

        if not beta:
            found.append(Form("com.microsoft.SkipSimplifiedLayerNormalization", {**inputs, **optional}, root, more))
    for axis, more in product((-1, -2, 1, 2), ({}, {"epsilon": 0.25})):
        axes, shape = tuple(range(axis % 3, 3)), (2, 5, 12)[axis % 3 :]

        def simple(a: Inputs, axes: Any = axes, epsilon: float = more.get("epsilon", 1e-5)) -> dict[str, Array]:
            inverse = 1 / np.sqrt((a["X"] ** 2).mean(axes, keepdims=True) + epsilon)
            return {"Y": a["X"] * inverse * a["scale"], "inv_std_var": inverse}

        settings = {**more, **({} if axis == -1 else {"axis": axis})}
        found.append(Form("com.microsoft.SimplifiedLayerNormalization", {"X": ROWS, "scale": shape}, simple, settings))

    def biased(a: Inputs) -> dict[str, Array]:
        return {"Y": row_norm(a["X"] + a["bias"], 0.25)[0] * a["gamma"] + a["beta"]}

    inputs = {"X": ROWS, **GROUPS, "bias": (12,)}
    return [*found, Form("sdort.BiasLayerNormalization", inputs, biased, {"epsilon": 0.25}, operations=9)]


def modulated_norms() -> list[Form]:
    image = (2, 1, 12)
    once = {"scale": image, "shift": image}
    twice = {**once, "scale2": image, "shift2": image}
    gated = {"X": ROWS, "branch": ROWS, "bias": (12,), "gate": image}

    def total(a: Inputs) -> Array:
        return a["X"] + a["gate"] * (a["branch"] + a["bias"]) if "gate" in a else a["X"]

    def root(x: Array, epsilon: float) -> Array:
        return np.asarray(x / np.sqrt((x**2).mean(-1, keepdims=True) + epsilon))

    found = [Form("sdort.GatedSum", gated, lambda a: {"Y": total(a)}, operations=3)]
    for more in ({}, {"epsilon": 0.25}):
        epsilon, small = more.get("epsilon", 1e-6), more.get("epsilon", 1e-5)

        def layer(a: Inputs, epsilon: float = epsilon) -> dict[str, Array]:
            normal = row_norm(total(a), epsilon)[0]
            outputs = {"Y": normal * a["scale"] + a["shift"]}
            outputs |= {"sum": total(a)} if "gate" in a else {}
            return outputs | ({"Y2": normal * a["scale2"] + a["shift2"]} if "scale2" in a else {})

        def simple(a: Inputs, epsilon: float = small) -> dict[str, Array]:
            return {"Y": root(a["X"], epsilon) * a["weight"] * a["scale"]}

        def gated_simple(a: Inputs, epsilon: float = small) -> dict[str, Array]:
            sum_ = a["X"] + a["gate"] * root(a["branch"], 0.5) * a["factor"]
            return {"Y": root(sum_, epsilon) * a["weight"] * a["scale"], "sum": sum_}

        inputs = {"X": ROWS, "branch": ROWS, "factor": (12,), "gate": image, "weight": (12,), "scale": image}
        found += [
            Form("sdort.ModulatedLayerNormalization", {"X": ROWS, **once}, layer, more, 9),
            Form("sdort.TwiceModulatedLayerNormalization", {"X": ROWS, **twice}, layer, more, 11),
            Form("sdort.GatedModulatedLayerNormalization", {**gated, **once}, layer, more, 12),
            Form("sdort.GatedTwiceModulatedLayerNormalization", {**gated, **twice}, layer, more, 14),
            Form("sdort.ModulatedRMSNormalization", {"X": ROWS, "weight": (12,), "scale": image}, simple, more, 6),
            Form("sdort.GatedModulatedRMSNormalization", inputs, gated_simple, {**more, "branch_epsilon": 0.5}, 13),
        ]
    return found


def turned(x: Array, cos: Array, sin: Array, neighbours: bool) -> Array:
    """Rotary embedding of heads, as products of complex numbers."""
    size = 2 * cos.shape[-1]
    heads = x.reshape(*x.shape[:2], -1, *((size // 2, 2) if neighbours else (2, size // 2)))
    axis = -1 if neighbours else -2
    numbers = heads.take(0, axis) + 1j * heads.take(1, axis)
    numbers = numbers * (cos + 1j * sin)[:, :, None]
    return np.stack((numbers.real, numbers.imag), axis).reshape(x.shape)


def rotary() -> list[Form]:
    found = []
    for neighbours, images in product((0, 1), (1, 2)):
        tables = dict.fromkeys(("cos", "sin"), (images, 5, 3))

        def plain(a: Inputs, neighbours: int = neighbours) -> dict[str, Array]:
            return {"Y": turned(a["X"], a["cos"], a["sin"], bool(neighbours))}

        def normal(a: Inputs, neighbours: int = neighbours, epsilon: float = 1e-5 + images - 1) -> dict[str, Array]:
            heads = a["X"].reshape(2, 5, 2, 6)
            heads = heads / np.sqrt((heads**2).mean(-1, keepdims=True) + epsilon) * a["scale"]
            return {"Y": turned(heads.reshape(2, 5, 12), a["cos"], a["sin"], bool(neighbours))}

        more: dict[str, Any] = {"interleaved": 1} if neighbours else {}
        inputs = {"X": ROWS, "scale": (6,), **tables}
        found.append(Form("sdort.RotaryEmbedding", {"X": ROWS, **tables}, plain, more, operations=3))
        more = {**more, **({"epsilon": 1 + 1e-5} if images == 2 else {})}
        found.append(Form("sdort.RMSNormRotaryEmbedding", inputs, normal, more, operations=8))
    return found


def group_norms() -> list[Form]:
    found = []
    for silu, more in product((0, 1), ({}, {"epsilon": 0.25})):
        settings, epsilon = {"groups": 3, "activation": silu, **more}, more.get("epsilon", 1e-5)

        def last(a: Inputs, silu: int = silu, epsilon: float = epsilon) -> dict[str, Array]:
            return {"Y": group_norm(a["X"], a, 3, epsilon, bool(silu))}

        def first(a: Inputs, silu: int = silu, epsilon: float = epsilon) -> dict[str, Array]:
            image = group_norm(np.moveaxis(a["X"], 1, -1), a, 3, epsilon, bool(silu))
            return {"Y": np.moveaxis(image, -1, 1)}

        def joined(a: Inputs, silu: int = silu, epsilon: float = epsilon) -> dict[str, Array]:
            total = np.concatenate([a["X"], a["X2"]], -1) if "X2" in a else a["X"]
            total = total + a.get("bias", 0)
            for name in ("skip", "embedding"):
                if name in a:
                    total = total + (a[name] if a[name].ndim == 4 else a[name][:, None, None])
            return {"Y": group_norm(total, a, 3, epsilon, bool(silu)), "S": total}

        found.append(Form("com.microsoft.GroupNorm", {"X": IMAGE, **GROUPS}, last, settings, operations=10))
        planes = {"X": (2, 12, 3, 5), **GROUPS}
        found.append(Form("com.microsoft.GroupNorm", planes, first, {**settings, "channels_last": 0}))
        for skip, bias in product((IMAGE, (2, 12), (2, 1, 1, 12)), (0, 1)):
            inputs: dict[str, tuple[int, ...]] = {"X": IMAGE, **GROUPS, "skip": skip}
            inputs |= {"bias": (12,)} if bias else {}
            found.append(Form("com.microsoft.SkipGroupNorm", inputs, joined, settings, operations=11))
        found.append(
            Form("sdort.BiasGroupNorm", {"X": IMAGE, **GROUPS, "bias": (12,)}, joined, settings, operations=10)
        )
        for two, residual, bias, embedding in product((0, 1), (0, 1), (0, 1), (None, (2, 12), (2, 1, 1, 12))):
            inputs = {"X": (2, 3, 5, 8), "X2": (2, 3, 5, 4)} if two else {"X": IMAGE}
            inputs |= {**GROUPS, **({"skip": IMAGE} if residual else {}), **({"bias": (12,)} if bias else {})}
            inputs |= {} if embedding is None else {"embedding": embedding}
            if bool(more) == (residual == bias):
                found.append(Form("sdort.GroupNorm", inputs, joined, settings))
    return found


ACTIVATIONS: dict[str, tuple[list[float], Callable[[Array], Array]]] = {
    "Relu": ([], lambda x: np.maximum(x, 0)),
    "Sigmoid": ([], sigmoid),
    "Tanh": ([], np.tanh),
    "LeakyRelu": ([0.25], lambda x: np.where(x < 0, x * 0.25, x)),
    "HardSigmoid": ([0.25, 0.6], lambda x: np.clip(x * 0.25 + 0.6, 0, 1)),
    "Clip": ([-0.5, 1.5], lambda x: np.clip(x, -0.5, 1.5)),
}


WINDOWS: tuple[dict[str, Any], ...] = (
    {},
    {"pads": [1, 0, 2, 3]},
    {"pads": [0, 1, 1, 0], "strides": [2, 1], "group": 2},
    {"pads": [2, 0, 0, 1], "dilations": [2, 1], "kernel_shape": [3, 2]},
)


def convolutions() -> list[Form]:
    found = []
    for name, bias, more in product(("NhwcConv", "NhwcFusedConv", "FusedConv"), (0, 1), WINDOWS):
        groups, last = more.get("group", 1), name.startswith("Nhwc")
        filters = (6, 3, 2, 4 // groups) if last else (6, 4 // groups, 3, 2)

        def plain(a: Inputs, more: Mapping[str, Any] = more, last: bool = last) -> Array:
            x, w = (np.moveaxis(a[n], -1, 1) if last else a[n] for n in "XW")
            y = convolution(x, w, more) + (a["B"][:, None, None] if "B" in a else 0)
            return np.moveaxis(y, 1, -1) if last else y

        inputs = {"X": (2, 6, 5, 4) if last else (2, 4, 6, 5), "W": filters, **({"B": (6,)} if bias else {})}
        if name == "NhwcConv":
            count = 2 * 3 * 2 * 4 // groups

            def whole(a: Inputs, f: Any = plain) -> dict[str, Array]:
                return {"Y": f(a)}

            found.append(Form(f"com.microsoft.{name}", inputs, whole, more, count))
            continue
        shape = plain({n: np.zeros(s) for n, s in inputs.items()}).shape
        for activation, added in (
            [*product(ACTIVATIONS, (0, 1)), ("", 0), ("", 1)] if more.get("pads") == [1, 0, 2, 3] else [("Tanh", 1)]
        ):
            settings, curve = ACTIVATIONS.get(activation, ([], lambda x: x))
            attributes: dict[str, Any] = {**more, **({"activation": activation} if activation else {})}
            attributes |= {"activation_params": settings} if settings else {}

            def fused(a: Inputs, f: Any = plain, curve: Any = curve) -> dict[str, Array]:
                return {"Y": curve(f(a) + a.get("Z", 0))}

            both = {**inputs, **({"Z": shape} if added else {})}
            found.append(Form(f"com.microsoft.{name}", both, fused, attributes))
    return found


def products() -> list[Form]:
    found = []
    for left, right, (alpha, batches) in product((0, 1), (0, 1), ((1.0, (2, 3)), (-0.3, (3,)), (0.5, ()))):
        a_shape, b_shape = ((8, 5) if left else (5, 8)), ((7, 8) if right else (8, 7))

        def multiply(a: Inputs, turned: tuple[int, int] = (left, right), alpha: float = alpha) -> dict[str, Array]:
            x, z = (a[n].swapaxes(-1, -2) if t else a[n] for n, t in zip("AB", turned, strict=True))
            return {"Y": alpha * (x @ z)}

        settings = {k: v for k, v in (("transA", left), ("transB", right)) if v} | (
            {} if alpha == 1 else {"alpha": alpha}
        )
        inputs = {"A": (2, 3, *a_shape), "B": (*batches, *b_shape)}
        found.append(Form("com.microsoft.FusedMatMul", inputs, multiply, settings, 2 * 8))
    return found


def products_of_integers() -> list[Form]:
    """Two rows of bytes beside each other, the lower halves first, in groups of which the last is not full."""

    def halves(stored: Array, bits: int) -> Array:
        return stored if bits == 8 else np.stack([stored % 16, stored // 16], -1).reshape(*stored.shape[:-1], -1)

    found = []
    for bits, group, columns, zeros in ((8, 16, 32, False), (8, 16, 40, True), (4, 16, 40, False), (4, 16, 40, True)):
        groups, rows = -(-columns // group), 6

        def multiply(a: Inputs, bits: int = bits, columns: int = columns, groups: int = groups) -> dict[str, Array]:
            zero = np.full((6, groups), 2.0 ** (bits - 1))
            if "zero_points" in a:
                zero = halves(a["zero_points"].reshape(6, -1), bits)[:, :groups]
            values = (halves(a["B"], bits) - zero[..., None]) * a["scales"].reshape(6, groups, 1)
            return {"Y": a["A"] @ values.reshape(6, -1)[:, :columns].T}

        stored: dict[str, tuple[int, ...]] = {"B": (rows, groups, group * bits // 8)}
        stored |= {"zero_points": (rows * -(-groups * bits // 8),)} if zeros else {}
        settings = {"K": columns, "N": rows, "bits": bits, "block_size": group}
        floats = {"A": (2, 5, columns), "scales": (rows * groups,)}
        found.append(Form("com.microsoft.MatMulNBits", floats, multiply, settings, 2 * columns, stored))
    return found


def attentions() -> list[Form]:
    found = []
    q, k, v = {"query": (2, 5, 12)}, {"key": (2, 7, 12)}, {"value": (2, 7, 15)}
    for scale, causal, mask in (
        *product((None, 0.3), (0, 1), (None,)),
        (0.3, 0, (1, 1, 5, 7)),
        (None, 1, (2, 3, 5, 7)),
    ):
        more: dict[str, Any] = {"num_heads": 3, **({"scale": scale} if scale else {})}
        more |= {"unidirectional": 1} if causal else {}
        bias = {"attention_bias": mask} if mask else {}

        def apart(a: Inputs, scale: Any = scale, causal: int = causal) -> dict[str, Array]:
            q4, k4, v4 = (split(a[n], 3) for n in ("query", "key", "value"))
            return {"output": attention(q4, k4, v4, scale, a.get("attention_bias"), bool(causal))}

        def paired(a: Inputs, scale: Any = scale, causal: int = causal) -> dict[str, Array]:
            heads = split(a["query"], 3), a["key"][:, :, :, 0], a["key"][:, :, :, 1]
            return {"output": attention(*heads, scale, a.get("attention_bias"), bool(causal))}

        def packed(a: Inputs, scale: Any = scale, causal: int = causal) -> dict[str, Array]:
            q4, k4, v4 = (a["query"][:, :, :, index] for index in range(3))
            return {"output": attention(q4, k4, v4, scale, a.get("attention_bias"), bool(causal))}

        def projected(a: Inputs, scale: Any = scale, causal: int = causal) -> dict[str, Array]:
            parts = np.split(a["input"] @ a["weights"] + a.get("bias", 0), 3, -1)
            q4, k4, v4 = (split(x, 3) for x in parts)
            return {"output": attention(q4, k4, v4, scale, a.get("attention_bias"), bool(causal))}

        name, square = "com.microsoft.MultiHeadAttention", {"attention_bias": (*mask[:2], 5, 5)} if mask else {}
        found.append(Form(name, {**q, **k, **v, **bias}, apart, more))
        found.append(Form(name, {**q, "key": (2, 7, 3, 2, 4), **bias}, paired, more))
        found.append(Form(name, {"query": (2, 5, 3, 3, 4), **square}, packed, more))
        if not causal and not mask:
            found.append(Form("sdort.MultiHeadAttention", {**q, **k, **v}, apart, more))
        for biased in ({}, {"bias": (36,)}):
            inputs = {"input": (2, 5, 8), "weights": (8, 36), **biased, **square}
            found.append(Form("com.microsoft.Attention", inputs, projected, more))
    return found


FORMS = forms()


@pytest.mark.parametrize("name", sorted({form.operator for form in FORMS}))
def test_every_form_computes_its_formula(name: str) -> None:
    """Of the shape that is inferred for it too, output by output."""
    for number, form in enumerate(each for each in FORMS if each.operator == name):
        rng = np.random.default_rng(number)
        feeds = {n: rng.standard_normal(shape).astype(np.float32) for n, shape in form.inputs.items()}
        feeds |= {n: rng.integers(0, 256, shape, np.uint8) for n, shape in form.bytes.items()}
        wanted = form.formula({n: values.astype(np.float64) for n, values in feeds.items()})
        facts = {n: Fact(values.dtype, values.shape) for n, values in feeds.items()}
        call = call_of(name, facts, tuple(wanted), form.attributes)
        operator = load_operators()[name.rpartition(".")[0], name.rpartition(".")[2]]
        inferred = dict(zip(operator.outputs, operator.infer(call), strict=False))
        for output, found in zip(call.outputs, defined(name, call, feeds), strict=True):
            np.testing.assert_allclose(found, wanted[output], rtol=2e-4, atol=2e-5, err_msg=f"{form} {output}")
            assert inferred[output].shape in (found.shape, None), form
        assert inferred[call.outputs[0]] == Fact(FLOAT, wanted[call.outputs[0]].shape), form
        assert form.operations in (None, operations_of(form, wanted[call.outputs[0]].shape)), form


def operations_of(form: Form, result: tuple[int, ...]) -> float | None:
    """For an element of the first output."""
    operator = find_operator(*form.operator.rsplit(".", 1))
    assert operator is not None
    if not callable(operator.operations):
        return operator.operations
    count = operator.operations(list(form.inputs.values()), [result])
    return None if count is None else count / math.prod(result)


def test_every_operator_with_a_definition_has_a_formula() -> None:
    # Held to the upsampling convolution that it ends, tests/fusions/test_fusions.py, and to the CPU's kernel alone.
    apart = {"sdort.InterleavePhases", "com.microsoft.RotaryEmbedding"}
    assert {each.qualified_name for each in load_operators().values()} == {form.operator for form in FORMS} | apart


def test_a_normalization_of_axes_from_the_first_asks_for_the_rank() -> None:
    for axis, shape in ((-2, None), (1, (2, 5, 12))):
        call = call_of("com.microsoft.SimplifiedLayerNormalization", {"X": Fact(FLOAT, shape)}, ("Y",), {"axis": axis})
        assert load_operators()[MICROSOFT, "SimplifiedLayerNormalization"].definition(call) is not None
    call = call_of("com.microsoft.SimplifiedLayerNormalization", {"X": Fact(FLOAT)}, ("Y",), {"axis": 1})
    assert load_operators()[MICROSOFT, "SimplifiedLayerNormalization"].definition(call) is None


def test_a_skip_group_norm_of_planes_is_refused() -> None:
    settings = {"groups": 3, "activation": 0, "channels_last": 0}
    call = call_of("com.microsoft.SkipGroupNorm", {"X": Fact(FLOAT, IMAGE)}, ("Y",), settings)
    with pytest.raises(BadModelError, match="for channels-last tensors only"):
        load_operators()[MICROSOFT, "SkipGroupNorm"].definition(call)


def test_scores_are_rounded_to_what_kernels_store_and_nothing_else_is() -> None:
    """Of scores around 3000 fp16 holds every second."""
    operator = load_operators()[MICROSOFT, "MultiHeadAttention"]
    feeds = {name: np.array([[[1.0], [2.0]]], np.float32) for name in ("query", "value")}
    feeds["key"] = np.array([[[3001.0], [3001.25]]], np.float32)
    facts = [Fact(FLOAT, feeds[name].shape) if name in feeds else None for name in operator.inputs]
    calls = [
        operator.call(facts, [True], {"num_heads": 1, "scale": 1.0}, kind)
        for kind in (TensorProto.FLOAT, TensorProto.FLOAT16)
    ]
    single, half = (defined("com.microsoft.MultiHeadAttention", call, feeds)[0].reshape(-1) for call in calls)
    weights = np.exp([0.25, 0.5]) / (1 + np.exp([0.25, 0.5]))
    np.testing.assert_allclose(single, 1 + weights, rtol=1e-3)
    # 3001 rounds to 3000 (ties to even) and 3001.25 to 3002; 6002 to 6000 and 6002.5 to 6004.
    np.testing.assert_allclose(half, 1 + np.exp([2, 4]) / (1 + np.exp([2, 4])), rtol=1e-6)


# --- what is left undefined ---

UNDEFINED = [
    ("com.microsoft.MultiHeadAttention", ("query", "key", "value", "bias"), (), {}),
    *(
        ("com.microsoft.MultiHeadAttention", ("query", "key", "value", name), (), {})
        for name in ("key_padding_mask", "past_key", "past_value", "past_sequence_length", "cache_indirection")
    ),
    *(
        ("com.microsoft.MultiHeadAttention", ("query", "key", "value"), (name,), {})
        for name in ("present_key", "present_value", "qk")
    ),
    *(
        ("com.microsoft.Attention", ("input", "weights", "bias", name), (), {})
        for name in ("mask_index", "past", "past_sequence_length")
    ),
    ("com.microsoft.Attention", ("input", "weights"), ("present",), {}),
    ("com.microsoft.Attention", ("input", "weights"), (), {"qkv_hidden_sizes": [4, 4, 8]}),
    ("com.microsoft.Attention", ("input", "weights"), (), {"do_rotary": 1}),
    ("com.microsoft.SkipSimplifiedLayerNormalization", ("input", "skip", "gamma"), ("mean",), {}),
    ("com.microsoft.FusedMatMul", ("A", "B"), (), {"transBatchA": 1}),
    ("com.microsoft.FusedMatMul", ("A", "B"), (), {"transBatchB": 1}),
    ("com.microsoft.FusedConv", ("X", "W"), (), {"activation": "Elu"}),
    ("com.microsoft.NhwcFusedConv", ("X", "W"), (), {"activation": b"Elu"}),
]


@pytest.mark.parametrize(("name", "inputs", "outputs", "settings"), UNDEFINED)
def test_forms_of_which_no_definition_is_known_have_none(
    name: str, inputs: tuple[str, ...], outputs: tuple[str, ...], settings: dict[str, Any]
) -> None:
    operator = find_operator(*name.rsplit(".", 1))
    assert operator is not None
    heads = {"num_heads": 3} if "num_heads" in operator.attributes else {}
    call = call_of(
        name, {n: Fact(FLOAT, (2, 5, 12)) for n in inputs}, (*operator.outputs[:1], *outputs), settings | heads
    )
    assert operator.definition(call) is None
    without = [
        n for n in inputs if n in ("query", "key", "value", "input", "weights", "skip", "gamma", "A", "B", "X", "W")
    ]
    plain = call_of(name, {n: Fact(FLOAT, (2, 5, 12)) for n in without}, operator.outputs[:1], heads)
    assert operator.definition(plain) is not None


# --- what targets take ---

ATTENTION, GROUP_NORM, OWN_NORM = "com.microsoft.MultiHeadAttention", "com.microsoft.GroupNorm", "sdort.GroupNorm"
GPUS = {"rocm", "cuda"}
EVERY = {*GPUS, "migraphx", "cpu"}
APART = dict.fromkeys(("query", "key", "value"), (2, 5, 12))
TAKEN: list[tuple[str, dict[str, Any], dict[str, Any], set[str]]] = [
    (ATTENTION, APART, {}, {"rocm", "cuda", "migraphx", "cpu"}),
    (ATTENTION, APART, {"unidirectional": 1}, {"cuda", "cpu"}),
    (ATTENTION, {**APART, "attention_bias": (1, 1, 5, 5)}, {}, {"cuda", "cpu"}),
    (ATTENTION, {**APART, "bias": (36,)}, {}, {"cuda", "cpu"}),
    (ATTENTION, {"query": (2, 5, 12), "key": (2, 7, 3, 2, 4)}, {}, {"rocm", "cuda"}),
    (ATTENTION, {"query": (2, 5, 3, 3, 4)}, {}, {"rocm", "cuda"}),
    ("sdort.MultiHeadAttention", APART, {}, {"cuda"}),
    ("com.microsoft.Attention", {"input": (2, 5, 8), "weights": (8, 36)}, {"num_heads": 3}, {"rocm", "cuda", "cpu"}),
    *(
        (name, {"X": shape}, {"groups": groups, "activation": 0, **more}, GPUS if taken else set())
        for name in (GROUP_NORM, "com.microsoft.SkipGroupNorm", "sdort.BiasGroupNorm")
        for shape, groups, more, taken in (
            ((2, 3, 5, 12), 3, {}, True),
            ((2, 3, 5, 12), 6, {}, True),
            (("N", "H", "W", 12), 3, {}, True),
            ((2, 3, 5, 12), 4, {}, False),
            ((2, 3, 5, 12), 12, {}, False),
            ((2, 3, 5, 12), 5, {}, False),
            ((2, 3, 5, 12), 0, {}, False),
            ((2, 3, 5, 12), -3, {}, False),
            ((2, 12, 3, 12), 3, {"channels_last": 0}, False),
            ((2, 15, 12), 3, {}, False),
            ((2, 3, 5, "C"), 3, {}, False),
            (None, 3, {}, False),
        )
    ),
    *(
        (OWN_NORM, {"X": x, **({} if x2 is None else {"X2": x2})}, {"groups": groups}, GPUS if taken else set())
        for x, x2, groups, taken in (
            ((2, 3, 5, 12), None, 3, True),
            ((2, 3, 5, 8), (2, 3, 5, 4), 3, True),
            ((2, 3, 5, 8), (2, 3, 5, 3), 3, False),
            ((2, 3, 5, 9), (2, 3, 5, 3), 4, False),
            ((2, 3, 5, 8), (2, 3, 5, "C"), 2, False),
            ((2, 3, 5, "C"), (2, 3, 5, 4), 2, False),
            ((2, 15, 8), (2, 15, 4), 3, False),
        )
    ),
    *(
        (name, {"X": shape}, {}, GPUS if taken else set())
        for name in ("com.microsoft.NhwcConv",)
        for shape, taken in (((2, 3, 5, 4), True), (("N", "H", "W", "C"), True), ((2, 5, 4), False), (None, False))
    ),
    *(
        ("com.microsoft.BiasSplitGelu", {"X": (2, 5, width)}, {}, GPUS if taken else set())
        for width, taken in ((2560, True), (5120, True), (10240, True), (1280, False), (2562, False), ("W", False))
    ),
    ("com.microsoft.BiasSplitGelu", {"X": None}, {}, set()),
    ("sdort.BiasSplitGelu", {"X": (2, 5, 48)}, {}, {"rocm", "cuda"}),
    *(
        ("com.microsoft.SkipSimplifiedLayerNormalization", {"input": shape}, {}, EVERY if taken else set())
        for shape, taken in (((5, 12), True), ((2, 5, 12), True), ((2, 3, 5, 12), False), ((12,), False), (None, False))
    ),
    *(
        ("sdort.InterleavePhases", {"X": shape}, {}, GPUS if taken else set())
        for shape, taken in (((2, "H", "W", 12), True), ((2, 4, 6, "C"), False), ((4, 6, 12), False), (None, False))
    ),
    *(
        (f"com.microsoft.{name}", {}, {}, {"rocm", "cuda", "migraphx", "cpu"})
        for name in ("BiasGelu", "FastGelu", "QuickGelu", "SkipLayerNormalization")
    ),
    ("com.microsoft.Gelu", {}, {}, {"rocm", "cuda", "cpu"}),
    (
        "com.microsoft.SkipSimplifiedLayerNormalization",
        {"input": (2, 5, 12), "bias": (12,)},
        {},
        EVERY - {"migraphx"},
    ),
    *(
        ("com.microsoft.SimplifiedLayerNormalization", {"X": shape}, {"axis": axis}, EVERY if taken else {*GPUS, "cpu"})
        for shape, axis, taken in (
            ((5, 12), -1, True), ((2, 3, 5, 12), -1, True), ((2, 3, 5, 12), 3, True), ((2, 3, 5, 12), 2, False),
            ((5, 12), -2, False), ((12,), -1, False), (None, -1, False),
        )
    ),
    ("com.microsoft.BiasAdd", {}, {}, {"rocm", "cuda"}),
    ("sdort.BiasLayerNormalization", {}, {}, {"rocm", "cuda"}),
    *((name, {}, {}, {"rocm", "cuda"}) for name in (*MODULATED, "sdort.GatedSum")),
    *((f"sdort.{name}", {}, {}, {"rocm", "cuda"}) for name in SPLIT),
    ("sdort.RotaryEmbedding", {}, {}, {"rocm"}),
    ("sdort.RMSNormRotaryEmbedding", {}, {}, {"rocm", "cuda"}),
    *((f"com.microsoft.{name}", {}, {}, set()) for name in ("FusedConv", "NhwcFusedConv", "FusedMatMul")),
]  # fmt: skip


READ = {"rocm", "migraphx", "cuda", "cpu"}
"""The targets of this table; the forms of another one are in tests of its own."""


@pytest.mark.parametrize(("name", "inputs", "attributes", "targets"), TAKEN)
def test_targets_take_the_forms_that_their_kernels_have(
    name: str, inputs: dict[str, Any], attributes: dict[str, Any], targets: set[str]
) -> None:
    operator = find_operator(*name.rsplit(".", 1))
    assert operator is not None
    heads = {"num_heads": 3} if "num_heads" in operator.attributes else {}
    facts = {
        n: Fact(FLOAT, None if s is None else tuple(d if isinstance(d, int) else symbol(d) for d in s))
        for n, s in inputs.items()
    }
    call = call_of(name, facts, operator.outputs[:1], {**heads, **attributes})
    assert {
        target for target in READ if target in operator.kernels and operator.kernels[target](call) is None
    } == targets


@pytest.mark.parametrize(
    ("dtype", "taken"), [("float32", True), ("float16", True), ("float64", False), ("bfloat16", False), (None, True)]
)
def test_attention_kernels_take_two_types(dtype: str | None, taken: bool) -> None:
    kind = None if dtype is None else np.dtype(getattr(ml_dtypes, dtype) if dtype == "bfloat16" else dtype)
    for name in (ATTENTION, "sdort.MultiHeadAttention"):
        operator = find_operator(*name.rsplit(".", 1))
        assert operator is not None
        call = call_of(name, {n: Fact(kind, s) for n, s in APART.items()}, ("output",), {"num_heads": 3})
        assert {condition(call) is None for condition in operator.kernels.values()} == {taken}


def test_packed_attention_is_outdone_on_cuda_alone() -> None:
    operator = load_operators()[MICROSOFT, "MultiHeadAttention"]
    assert operator.outdone is not None
    assert {*operator.outdone} == {"cuda"}
    for inputs, slower in (
        (APART, False),
        ({"query": (2, 5, 12), "key": (2, 7, 3, 2, 4)}, True),
        ({"query": (2, 5, 3, 3, 4)}, True),
    ):
        call = call_of(ATTENTION, {n: Fact(FLOAT, s) for n, s in inputs.items()}, ("output",), {"num_heads": 3})
        assert (operator.outdone["cuda"](call) is not None) == slower


@pytest.mark.parametrize(
    ("more", "stored"),
    [
        ((), True),
        *(((name,), False) for name in ("bias", "key_padding_mask", "attention_bias", "past_key", "past_value")),
    ],
)
def test_scores_are_stored_by_what_is_no_fused_kernel(more: tuple[str, ...], stored: bool) -> None:
    operator = load_operators()[MICROSOFT, "MultiHeadAttention"]
    for causal in (0, 1):
        inputs = {name: Fact(FLOAT, (2, 5, 12)) for name in (*APART, *more)}
        call = call_of(ATTENTION, inputs, ("output",), {"num_heads": 3, "unidirectional": causal})
        assert operator.stores_intermediates(call) is (stored and not causal)
    assert [each.qualified_name for each in load_operators().values() if each.stores_intermediates(call_of(
        each.qualified_name, {}, each.outputs[:1], {"num_heads": 3}))] == [ATTENTION]  # fmt: skip


# --- what is counted, and where channels are ---

COUNTS: list[tuple[str, list[tuple[int, ...]], tuple[int, ...], int | None]] = [
    (ATTENTION, [(2, 5, 12), (2, 7, 12), (2, 7, 15)], (2, 5, 15), 4 * 2 * 5 * 7 * 15),
    (ATTENTION, [(2, 5, 12), (2, 7, 3, 2, 4)], (2, 5, 12), 4 * 2 * 5 * 7 * 12),
    (ATTENTION, [(2, 5, 3, 3, 4)], (2, 5, 12), 4 * 2 * 5 * 5 * 12),
    ("com.microsoft.Attention", [(2, 5, 8), (8, 36)], (2, 5, 12), 2 * 2 * 5 * 8 * 36 + 4 * 2 * 5 * 5 * 12),
    ("com.microsoft.Attention", [(2, 5, 8)], (2, 5, 12), 4 * 2 * 5 * 5 * 12),
    ("com.microsoft.NhwcConv", [(2, 6, 5, 4), (6, 3, 1, 4)], (2, 4, 5, 6), 2 * (2 * 4 * 5 * 6) * (3 * 1 * 4)),
    ("com.microsoft.FusedConv", [(2, 4, 6, 5), (6, 4, 3, 1)], (2, 6, 4, 5), 2 * (2 * 6 * 4 * 5) * (4 * 3 * 1)),
    ("com.microsoft.NhwcConv", [(2, 6, 5, 4)], (2, 4, 5, 6), None),
    ("com.microsoft.NhwcConv", [(2, 6, 4), (6, 3, 4)], (2, 4, 6), None),
    ("com.microsoft.FusedMatMul", [(2, 5, 8), (8, 7)], (2, 5, 7), 2 * 2 * 5 * 7 * 8),
    ("com.microsoft.FusedMatMul", [(2, 8, 5), (7, 8)], (2, 5, 7), 2 * 2 * 5 * 7 * 8),
    ("com.microsoft.FusedMatMul", [(8,), (8, 7)], (7,), None),
    ("com.microsoft.FusedMatMul", [(5, 8), (8,)], (5,), None),
]


@pytest.mark.parametrize(("name", "inputs", "result", "count"), COUNTS)
def test_products_are_counted_by_their_sizes(
    name: str, inputs: list[tuple[int, ...]], result: tuple[int, ...], count: int | None
) -> None:
    operator = find_operator(*name.rsplit(".", 1))
    assert operator is not None
    assert callable(operator.operations)
    assert operator.operations(inputs, [result]) == count


@pytest.mark.parametrize(
    ("op", "domain", "attributes", "axis"),
    [
        ("Conv", "", {}, 1),
        ("MatMul", "", {}, 0),
        ("Gemm", "", {}, 0),
        ("Gemm", "", {"transB": 0}, 0),
        ("Gemm", "", {"transB": 1}, 1),
        ("Gemm", "", {"transA": 1}, 0),
        ("Add", "", {}, None),
        ("NhwcConv", MICROSOFT, {}, 3),
        ("NhwcFusedConv", MICROSOFT, {}, 3),
        ("FusedConv", MICROSOFT, {}, 1),
        ("FusedMatMul", MICROSOFT, {}, -2),
        ("FusedMatMul", MICROSOFT, {"transA": 1}, -2),
        ("FusedMatMul", MICROSOFT, {"transB": 1}, -1),
        ("Attention", MICROSOFT, {"num_heads": 3}, 0),
        ("BiasAdd", MICROSOFT, {}, None),
        ("GroupNorm", OWN_DOMAIN, {"groups": 3}, None),
        ("Conv", "ai.onnx", {}, 1),
        ("Conv", "elsewhere", {}, None),
    ],
)
def test_channels_are_found_in_the_weight(op: str, domain: str, attributes: dict[str, Any], axis: int | None) -> None:
    node = helper.make_node(op, ["x", "w"], ["y"], domain=domain, **attributes)
    assert channels_axis(node) == axis


# --- tables ---


def test_operators_are_found_by_their_domain_and_name() -> None:
    assert [find_operator(domain, "BiasAdd") is None for domain in (MICROSOFT, "", None, OWN_DOMAIN)] == [
        False,
        *[True] * 3,
    ]
    for name in IN_DEFAULT_DOMAIN & {each.name for each in load_operators().values()}:
        assert find_operator("", name) is find_operator(None, name) is find_operator(MICROSOFT, name) is not None
    assert find_operator("elsewhere", "SimplifiedLayerNormalization") is None


def test_operators_of_one_kind() -> None:
    kinds = {kind.name: {*of_category(kind)} for kind in {each.category for each in load_operators().values()}}
    assert kinds == {
        "ATTENTION": {"Attention", "MultiHeadAttention"},
        "NORMALIZATION": {
            "BiasGroupNorm", "BiasLayerNormalization", "GroupNorm", "RMSNormRotaryEmbedding",
            "SimplifiedLayerNormalization", "SkipGroupNorm",
            "SkipLayerNormalization", "SkipSimplifiedLayerNormalization", *(name[6:] for name in MODULATED),
        },
        "CONVOLUTION": {"FusedConv", "NhwcConv", "NhwcFusedConv"},
        "PRODUCT": {"FusedMatMul", "MatMulNBits"},
        "ACTIVATION": {"BiasGelu", "BiasSplitGelu", "FastGelu", "Gelu", "QuickGelu", "RotaryEmbedding", *SPLIT},
        "SUM": {"BiasAdd", "GatedSum", "InterleavePhases"},
    }  # fmt: skip


def test_what_reads_float32_adds_up_and_scales() -> None:
    every = load_operators().values()
    norms = {"com.microsoft.GroupNorm", "com.microsoft.SkipGroupNorm", "sdort.BiasGroupNorm", "sdort.GroupNorm"}
    assert {each.qualified_name for each in every if each.float32_inputs == ("gamma", "beta")} == norms
    assert {each.float32_inputs for each in every if each.qualified_name not in norms} == {()}
    assert {each.qualified_name for each in every if each.additive} == {
        "com.microsoft.BiasAdd", "com.microsoft.SkipGroupNorm", "com.microsoft.SkipLayerNormalization",
        "com.microsoft.SkipSimplifiedLayerNormalization", "sdort.BiasGroupNorm", "sdort.BiasLayerNormalization",
        "sdort.GatedSum", *(name for name in MODULATED if "Gated" in name),
    }  # fmt: skip
    assert {each.qualified_name: each.factors for each in every if each.factors} == {
        "com.microsoft.Attention": ("weights",), "com.microsoft.FusedConv": ("W",),
        "com.microsoft.FusedMatMul": ("A", "B"), "com.microsoft.MatMulNBits": ("A", "scales"),
        "com.microsoft.NhwcConv": ("W",), "com.microsoft.NhwcFusedConv": ("W",),
        "com.microsoft.SimplifiedLayerNormalization": ("scale",),
        "com.microsoft.SkipSimplifiedLayerNormalization": ("gamma",),
        "sdort.RMSNormRotaryEmbedding": ("scale",),
        **{name: ("weight",) * ("RMS" in name) + ("scale",) for name in MODULATED},
    }  # fmt: skip


def test_an_odd_number_of_channels_a_group_is_said() -> None:
    call = call_of(GROUP_NORM, {}, ("Y",), {"groups": 4, "activation": 0})
    assert even_groups(call, 12) == "GroupNorm needs an even number of channels a group, this one has 3"
    assert even_groups(call, 10) == "GroupNorm needs channels that are a multiple of its groups, these are 10 in 4"
    assert even_groups(call, 16) is None
