"""The rule of each standard operator by itself: what it says of its outputs, and where it says nothing.

A fact is written ``int64[2]{3, H}``: dtype, shape, and the elements where they are known; ``none`` is an unknown dtype,
``U`` a size that is not known.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import onnx_graphsurgeon as gs
import pytest

from sdort.graph.fact import NOTHING, Fact
from sdort.graph.symbolic import Dim, is_known, symbol
from sdort.rewrite.inference.facts import RULES
from sdort.rewrite.inference.rules import Rules, as_dtype

SYMBOLS = {name: symbol(name) for name in "BHWSU"}


def dims_of(text: str | None) -> tuple[Dim, ...] | None:
    return None if text is None else tuple(eval(f"({text},)", {}, SYMBOLS)) if text.strip() else ()


def fact(text: str) -> Fact:
    """The fact that a text states; ``absent`` is an input that is left out."""
    if text == "absent":
        return NOTHING
    parts = re.fullmatch(r"(\w+)(?:\[(.*?)\])?(?:\{(.*)\})?", text)
    assert parts is not None, text
    dtype = None if parts[1] == "none" else np.dtype(parts[1])
    return Fact(dtype, dims_of(parts[2]), dims_of(parts[3]))


def plain(fact: Fact) -> Fact:
    """The fact with ``U`` for every size that is not known."""
    shape, value = (
        None if dims is None else tuple(d if is_known(d) else SYMBOLS["U"] for d in dims)
        for dims in (fact.shape, fact.value)
    )
    return Fact(fact.dtype, shape, value)


def ask(op: str, attributes: dict[str, Any], inputs: list[str], outputs: int, **constants: Any) -> list[Fact] | None:
    """The rule's answer; ``constants`` are the values of inputs by index, as ``at2``."""
    tensors = [
        gs.Constant(f"c{i}", constants[f"at{i}"])
        if f"at{i}" in constants
        else gs.Variable("" if text == "absent" else f"x{i}")
        for i, text in enumerate(inputs)
    ]
    node = gs.Node(op, "node", attributes, tensors, [gs.Variable(f"y{i}") for i in range(outputs)])
    answer = RULES[op](node, [fact(text) for text in inputs])
    return None if answer is None else [plain(told) for told in answer]


Row = tuple[str, dict[str, Any], list[str], list[str] | None]

ELEMENTWISE: list[Row] = [
    ("Neg", {}, ["int64[2]{3, H}"], ["int64[2]{-3, -H}"]),
    ("Neg", {}, ["int32[B]"], ["int32[B]"]),
    ("Identity", {}, ["int64[2]{3, H}"], ["int64[2]{3, H}"]),
    ("Abs", {}, ["int64[2]{-3, H}"], ["int64[2]"]),
    ("Dropout", {}, ["float16[B, 4]"], ["float16[B, 4]", "none"]),
    ("LayerNormalization", {}, ["float16[B, 4]", "float32[4]"], ["float16[B, 4]", "none", "none"]),
    *((op, {}, ["int64[2]{7, H}", "int64[1]{2}"], [f"int64[2]{{{value}}}"]) for op, value in (
        ("Add", "9, H + 2"), ("Sub", "5, H - 2"), ("Mul", "14, 2*H"), ("Div", "3, H//2"))),
    *((op, {}, ["int64[]{7}", "int64[2]{2, 9}"], [f"int64[2]{{{value}}}"]) for op, value in (
        ("Add", "9, 16"), ("Sub", "5, -2"), ("Mul", "14, 63"), ("Div", "3, 0"), ("Min", "2, 7"), ("Max", "7, 9"))),
    ("Mul", {}, ["int64[3]{2, 3, 4}", "int64[3]{5, 6, 7}"], ["int64[3]{10, 18, 28}"]),
    ("Add", {}, ["uint8[1]{7}", "uint8[1]{2}"], ["uint8[1]{9}"]),
    ("Add", {}, ["int64[W]{2, 3}", "int64[W]{2, 3, 4}"], ["int64[W]"]),
    ("Add", {}, ["int64[W]{2, 3, 4}", "int64[W]{2, 3}"], ["int64[W]"]),
    ("Add", {}, ["float32[1]{7}", "float32[1]{2}"], ["float32[1]"]),
    ("Add", {}, ["int64[1]{7}", "int64[1]"], ["int64[1]"]),
    ("Add", {}, ["int64[1]", "int64[1]{7}"], ["int64[1]"]),
    ("Add", {}, ["int64[1, 2]{7, 8}", "int64[2]{2, 3}"], ["int64[1, 2]"]),
    ("Add", {}, ["int64[2]{7, 8}", "int64[1, 2]{2, 3}"], ["int64[1, 2]"]),
    ("Add", {}, ["none[2]{7, 8}", "int64[2]{2, 3}"], ["none[2]"]),
    ("Min", {}, ["int64[1]{7}", "int64[1]{2}", "int64[1]{1}"], ["int64[1]"]),
    ("Min", {}, ["int64[2]{2, H}", "int64[2]{5, W}"], ["int64[2]"]),
    ("Pow", {}, ["int64[1]{7}", "int64[1]{2}"], ["int64[1]"]),
    ("Add", {}, ["float16[B, 1]", "float16[4]"], ["float16[B, 4]"]),
    ("Add", {}, ["float16[B, 1]", "float16"], ["float16"]),
    ("Equal", {}, ["int64[3]{2, H, H}", "int64[3]{3, H, W}"], ["bool[3]"]),
    ("Equal", {}, ["int64[3]{2, 3, H}", "int64[3]{3, 3, H}"], ["bool[3]{0, 1, 1}"]),
    ("Less", {}, ["int64[2]{2, 5}", "int64[1]{5}"], ["bool[2]{1, 0}"]),
    ("LessOrEqual", {}, ["int64[3]{2, 5, 6}", "int64[1]{5}"], ["bool[3]{1, 1, 0}"]),
    ("Greater", {}, ["int64[3]{2, 5, 6}", "int64[1]{5}"], ["bool[3]{0, 0, 1}"]),
    ("GreaterOrEqual", {}, ["int64[3]{2, 5, 6}", "int64[1]{5}"], ["bool[3]{0, 1, 1}"]),
    ("And", {}, ["bool[B, 1]", "bool[4]"], ["bool[B, 4]"]),
    ("And", {}, ["bool[2]{0, 1}", "bool[2]{1, 1}"], ["bool[2]"]),
    ("Or", {}, ["bool[2]{0, 1}", "bool[2]{1, 1}"], ["bool[2]"]),
    ("Where", {}, ["bool[3]{1, 0, 1}", "int64[3]{2, 3, H}", "int64[3]{5, W, 7}"], ["int64[3]{2, W, H}"]),
    ("Where", {}, ["bool[3]", "int64[3]{2, 3, H}", "int64[3]{5, W, 7}"], ["int64[3]"]),
    ("Where", {}, ["bool[1]{H}", "int64[1]{2}", "int64[1]{5}"], ["int64[1]"]),
    ("Where", {}, ["bool[1]{1}", "int64[2]{2, 3}", "int64[2]{5, 6}"], ["int64[2]"]),
    ("Where", {}, ["bool[2]{1, 0}", "int64[1]{2}", "int64[2]{5, 6}"], ["int64[2]"]),
    ("Where", {}, ["bool[2]{1, 0}", "int64[2]{2, 3}", "int64[1]{5}"], ["int64[2]"]),
    ("Where", {}, ["bool[2]{1, 0}", "int64[2]", "int64[2]{5, 6}"], ["int64[2]"]),
    ("Where", {}, ["bool[2]{1, 0}", "int64[2]{5, 6}", "int64[2]"], ["int64[2]"]),
    ("Where", {}, ["bool[B, 1]", "float16[4]", "none[]"], ["float16[B, 4]"]),
    ("Cast", {"to": 6}, ["int64[2]{3, H}"], ["int32[2]{3, H}"]),
    ("Cast", {"to": 7}, ["int32[2]{3, H}"], ["int64[2]{3, H}"]),
    ("Cast", {"to": 6}, ["int64[2]{3, 2147483647}"], ["int32[2]{3, 2147483647}"]),
    ("Cast", {"to": 6}, ["int64[2]{3, 2147483648}"], ["int32[2]"]),
    ("Cast", {"to": 6}, ["int64[2]{-2147483648, 3}"], ["int32[2]{-2147483648, 3}"]),
    ("Cast", {"to": 6}, ["int64[2]{-2147483649, 3}"], ["int32[2]"]),
    ("Cast", {"to": 5}, ["int64[1]{3}"], ["int16[1]"]),
    ("Cast", {"to": 13}, ["int64[1]{3}"], ["uint64[1]"]),
    ("Cast", {"to": 1}, ["int64[1]{3}"], ["float32[1]"]),
    ("Cast", {"to": 7}, ["float32[B]"], ["int64[B]"]),
    ("Cast", {"to": None}, ["float32[B]"], ["none[B]"]),
]  # fmt: skip

INDEXING: list[Row] = [
    ("Shape", {}, ["float16[B, 3, H]"], ["int64[3]{B, 3, H}"]),
    ("Shape", {"start": 1}, ["float16[B, 3, H]"], ["int64[2]{3, H}"]),
    ("Shape", {"end": 1}, ["float16[B, 3, H]"], ["int64[1]{B}"]),
    ("Shape", {"start": -2, "end": -1}, ["float16[B, 3, H]"], ["int64[1]{3}"]),
    ("Shape", {}, ["float16[]"], ["int64[0]{}"]),
    ("Shape", {}, ["float16"], ["int64"]),
    ("Size", {}, ["float16[B, 3, H]"], ["int64[]{3*B*H}"]),
    ("Size", {}, ["float16"], ["int64[]"]),
    ("Gather", {}, ["float16[B, 3, H]", "int64[2, 5]"], ["float16[2, 5, 3, H]"]),
    ("Gather", {"axis": 1}, ["float16[B, 3, H]", "int64[]"], ["float16[B, H]"]),
    ("Gather", {"axis": -1}, ["float16[B, 3, H]", "int64[W]"], ["float16[B, 3, W]"]),
    ("Gather", {}, ["float16", "int64[2]"], ["float16"]),
    ("Gather", {}, ["float16[B]", "int64"], ["float16"]),
    ("Gather", {}, ["int64[3]{B, 5, H}", "int64[2]{2, -2}"], ["int64[2]{H, 5}"]),
    ("Gather", {}, ["int64[3]{B, 5, H}", "int64[]{0}"], ["int64[]{B}"]),
    ("Gather", {}, ["int64[3]{B, 5, H}", "int64[2]{0, W}"], ["int64[2]"]),
    ("Gather", {}, ["int64[3]{B, 5, H}", "int64[2]"], ["int64[2]"]),
    ("Gather", {}, ["int64[3]", "int64[2]{0, 1}"], ["int64[2]"]),
    ("Gather", {}, ["int64[1, 3]{B, 5, H}", "int64[1]{0}"], ["int64[1, 3]"]),
    ("GatherND", {}, ["float16[B, 3, H]", "int64[5, 2]"], ["float16[5, H]"]),
    ("GatherND", {}, ["float16[B, 3, H]", "int64[W, 5, 3]"], ["float16[W, 5]"]),
    ("GatherND", {"batch_dims": 1}, ["float16[B, 3, H]", "int64[B, 7, 1]"], ["float16[B, 7, H]"]),
    ("GatherND", {}, ["float16[B, 3, H]", "int64[5, S]"], ["float16"]),
    ("GatherND", {}, ["float16", "int64[5, 2]"], ["float16"]),
    ("GatherND", {}, ["float16[B]", "int64"], ["float16"]),
    ("ScatterND", {}, ["int64[3]{1, 2, H}", "int64[2, 1]{2, 0}", "int64[2]{7, W}"], ["int64[3]{W, 2, 7}"]),
    ("ScatterND", {"reduction": "none"}, ["int64[2]{1, 2}", "int64[1, 1]{-1}", "int64[1]{7}"], ["int64[2]{1, 7}"]),
    ("ScatterND", {"reduction": "add"}, ["int64[2]{1, 2}", "int64[1, 1]{1}", "int64[1]{7}"], ["int64[2]"]),
    ("ScatterND", {}, ["int64[2]{1, 2}", "int64[1, 1]{H}", "int64[1]{7}"], ["int64[2]"]),
    ("ScatterND", {}, ["int64[2]", "int64[1, 1]{1}", "int64[1]{7}"], ["int64[2]"]),
    ("ScatterND", {}, ["int64[2]{1, 2}", "int64[1, 1]", "int64[1]{7}"], ["int64[2]"]),
    ("ScatterND", {}, ["int64[2]{1, 2}", "int64[1, 1]{1}", "int64[1]"], ["int64[2]"]),
    ("ScatterND", {}, ["int64[1, 2]{1, 2}", "int64[1, 1]{0}", "int64[1, 2]{7, 8}"], ["int64[1, 2]"]),
    ("TopK", {}, ["float16[B, 3, H]", "int64[1]{5}"], ["float16[B, 3, 5]", "int64[B, 3, 5]"]),
    ("TopK", {"axis": 0}, ["float16[B, 3, H]", "int64[1]{W}"], ["float16[W, 3, H]", "int64[W, 3, H]"]),
    ("TopK", {"axis": -2}, ["float16[B, 3, H]", "int64[1]{2}"], ["float16[B, 2, H]", "int64[B, 2, H]"]),
    ("TopK", {}, ["float16[B, 3, H]", "int64[1]"], ["float16", "int64"]),
    ("TopK", {}, ["float16", "int64[1]{2}"], ["float16", "int64"]),
    ("Slice", {}, ["float16[7, 9]", "int64[1]{1}", "int64[1]{6}"], ["float16[5, 9]"]),
    ("Slice", {}, ["float16[7, 9]", "int64[2]{1, 2}", "int64[2]{6, 9}"], ["float16[5, 7]"]),
    ("Slice", {}, ["float16[7, 9]", "int64[1]{1}", "int64[1]{6}", "int64[1]{1}"], ["float16[7, 5]"]),
    ("Slice", {}, ["float16[7, 9]", "int64[1]{1}", "int64[1]{6}", "int64[1]{-2}", "int64[1]{2}"], ["float16[3, 9]"]),
    ("Slice", {}, ["float16[7, 9]", "int64[1]{0}", "int64[1]{9}", "none", "int64[1]{3}"], ["float16[3, 9]"]),
    ("Slice", {}, ["float16[7, 9]", "int64[1]{6}", "int64[1]{2}"], ["float16[0, 9]"]),
    ("Slice", {}, ["float16[H, 9]", "int64[1]{1}", "int64[1]{2147483647}", "int64[1]{0}", "int64[1]{2}"],
     ["float16[H//2, 9]"]),
    ("Slice", {}, ["float16[7, 9]", "int64[1]", "int64[1]{6}"], ["float16[U, U]"]),
    ("Slice", {}, ["float16[7, 9]", "int64[1]{1}", "int64[1]"], ["float16[U, U]"]),
    ("Slice", {}, ["float16", "int64[1]{1}", "int64[1]{6}"], ["float16"]),
    ("Slice", {}, ["float16[7, 9]", "int64[1]{1}", "int64[1]{6}", "int64[1]"], ["float16[U, U]"]),
    ("Slice", {}, ["float16[7, 9]", "int64[1]{1}", "int64[1]{6}", "int64[1]{0}", "int64[1]"], ["float16[U, U]"]),
    ("Slice", {}, ["float16[7, 9]", "int64[2]{6, 1}", "int64[2]{1, 3}", "int64[2]{0, 1}", "int64[2]{1, -1}"],
     ["float16[U, U]"]),
    ("Slice", {}, ["int64[4]{B, 5, H, W}", "int64[1]{1}", "int64[1]{3}"], ["int64[2]{5, H}"]),
    ("Slice", {}, ["int64[4]{B, 5, H, W}", "int64[1]{0}", "int64[1]{9}", "int64[1]{0}", "int64[1]{2}"],
     ["int64[2]{B, H}"]),
    ("Slice", {}, ["int64[4]{B, 5, H, W}", "int64[1]{0}", "int64[1]{H}"], ["int64[H]"]),
    ("Slice", {}, ["int64[4]{B, 5, H, W}", "int64[1]{H}", "int64[1]{H + 2}"], ["int64[2]"]),
    ("Slice", {}, ["int64[1, 4]{B, 5, H, W}", "int64[1]{0}", "int64[1]{1}"], ["int64[1, 4]"]),
]  # fmt: skip

LAYERS: list[Row] = [
    ("MatMul", {}, ["float16[B, 1, H, 8]", "float32[3, 8, W]"], ["float16[B, 3, H, W]"]),
    ("MatMul", {}, ["float16[H, 8]", "float16[8, W]"], ["float16[H, W]"]),
    ("MatMul", {}, ["float16[8]", "float16[8, W]"], None),
    ("MatMul", {}, ["float16[H, 8]", "float16[8]"], None),
    ("MatMul", {}, ["float16", "float16[8, W]"], None),
    ("MatMul", {}, ["float16[H, 8]", "float16"], None),
    ("Conv", {"pads": [1, 2, 3, 4], "strides": [2, 1]}, ["float16[B, 4, 9, 7]", "float32[6, 2, 3, 5]", "float32[6]"],
     ["float16[B, 6, 6, 9]"]),
    ("Conv", {}, ["float16", "float16[6, 2, 3, 5]"], None),
    ("Conv", {}, ["float16[B, 4, 9, 7]", "float16"], None),
    ("AveragePool", {"kernel_shape": [3, 2], "strides": [2, 1]}, ["float16[B, 4, 9, 7]"], ["float16[B, 4, 4, 6]"]),
    ("MaxPool", {"kernel_shape": [3, 2]}, ["float16[B, 4, 9, 7]"], ["float16[B, 4, 7, 6]", "int64[B, 4, 7, 6]"]),
    ("LpPool", {"kernel_shape": [3, 2], "ceil_mode": 0}, ["float16[B, 4, 9, 7]"], ["float16[B, 4, 7, 6]"]),
    ("MaxPool", {"kernel_shape": [3, 2], "ceil_mode": 1}, ["float16[B, 4, 9, 7]"], None),
    ("MaxPool", {"kernel_shape": [3, 2]}, ["float16"], None),
    ("Resize", {}, ["float16[B, 4, H, W]", "none", "none", "int64[4]{1, 2, 3, S}"], ["float16[1, 2, 3, S]"]),
    ("Resize", {"axes": [3, 1]}, ["float16[B, 4, H, W]", "none", "none", "int64[2]{5, S}"], ["float16[B, S, H, 5]"]),
    ("Resize", {"keep_aspect_ratio_policy": "stretch"}, ["float16[B, 4]", "none", "none", "int64[2]{5, S}"],
     ["float16[5, S]"]),
    ("Resize", {"keep_aspect_ratio_policy": "not_larger"}, ["float16[B, 4]", "none", "none", "int64[2]{5, S}"], None),
    ("Resize", {"coordinate_transformation_mode": "tf_crop_and_resize"},
     ["float16[B, 4]", "none", "none", "int64[2]{5, S}"], None),
    ("Resize", {"coordinate_transformation_mode": "asymmetric"}, ["float16[B, 4]", "none", "none", "int64[2]{5, S}"],
     ["float16[5, S]"]),
    ("Resize", {}, ["float16", "none", "none", "int64[2]{5, S}"], None),
    ("Resize", {}, ["float16[B, 4]", "none", "none", "int64[2]"], None),
    ("Resize", {}, ["float16[B, 4]", "none", "float32[2]"], None),
    ("Resize", {}, ["float16[B, 4]"], None),
    ("Attention", {}, ["float16[B, 8, S, 4]", "float16[B, 2, H, 4]", "float16[B, 2, H, 6]"], ["float16[B, 8, S, 6]"]),
    ("Attention", {}, ["float16[B, 8, S, 4]", "float16[B, 2, H, 4]", "float16[B, 2, H, 6]"],
     ["float16[B, 8, S, 6]", "none", "none"]),
    ("Attention", {"q_num_heads": 8, "kv_num_heads": 2}, ["float16[B, S, 32]", "float16[B, H, 8]", "float16[B, H, 6]"],
     ["float16[B, S, 24]"]),
    ("Attention", {"q_num_heads": 3, "kv_num_heads": 2}, ["float16[B, S, 32]", "float16[B, H, 8]", "float16[B, H, W]"],
     ["float16[B, S, U]"]),
    ("Attention", {}, ["float16", "float16[B, 2, H, 4]", "float16[B, 2, H, 6]"], ["float16", "float16"]),
    ("Attention", {}, ["float16[B, 8, S, 4]", "float32[B, 2, H, 4]", "float32"], ["float16"]),
    ("Attention", {}, ["float16[B, 8, S, 4]", "float32[B, 2, H, 4]", "float32[B, 2, H, 6]"], ["float16[B, 8, S, 6]"]),
    ("Attention", {"q_num_heads": 2, "kv_num_heads": 2}, ["float16[B, S, 8]", "float32[B, H, 8]", "float32[B, H, 6]"],
     ["float16[B, S, 6]"]),
]  # fmt: skip

RESHAPING: list[Row] = [
    ("Concat", {"axis": 1}, ["float16[B, 3, H]", "float16[B, 4, H]", "float16[B, W, H]"], ["float16[B, W + 7, H]"]),
    ("Concat", {"axis": -1}, ["float16[2*B, 3, H]", "float16[W, 3, 5]"], ["float16[W, 3, H + 5]"]),
    ("Concat", {"axis": 0}, ["float16[B, W, H]", "float16[2, 3*S, 2*W]"], ["float16[B + 2, W, H]"]),
    ("Concat", {"axis": 1}, ["float16[B, 3, H]", "float16"], ["float16"]),
    ("Concat", {"axis": 1}, ["float16", "float16[B, 3, H]"], ["float16"]),
    ("Concat", {"axis": 0}, ["int64[2]{3, H}", "int64[1]{W}"], ["int64[3]{3, H, W}"]),
    ("Concat", {"axis": 0}, ["int64[2]{3, H}", "int64[1]"], ["int64[3]"]),
    ("Concat", {"axis": 1}, ["int64[1, 2]{3, H}", "int64[1, 1]{W}"], ["int64[1, 3]"]),
    ("Unsqueeze", {}, ["float16[B, 3]", "int64[1]{1}"], ["float16[B, 1, 3]"]),
    ("Unsqueeze", {}, ["float16[B, 3]", "int64[2]{0, -1}"], ["float16[1, B, 3, 1]"]),
    ("Unsqueeze", {"axes": [-2]}, ["float16[B, 3]"], ["float16[B, 1, 3]"]),
    ("Unsqueeze", {}, ["int64[]{H}", "int64[1]{0}"], ["int64[1]{H}"]),
    ("Unsqueeze", {}, ["float16[B, 3]", "int64[1]"], ["float16"]),
    ("Unsqueeze", {}, ["float16[B, 3]", "int64[1]{H}"], ["float16"]),
    ("Unsqueeze", {}, ["float16", "int64[1]{0}"], ["float16"]),
    ("Squeeze", {}, ["float16[B, 1, 3, 1]", "int64[1]{1}"], ["float16[B, 3, 1]"]),
    ("Squeeze", {}, ["float16[B, 1, 3, 1]", "int64[2]{-1, 1}"], ["float16[B, 3]"]),
    ("Squeeze", {"axes": [-3]}, ["float16[B, 1, 3, 1]"], ["float16[B, 3, 1]"]),
    ("Squeeze", {}, ["float16[2, 1, 3, 1]"], ["float16[2, 3]"]),
    ("Squeeze", {}, ["float16[2, 1, 3, 1]", "absent"], ["float16[2, 3]"]),
    ("Squeeze", {}, ["float16[B, 1, 3, 1]"], ["float16"]),
    ("Squeeze", {}, ["float16[B, 1, 3, 1]", "int64[2]"], ["float16[U, U]"]),
    ("Squeeze", {}, ["float16[2, 1, 3, 1]", "int64[1]"], ["float16[U, U, U]"]),
    ("Squeeze", {}, ["float16[2, 1, 3, 1]", "int64[S]"], ["float16"]),
    ("Squeeze", {}, ["float16[2, 1, 3, 1]", "int64"], ["float16"]),
    ("Squeeze", {}, ["float16", "int64[1]{0}"], ["float16"]),
    ("Squeeze", {}, ["int64[1]{H}", "int64[1]{0}"], ["int64[]{H}"]),
    ("Reshape", {}, ["float16[B, 4, H]", "int64[3]{0, 2, -1}"], ["float16[B, 2, 2*H]"]),
    ("Reshape", {"allowzero": 1}, ["float16[0, 4]", "int64[2]{3, 0}"], ["float16[3, 0]"]),
    ("Reshape", {}, ["float16", "int64[2]{0, 5}"], ["float16[U, 5]"]),
    ("Reshape", {}, ["float16[B]", "int64[3]{-1, 1, 1}"], ["float16[B, 1, 1]"]),
    ("Reshape", {}, ["float16[B, 4]", "int64[3]"], ["float16[U, U, U]"]),
    ("Reshape", {}, ["float16[B, 4]", "int64[S]"], ["float16"]),
    ("Reshape", {}, ["float16[B, 4]", "int64"], ["float16"]),
    ("Reshape", {}, ["float16[B, 3]", "int64[2]{2, -1}"], ["float16[2, U]"]),
    ("Reshape", {}, ["int64[2]{B, 3}", "int64[2]{2, 1}"], ["int64[2, 1]{B, 3}"]),
    ("Flatten", {}, ["float16[B, 3, H]"], ["float16[B, 3*H]"]),
    ("Flatten", {"axis": 2}, ["float16[B, 3, H]"], ["float16[3*B, H]"]),
    ("Flatten", {"axis": 0}, ["float16[B, 3, H]"], ["float16[1, 3*B*H]"]),
    ("Flatten", {}, ["float16"], ["float16"]),
    ("Expand", {}, ["float16[B, 1]", "int64[3]{2, 1, H}"], ["float16[2, B, H]"]),
    ("Expand", {}, ["float16[B, 1]", "int64[3]"], ["float16"]),
    ("Tile", {}, ["float16[B, 3]", "int64[2]{2, H}"], ["float16[2*B, 3*H]"]),
    ("Tile", {}, ["float16[B, 3]", "int64[2]"], ["float16[U, U]"]),
    ("Tile", {}, ["float16", "int64[2]{2, H}"], ["float16"]),
    ("ConstantOfShape", {}, ["int64[2]{2, H}"], ["float32[2, H]"]),
    ("ConstantOfShape", {}, ["int64[2]"], ["float32"]),
    ("Range", {}, ["int64[]{2}", "int64[]{H}", "int64[]{1}"], ["int64[H - 2]"]),
    ("Range", {}, ["int32[]{2}", "int32[]{7}", "int32[]{2}"], ["int32[U]"]),
    ("Range", {}, ["int64[]", "int64[]{H}", "int64[]{1}"], ["int64[U]"]),
    ("Range", {}, ["int64[]{2}", "int64[]", "int64[]{1}"], ["int64[U]"]),
    ("Transpose", {"perm": [2, 0, 1]}, ["float16[B, 3, H]"], ["float16[H, B, 3]"]),
    ("Transpose", {}, ["float16[B, 3, H]"], ["float16[H, 3, B]"]),
    ("Transpose", {}, ["float16"], ["float16"]),
    ("Split", {"axis": 1}, ["float16[B, H, 3]", "int64[2]{4, H}"], ["float16[B, 4, 3]", "float16[B, H, 3]"]),
    ("Split", {"axis": -2}, ["float16[B, H, 3]", "int64[1]{H}"], ["float16[B, H, 3]"]),
    ("Split", {}, ["float16[5]", "int64[2]{2, 3}"], ["float16[2]", "float16[3]"]),
    ("Split", {}, ["int64[2]{B, 3}", "int64[2]{1, 1}"], ["int64[1]{B}", "int64[1]{3}"]),
    ("Split", {}, ["int64[3]{B, 3, H}", "int64[2]{1, 2}"], ["int64[1]{B}", "int64[2]{3, H}"]),
    ("Split", {}, ["int64[2]{B, 3}"], ["int64[2]{B, 3}"]),
    ("Split", {}, ["float16[5]"], None),
    ("Split", {}, ["float16[5]", "int64[2]"], None),
    ("Split", {}, ["float16", "int64[2]{2, 3}"], None),
    ("Pad", {}, ["float16[B, 3]", "int64[4]{1, 2, 4, 8}"], ["float16[B + 5, 13]"]),
    ("Pad", {}, ["float16[B, 3]", "int64[4]{1, 2, 4, 8}", "float16[]"], ["float16[B + 5, 13]"]),
    ("Pad", {}, ["float16[B, 3, H]", "int64[6]{1, 2, 4, 8, 0, -1}"], ["float16[B + 9, 5, H + 3]"]),
    ("Pad", {}, ["float16[B, 3]", "int64[4]{1, 2, 4, 8}", "float16[]", "int64[2]"], None),
    ("Pad", {}, ["float16[B, 3]", "int64[2]{1, 2}"], None),
    ("Pad", {}, ["float16[B, 3]", "int64[4]"], None),
    ("Pad", {}, ["float16[B, 3]"], None),
    ("Pad", {}, ["float16", "int64[4]{1, 2, 4, 8}"], None),
]  # fmt: skip


@pytest.mark.parametrize(
    "rows", [ELEMENTWISE, INDEXING, LAYERS, RESHAPING], ids=["elements", "index", "layers", "form"]
)
def test_each_rule_by_itself(rows: list[Row]) -> None:
    for op, attributes, inputs, outputs in rows:
        wanted = None if outputs is None else [fact(text) for text in outputs]
        assert ask(op, attributes, inputs, len(outputs or [""])) == wanted, f"{op} {attributes} {inputs}"


def test_a_pool_has_places_only_where_they_are_asked_for() -> None:
    for outputs in (1, 2):
        answer = ask("MaxPool", {"kernel_shape": [2]}, ["float16[B, 4, 9]"], outputs)
        assert answer == [fact("float16[B, 4, 8]"), fact("int64[B, 4, 8]")][:outputs]


@pytest.mark.parametrize(
    ("attributes", "scales", "shape"),
    [
        ({}, [1, 2, 3], "B, 8, 3*H"),
        ({}, [1, 0.5, 3], "B, U, 3*H"),
        ({"axes": [2, 0]}, [3, 2], "2*B, 4, 3*H"),
        ({}, [], None),
    ],
)
def test_a_resize_by_constant_scales(attributes: dict[str, Any], scales: list[float], shape: str | None) -> None:
    inputs = ["float16[B, 4, H]", "none", f"float32[{len(scales)}]"]
    answer = ask("Resize", attributes, inputs, 1, at2=np.array(scales, np.float32))
    assert answer == (None if shape is None else [fact(f"float16[{shape}]")])


@pytest.mark.parametrize(
    ("dtype", "size", "value"),
    [("int64", 2, "7, 7"), ("bool", 1, "1"), ("uint8", 3, "7, 7, 7"), ("float16", 2, None),
     ("int32", 64, "7, " * 63 + "7"), ("int64", 65, None)],
)  # fmt: skip
def test_a_filled_vector_is_followed_as_a_value(dtype: str, size: int, value: str | None) -> None:
    fill = gs.Constant("fill", np.array([7], dtype))
    answer = ask("ConstantOfShape", {"value": fill}, [f"int64[1]{{{size}}}"], 1)
    assert answer == [fact(f"{dtype}[{size}]" + (f"{{{value}}}" if value else ""))]


@pytest.mark.parametrize("shape", ["2, 1", "H"])
def test_of_other_filled_tensors_the_elements_are_not_followed(shape: str) -> None:
    fill = gs.Constant("fill", np.array([7], np.int64))
    rank = shape.count(",") + 1
    assert ask("ConstantOfShape", {"value": fill}, [f"int64[{rank}]{{{shape}}}"], 1) == [fact(f"int64[{shape}]")]


@pytest.mark.parametrize(("data", "target"), [("int64[2]{3, H}", "1, 3"), ("int64[6]{1, 2, 3, 4, 5, 6}", "2, 2")])
def test_numbers_that_do_not_fill_a_shape_are_a_contradiction(data: str, target: str) -> None:
    with pytest.raises(ValueError, match=r"elements do not fill \("):
        ask("Reshape", {}, [data, f"int64[2]{{{target}}}"], 1)


@pytest.mark.parametrize(
    ("stated", "wanted"), [(10, "float16"), (np.float32, "float32"), ("int8", "int8"), (9, "bool")]
)
def test_types_come_as_onnxs_numbers_and_as_numpys(stated: Any, wanted: str) -> None:
    assert as_dtype(stated) == np.dtype(wanted)
    assert as_dtype(None) is None


def test_one_function_may_be_the_rule_of_several() -> None:
    rules = Rules()

    @rules.rule("A", "B")
    @rules.rule("C")
    def same(node: gs.Node, facts: list[Fact]) -> list[Fact]:
        return facts

    assert dict(rules) == dict.fromkeys("ABC", same)
