"""Graphs run with every tensor stored in its type, as on a GPU: ONNX Runtime's CPU provider computes fp16 in fp32."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
from support.small_graphs import Array, to_proto
from support.small_graphs import run as run_wide

from sdort.engines.rounding import emulate_graph
from sdort.graph.model import Model
from sdort.onnx_io.load import from_proto
from sdort.rewrite.editor import Editor

HALF = np.dtype(np.float16)


def run(model: onnx.ModelProto | Model, feeds: Mapping[str, Array]) -> list[Array]:
    """The outputs. Operators compute in fp32 and round what they store, fused ones by their definitions."""
    proto = to_proto(model) if isinstance(model, Model) else model
    editor = Editor(from_proto(onnx.ModelProto.FromString(proto.SerializeToString()), None, "test"))
    tensors = [t for node in editor.graph.nodes for t in (*node.inputs, *node.outputs)]
    narrow = {t.name for t in (*tensors, *editor.graph.inputs) if t.name and editor.dtype(t) == HALF}
    return run_wide(emulate_graph(onnx.ModelProto.FromString(proto.SerializeToString()), narrow), feeds)
