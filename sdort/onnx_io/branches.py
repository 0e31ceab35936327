"""Branches that are always taken: an If whose condition is a constant of the graph gives way to one of its branches.

TorchScript writes ``squeeze(1)`` as an If over the size of that axis. What is known of sizes in a file is followed node
by node: shapes by onnx's inference, small tensors of sizes by their elements, some of which may be open.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import onnx
from onnx import AttributeProto, TypeProto, defs, helper, numpy_helper, shape_inference

from sdort.graph.signature import Array
from sdort.onnx_io.check_model import check_opsets
from sdort.onnx_io.check_nodes import check_nodes
from sdort.onnx_io.check_tensors import check_tensor, tensor_nbytes
from sdort.onnx_io.evaluate import evaluate_nodes

LARGEST = 64
"""Tensors of up to this many elements are followed as values."""
_MOVES = frozenset({"Gather", "Slice", "Squeeze", "Unsqueeze", "Concat", "Identity", "Reshape", "Transpose"})
"""Operators whose result has elements of the first inputs and nothing else."""
_COMPUTED = _MOVES | frozenset(
    """Abs Add And Cast Ceil Constant ConstantOfShape Div Equal Floor Greater GreaterOrEqual Less LessOrEqual Max Min
    Mod Mul Neg Not Or Pow ReduceMax ReduceMin ReduceProd ReduceSum Sqrt Sub Where Xor""".split()  # noqa: SIM905
)
"""Operators that conditions over sizes are made of."""
_OPEN = (1_000_003, 2_000_029)
"""Two numbers for an open element: where the results of a move differ, their elements are open."""


def inline_branches(model: onnx.ModelProto, component: str) -> onnx.ModelProto:
    """The model with the branch of each If of a known condition in its place; other Ifs stay.

    Args:
        model: the model without local functions; it may be changed.
        component: for messages.

    Raises:
        BadModelError: a node is broken.
    """
    if not any(node.op_type == "If" and not node.domain for node in model.graph.node):
        return model
    walk = _Walk(model, component)
    nodes = list(walk.run())
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    return model


class _Walk:
    """The nodes of a graph in order, with what is known of their tensors."""

    def __init__(self, model: onnx.ModelProto, component: str) -> None:
        self.graph, self.component = model.graph, component
        self.opsets = check_opsets(model.opset_import, component)
        self.imports = list(model.opset_import)
        self.functions = {(function.domain, function.name) for function in model.functions}
        self.types: dict[str, TypeProto] = {}
        self.values: dict[str, tuple[Array, Array]] = {}
        """Twice the elements of each small tensor, with the two numbers of :data:`_OPEN` for what is open."""
        self.taken = set(_names(model.graph))
        self.inputs = {info.name for info in model.graph.input}
        """An initializer of such a name is a default: a run may take another."""
        for info in model.graph.input:
            self.types[info.name] = info.type
        for tensor in model.graph.initializer:
            self._constant(tensor)

    def run(self) -> Iterator[onnx.NodeProto]:
        pending = list(self.graph.node)[::-1]
        while pending:
            node = pending.pop()
            if node.op_type == "If" and not node.domain:
                branch = self._branch(node)
                if branch is not None:
                    pending.extend(self._inlined(node, branch)[::-1])
                    continue
            else:
                check_nodes([node], self.opsets, self.functions, self.component)
                self._infer(node)
            yield node

    # --- what is known ---

    def _constant(self, tensor: onnx.TensorProto) -> None:
        check_tensor(tensor, self.component)
        self.types.setdefault(tensor.name, helper.make_tensor_type_proto(tensor.data_type, list(tensor.dims)))
        inline = tensor.data_location != onnx.TensorProto.EXTERNAL
        if (
            tensor.name not in self.inputs
            and inline
            and math.prod(tensor.dims) <= LARGEST
            and tensor_nbytes(tensor, self.component)
        ):
            values = numpy_helper.to_array(tensor)
            self.values[tensor.name] = values, values

    def _infer(self, node: onnx.NodeProto) -> None:
        if node.domain or not defs.has(node.op_type, self.opsets[""]):
            return
        values = self._value(node)
        if values is not None:
            self.values[node.output[0]] = values
            kind = helper.np_dtype_to_tensor_dtype(values[0].dtype)
            self.types[node.output[0]] = helper.make_tensor_type_proto(kind, values[0].shape)
            return
        self.types.update(self._types(node))

    def _types(self, node: onnx.NodeProto) -> dict[str, TypeProto]:
        if any(name and name not in self.types for name in node.input):
            return {}
        schema = defs.get_schema(node.op_type, self.opsets[""])
        closed = {n: v[0] for n in node.input if (v := self.values.get(n)) and np.array_equal(*v)}
        data = {name: numpy_helper.from_array(value, name) for name, value in closed.items()}
        types = {name: self.types[name] for name in node.input if name}
        try:
            made: dict[str, TypeProto] = shape_inference.infer_node_outputs(
                schema, node, types, data, opset_imports=self.imports
            )
        except Exception:  # the C++ code has no one exception type; loading says what is wrong
            return {}
        target = self.values.get(node.input[1]) if node.op_type == "Reshape" else None
        if target is not None and not np.array_equal(*target):
            sizes = [int(a) if a == b and a > 0 else None for a, b in zip(*target, strict=True)]
            made = {node.output[0]: helper.make_tensor_type_proto(types[node.input[0]].tensor_type.elem_type, sizes)}
        return made

    def _value(self, node: onnx.NodeProto) -> tuple[Array, Array] | None:
        """Elements of a node's result, twice; None if nothing is known of them."""
        if node.op_type in ("Shape", "Size"):
            return self._sizes(node)
        if node.op_type not in _COMPUTED or len(node.output) != 1:
            return None
        pairs = [self.values.get(name) for name in node.input if name]
        if any(pair is None for pair in pairs):
            return None
        # A move takes open elements from where it takes elements; what says where to, and all else, has to be known.
        moved = 0 if node.op_type not in _MOVES else len(pairs) if node.op_type == "Concat" else 1
        if not all(pair is not None and np.array_equal(*pair) for pair in pairs[moved:]):
            return None
        first, second = self._evaluate(node, 0), self._evaluate(node, 1)
        if first is None or second is None or first.size > LARGEST:
            return None
        return first, second

    def _sizes(self, node: onnx.NodeProto) -> tuple[Array, Array] | None:
        kind = self.types.get(node.input[0])
        if kind is None or not kind.tensor_type.HasField("shape"):
            return None
        dims = [d.dim_value if d.HasField("dim_value") else None for d in kind.tensor_type.shape.dim]
        filled = [np.array([fill if d is None else d for d in dims], np.int64) for fill in _OPEN]
        if node.op_type == "Size":
            return None if None in dims else (np.array(math.prod(filled[0]), np.int64),) * 2
        ends = {attribute.name: attribute.i for attribute in node.attribute}
        first, second = (sizes[ends.get("start", 0) : ends.get("end", len(dims))] for sizes in filled)
        return first, second

    def _evaluate(self, node: onnx.NodeProto, which: int) -> Array | None:
        feeds = {name: self.values[name][which] for name in node.input if name}
        if node.op_type == "ConstantOfShape" and math.prod(map(int, feeds[node.input[0]])) > LARGEST:
            return None
        return evaluate_nodes([node], feeds, self.opsets[""])

    # --- branches ---

    def _branch(self, node: onnx.NodeProto) -> onnx.GraphProto | None:
        """The branch that is always taken; None where that is not known, or it is no plain graph."""
        pair = self.values.get(node.input[0]) if len(node.input) == 1 else None
        branches = {a.name: a.g for a in node.attribute if a.type == AttributeProto.GRAPH}
        if (
            pair is None
            or pair[0].size != 1
            or not np.array_equal(*pair)
            or {*branches} != {"then_branch", "else_branch"}
        ):
            return None
        branch = branches["then_branch" if pair[0].reshape(-1)[0] else "else_branch"]
        plain = not branch.input and not branch.sparse_initializer and len(branch.output) == len(node.output)
        return branch if plain else None

    def _inlined(self, node: onnx.NodeProto, branch: onnx.GraphProto) -> list[onnx.NodeProto]:
        """The branch's nodes under names of their own and what hands on its results; its constants join the graph's."""
        own = [t.name for t in branch.initializer] + [name for n in branch.node for name in n.output if name]
        names = {name: self._unique(name) for name in dict.fromkeys(own)}
        for tensor in branch.initializer:
            made = self.graph.initializer.add()
            made.CopyFrom(tensor)
            made.name = names[tensor.name]
            self._constant(made)
        nodes = [_renamed(inner, names) for inner in branch.node]
        ends = [(names.get(info.name, info.name), name) for info, name in zip(branch.output, node.output, strict=True)]
        return nodes + [helper.make_node("Identity", [source], [name]) for source, name in ends if name]

    def _unique(self, name: str) -> str:
        number, made = 0, name
        while made in self.taken:
            number += 1
            made = f"{name}__{number}"
        self.taken.add(made)
        return made


def _renamed(node: onnx.NodeProto, names: dict[str, str]) -> onnx.NodeProto:
    """A copy of the node that reads and writes other names, in its own branches too."""
    made = onnx.NodeProto()
    made.CopyFrom(node)
    for tensors in (made.input, made.output):
        tensors[:] = [names.get(name, name) for name in tensors]
    for graph in _inner(made):
        _rename_captured(graph, names)
    return made


def _inner(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    """The graphs in a node's attributes."""
    graphs = [[attribute.g] for attribute in node.attribute if attribute.type == AttributeProto.GRAPH]
    graphs += [list(attribute.graphs) for attribute in node.attribute if attribute.type == AttributeProto.GRAPHS]
    return [graph for each in graphs for graph in each]


def outer_names(node: onnx.NodeProto) -> list[str]:
    """Names that the graphs in a node may read from around it."""
    inner = [inside for graph in _inner(node) for inside in graph.node]
    return [name for inside in inner for name in [*inside.input, *outer_names(inside)]]


def _rename_captured(graph: onnx.GraphProto, names: dict[str, str]) -> None:
    own = {info.name for info in graph.input} | {tensor.name for tensor in graph.initializer}
    own |= {name for node in graph.node for name in node.output}
    outer = {name: new for name, new in names.items() if name not in own}
    nodes = [_renamed(node, outer) for node in graph.node]
    del graph.node[:]
    graph.node.extend(nodes)
    for info in graph.output:
        info.name = outer.get(info.name, info.name)


def _names(graph: onnx.GraphProto) -> Iterator[str]:
    """All names of tensors in a graph and in the branches of its nodes."""
    yield from (info.name for info in (*graph.input, *graph.output))
    yield from (tensor.name for tensor in graph.initializer)
    for node in graph.node:
        yield from (*node.input, *node.output)
        for inner in _inner(node):
            yield from _names(inner)
