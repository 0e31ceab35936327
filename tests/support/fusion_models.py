"""ONNX models made from the Before texts of fusions."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from sdort.graph.domains import file_domain
from sdort.rewrite.fusion import Fusion, load_fusions
from sdort.rewrite.pattern import OPSET, Capture, Pattern, TensorType

TWICE = ("pairs", "halves")
DTYPES = {"f": np.float32, "i": np.int64, "b": np.bool_}


def example(fusion: Fusion, index: int) -> dict[str, Any]:
    """EXAMPLE of a fusion for one variant: a tuple holds one value for each variant."""
    values: dict[str, Any] = {}
    for name, value in fusion.module.EXAMPLE.items():
        values[name] = value[index] if isinstance(value, tuple) else value
    return values


def before_model(fusion: Fusion, index: int, rng: np.random.Generator) -> onnx.ModelProto:
    """The Before graph of one variant with concrete sizes and random constants."""
    pattern, _ = fusion.variants[index]
    sizes = example(fusion, index)
    inputs, initializers = [], []
    for name in pattern.inputs:
        kind = pattern.types[name]
        if kind.kind == "i" or isinstance(sizes.get(name), str):
            initializers.append(numpy_helper.from_array(_given(sizes, name, kind), name))
        else:
            inputs.append(helper.make_tensor_value_info(name, _onnx_type(kind), _dims(sizes, name, kind)))
    for name in pattern.constants:
        initializers.append(numpy_helper.from_array(_constant(pattern, sizes, name, rng), name))
    nodes = [
        helper.make_node(
            node.op, node.inputs, node.outputs, name=f"n{i}",
            domain=file_domain(node.domain, node.op),
            **{k: sizes[v.name] if isinstance(v, Capture) else v for k, v in node.attrs.items()},
        )
        for i, node in enumerate(pattern.nodes)
    ]  # fmt: skip
    outputs = [onnx.ValueInfoProto(name=n) for n in pattern.outputs]
    for value in outputs:
        given = sizes.get(value.name)  # an array where the type is one of its own
        dtype = given.dtype if isinstance(given, np.ndarray) else DTYPES[pattern.types[value.name].kind]
        value.type.tensor_type.elem_type = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    graph = helper.make_graph(nodes, "before", inputs, outputs, initializers)
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def feeds(model: onnx.ModelProto, rng: np.random.Generator) -> dict[str, np.ndarray[Any, Any]]:
    """Fresh random inputs."""
    shapes = {i.name: [d.dim_value for d in i.type.tensor_type.shape.dim] for i in model.graph.input}
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def _onnx_type(kind: TensorType) -> int:
    return helper.np_dtype_to_tensor_dtype(np.dtype(DTYPES[kind.kind]))


def _dims(sizes: dict[str, Any], name: str, kind: TensorType) -> list[int]:
    if kind.dims is None:
        return list(sizes[name])
    return [d if isinstance(d, int) else sizes[d] for d in kind.dims]


def _given(sizes: dict[str, Any], name: str, kind: TensorType) -> np.ndarray[Any, Any]:
    if isinstance(sizes[name], np.ndarray):  # of a type of its own
        return np.array(sizes[name])
    if sizes[name] in ("causal", "future"):
        open_ = np.tril(np.ones((sizes["S"], sizes["S"]), np.bool_))[None, None] == (sizes[name] == "causal")
        return open_ if kind.kind == "b" else np.where(open_, 0.0, -np.inf).astype(np.float32)
    if sizes[name] in TWICE:  # a table of angles, each of which stands there twice
        width = _dims(sizes, name, kind)
        once = np.random.default_rng([*name.encode()]).standard_normal((*width[:-1], width[-1] // 2)).astype(np.float32)
        return np.repeat(once, 2, axis=-1) if sizes[name] == "pairs" else np.concatenate((once, once), axis=-1)
    return np.array(sizes[name], DTYPES[kind.kind])


def _constant(pattern: Pattern, sizes: dict[str, Any], name: str, rng: np.random.Generator) -> np.ndarray[Any, Any]:
    if name in pattern.values:
        return pattern.values[name]
    if name in sizes:
        values: np.ndarray[Any, Any] = np.array(sizes[name], DTYPES[pattern.types[name].kind])
        return values.reshape(()) if pattern.types[name].dims == () else values
    return rng.standard_normal(_dims(sizes, name, pattern.types[name])).astype(np.float32)


MOST_RESTORED = 6
"""Variants of a restoring fusion that are changed in every way: they differ in what one function writes."""
CASES = [(name, index) for name, fusion in load_fusions().items() for index in range(len(fusion.variants))]
CHANGED_CASES = [
    (name, index)
    for name, index in CASES
    if load_fusions()[name].stage != "restore" or index % -(-len(load_fusions()[name].variants) // MOST_RESTORED) == 0
]


TOLERANCE = 2e-5
"""Of the output's standard deviation: both sides are the same fp32 arithmetic, in another order (2^-24 is 6e-8)."""
