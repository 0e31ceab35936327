"""An fp16 graph of which some nodes, or all, compute in fp32: the weights stay as they are, on disk too.

It is made in a moment, from nothing but the ``.onnx`` file: a cast before every weight and every fp16 tensor that a
wide node reads, and one behind what it hands to others. ONNX Runtime folds the casts of weights when it loads them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from sdort.graph.operator import Category
from sdort.onnx_io.component_file import read_component
from sdort.operators import of_category

if TYPE_CHECKING:
    import onnx_graphsurgeon as gs

BEFORE_SOFTMAX = frozenset(
    {"Add", "Cast", "Div", "Expand", "Mul", "Reshape", "Sub", "Transpose", "Unsqueeze", "Squeeze", "Where"}
)
"""Operators between the product of queries and keys and its softmax."""
Select = Callable[[onnx.ModelProto], Collection[str]]


def widen_file(path: Path, select: Select, component: str) -> onnx.ModelProto | None:
    """The model of a file, with the nodes that ``select`` names in fp32; its external data is where it was.

    Returns:
        None if none of them computes in fp16.

    Raises:
        BadModelError: the file is unsafe or broken.
    """
    half = names_of_dtype(path, component, np.dtype(np.float16))
    proto = read_component(path, component).copy()
    return proto if widen(proto, half, select(proto)) else None


def all_nodes(proto: onnx.ModelProto) -> set[str]:
    """Every node, by its first output: names are optional in ONNX."""
    return {node.output[0] for node in proto.graph.node}


def attention_nodes(proto: onnx.ModelProto) -> set[str]:
    """Attentions, fused or not, by their first output: from the product of queries and keys to the softmax."""
    made = {name: node for node in proto.graph.node for name in node.output}
    attentions = of_category(Category.ATTENTION) | {"Attention"}
    names = {node.output[0] for node in proto.graph.node if node.op_type in attentions}
    stack = [node for node in proto.graph.node if node.op_type == "Softmax"]
    while stack:
        node = stack.pop()
        if node.output[0] in names:
            continue
        names.add(node.output[0])
        if node.op_type in BEFORE_SOFTMAX or node.op_type == "Softmax":
            before = (made[name] for name in node.input if name in made)
            stack += [
                producer for producer in before if producer.op_type in BEFORE_SOFTMAX | {"MatMul", "Gemm", "Einsum"}
            ]
    return names


def names_of_dtype(path: Path, component: str, dtype: np.dtype[Any]) -> set[str]:
    """The names of all tensors of ``dtype`` of a model, weights and inputs too.

    Raises:
        BadModelError: the file is unsafe or broken.
    """
    # Every run can widen a graph, and hardly one does: its start has no need of the graph library.
    from sdort.onnx_io.load import load_model
    from sdort.rewrite.editor import Editor

    editor = Editor(load_model(path, component))
    tensors: Iterator[gs.Tensor] = (t for node in editor.graph.nodes for t in (*node.inputs, *node.outputs))
    tensors = (t for group in (tensors, editor.graph.inputs, editor.graph.outputs) for t in group)
    return {t.name for t in tensors if t.name and (editor.dtype(t) or t.dtype) == dtype}


def widen(proto: onnx.ModelProto, half: Collection[str], chosen: Collection[str], *, rounding: bool = False) -> int:
    """Let the nodes with a first output in ``chosen`` compute in fp32, in place.

    Args:
        half: the names of all fp16 tensors.
        rounding: round every result to fp16 nevertheless, as storing it would. ONNX Runtime's CPU provider, which has
            few fp16 kernels, else keeps fp32 between neighbours, so that nothing there overflows that would on a GPU.

    Returns:
        The number of nodes that read or write fp16 and compute in fp32 now.
    """
    nodes, widener, changes = list(proto.graph.node), _Widener(proto, set(half), set(chosen), rounding), 0
    del proto.graph.node[:]
    del proto.graph.value_info[:]
    for node in nodes:
        if node.output[0] in widener.chosen:
            changes += not widener.half.isdisjoint((*node.input, *node.output))
            widener.add_wide(node)
        else:
            proto.graph.node.extend(widener.narrowed(node.input))
            proto.graph.node.append(node)
    proto.graph.node.extend(widener.narrowed([output.name for output in proto.graph.output]))
    return changes


class _Widener:
    """Appends nodes to a graph; ``wide`` are the fp16 tensors with a twin in fp32, ``only_wide`` have nothing else."""

    def __init__(self, proto: onnx.ModelProto, half: set[str], chosen: set[str], rounding: bool) -> None:
        self.graph = proto.graph
        self.half = half
        self.chosen = chosen
        self.rounding = rounding
        self.wide: set[str] = set()
        self.only_wide: set[str] = set()

    def add_wide(self, node: onnx.NodeProto) -> None:
        """Append ``node`` in fp32, with the casts that it needs."""
        for index, name in enumerate(node.input):
            if name in self.half:
                if name not in self.wide:
                    self._cast(name, _twin(name), TensorProto.FLOAT)
                    self.wide.add(name)
                node.input[index] = _twin(name)
        _widen_attributes(node)
        behind = []
        for index, name in enumerate(node.output):
            if name in self.half:
                node.output[index] = f"{name}//exact" if self.rounding else _twin(name)
                behind.append(name)
        self.graph.node.append(node)
        self.wide.update(behind)
        self.only_wide.update(behind)
        for name in behind if self.rounding else ():
            self._cast(f"{name}//exact", f"{name}//rounded", TensorProto.FLOAT16)
            self._cast(f"{name}//rounded", _twin(name), TensorProto.FLOAT)

    def narrowed(self, names: Collection[str]) -> list[onnx.NodeProto]:
        """Casts that make the fp16 tensors of ``names`` that are there in fp32 only."""
        missing = [name for name in dict.fromkeys(names) if name in self.only_wide]
        self.only_wide.difference_update(missing)
        return [helper.make_node("Cast", [_twin(n)], [n], f"{n}//narrow", to=TensorProto.FLOAT16) for n in missing]

    def _cast(self, source: str, target: str, to: int) -> None:
        self.graph.node.append(helper.make_node("Cast", [source], [target], target, to=to))


def _twin(name: str) -> str:
    return f"{name}//float"


def _widen_attributes(node: onnx.NodeProto) -> None:
    for attribute in node.attribute:
        if attribute.name in ("to", "dtype") and attribute.i == TensorProto.FLOAT16:
            attribute.i = TensorProto.FLOAT
        if attribute.HasField("t") and attribute.t.data_type == TensorProto.FLOAT16:
            values = numpy_helper.to_array(attribute.t).astype(np.float32)
            attribute.t.CopyFrom(numpy_helper.from_array(values, attribute.t.name))
