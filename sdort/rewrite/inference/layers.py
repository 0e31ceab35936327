"""Rules of matrix products, convolutions, resizing and attention."""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs

from sdort.graph.fact import INT64, NOTHING, Fact, broadcast, windows
from sdort.graph.symbolic import divide, unknown
from sdort.rewrite.inference.rules import Rules

RULES = Rules()
rule = RULES.rule


@rule("MatMul")
def _matmul(node: gs.Node, facts: list[Fact]) -> list[Fact] | None:
    a, b = (f.shape for f in facts[:2])
    if a is None or b is None or len(a) < 2 or len(b) < 2:
        return None
    batch = broadcast(a[:-2], b[:-2])
    return [Fact(facts[0].dtype, None if batch is None else (*batch, a[-2], b[-1]))]


@rule("Conv")
def _conv(node: gs.Node, facts: list[Fact]) -> list[Fact] | None:
    x, w = facts[0].shape, facts[1].shape
    if x is None or w is None:
        return None
    return [Fact(facts[0].dtype, (x[0], w[0], *windows(node.attrs, x[2:], w[2:])))]


@rule("AveragePool", "MaxPool", "LpPool")
def _pool(node: gs.Node, facts: list[Fact]) -> list[Fact] | None:
    x = facts[0].shape
    if x is None or node.attrs.get("ceil_mode"):
        return None
    sizes = (*x[:2], *windows(node.attrs, x[2:], tuple(node.attrs["kernel_shape"])))
    return [Fact(facts[0].dtype, sizes), Fact(INT64, sizes)][: len(node.outputs)]


@rule("Resize")
def _resize(node: gs.Node, facts: list[Fact]) -> list[Fact] | None:
    x = facts[0].shape
    # By aspect ratio the sizes are bounds, and of a crop the scales apply to its region.
    bounds = node.attrs.get("keep_aspect_ratio_policy", "stretch") != "stretch"
    if x is None or bounds or node.attrs.get("coordinate_transformation_mode") == "tf_crop_and_resize":
        return None
    axes = node.attrs.get("axes", range(len(x)))
    shape = list(x)
    if len(facts) > 3 and facts[3].value is not None:
        for axis, size in zip(axes, facts[3].value, strict=True):
            shape[axis] = size
        return [Fact(facts[0].dtype, tuple(shape))]
    scales = node.inputs[2] if len(node.inputs) > 2 else None
    if not isinstance(scales, gs.Constant) or not np.size(scales.values):  # empty: left out
        return None
    for axis, scale in zip(axes, np.asarray(scales.values).tolist(), strict=True):
        whole = float(scale).is_integer()
        shape[axis] = shape[axis] * int(scale) if whole else unknown()
    return [Fact(facts[0].dtype, tuple(shape))]


@rule("Attention")
def _attention(node: gs.Node, facts: list[Fact]) -> list[Fact]:
    q, v = facts[0].shape, facts[2].shape
    if q is None or v is None:
        return [Fact(facts[0].dtype)] * len(node.outputs)
    if len(q) == 3:
        heads, kv_heads = node.attrs["q_num_heads"], node.attrs["kv_num_heads"]
        width = divide(v[2] * heads, kv_heads)
        return [Fact(facts[0].dtype, (q[0], q[1], unknown() if width is None else width))]
    return [Fact(facts[0].dtype, (q[0], q[1], q[2], v[3]))] + [NOTHING] * (len(node.outputs) - 1)
