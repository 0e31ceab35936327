"""Models of one GroupNorm operator, and random inputs for them."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper
from support.group_norm_cases import Array

PLAIN, SKIP, EXTENDED = "GroupNorm", "SkipGroupNorm", "sdort.GroupNorm"


INPUTS = {
    PLAIN: ("X", "gamma", "beta"),
    SKIP: ("X", "gamma", "beta", "skip", "bias"),
    EXTENDED: ("X", "X2", "gamma", "beta", "skip", "bias", "embedding"),
}


DTYPES = {np.float16: TensorProto.FLOAT16, np.float32: TensorProto.FLOAT}


def make_model(operator: str, feeds: dict[str, Array], outputs: tuple[str, ...], **attributes: Any) -> onnx.ModelProto:
    """One node whose inputs are graph inputs without a shape."""
    dtype = DTYPES[feeds["X"].dtype.type]
    inputs = [name if name in feeds else "" for name in INPUTS[operator]]
    while not inputs[-1]:
        inputs.pop()
    domain = "sdort" if operator == EXTENDED else "com.microsoft"
    node = helper.make_node(
        operator.split(".")[-1], inputs, list(outputs), name="norm", domain=domain, **{"activation": 0, **attributes}
    )
    types = {name: TensorProto.FLOAT if name in ("gamma", "beta") else dtype for name in feeds}
    graph = helper.make_graph(
        [node],
        "graph",
        [helper.make_tensor_value_info(name, types[name], None) for name in feeds],
        [helper.make_tensor_value_info(name, dtype, None) for name in outputs],
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1), helper.make_opsetid("sdort", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def draw(dtype: Any, shapes: dict[str, tuple[int, ...]], mean: float = 0.0) -> dict[str, Array]:
    random = np.random.default_rng(0)
    return {
        name: (random.normal(size=shape) + mean * (name == "X")).astype(
            np.float32 if name in ("gamma", "beta") else dtype
        )
        for name, shape in shapes.items()
    }
