"""Values of standard nodes, computed by ONNX's reference implementation."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import onnx
from onnx import helper
from onnx.reference import ReferenceEvaluator

from sdort.graph.signature import Array


def evaluate_nodes(nodes: list[onnx.NodeProto], feeds: dict[str, Any], opset: int) -> Array | None:
    """The value of the last node's first output by ONNX's reference implementation; None if it has none."""
    output = nodes[-1].output[0]
    graph = helper.make_graph(
        nodes,
        "nodes",
        [
            helper.make_value_info(k, helper.make_tensor_type_proto(helper.np_dtype_to_tensor_dtype(v.dtype), v.shape))
            for k, v in feeds.items()
        ],
        [onnx.ValueInfoProto(name=output)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            values: Any = ReferenceEvaluator(model).run(None, feeds)
            return np.asarray(values[0])
    except Exception:  # the reference implementation raises whatever numpy raises; then the node stays
        return None
