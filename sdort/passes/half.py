"""FP16: onnxconverter-common places the casts, on the graph without its weights; weights are cast as they are written.

What stays in fp32 follows from structure:

* sums, what is squared for them, and guards as small as 1e-12, up to the division that makes a number of usual size of
  them (:mod:`sdort.passes.fp32_structure`);
* floats that are made of integers alone, where they are rounded or compared (:mod:`sdort.passes.counted`);
* products of vectors of length one, up to the threshold that decides by them (:mod:`sdort.passes.similarities`);
* the timestep's path to Sin and Cos: 999 times a frequency needs more than fp16's 11 bits;
* a softmax, and the mask that is added to its scores, where that mask has a finite number beyond fp16: as an infinity
  it would make NaN of a row that is masked completely;
* gamma and beta of GroupNorm and whatever else a file of ``sdort/operators`` says that its kernels read as fp32;
* what is not defined for fp16 in the target's opset, as quantization is before opset 19.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection

import numpy as np
import onnx
import onnx_graphsurgeon as gs
from onnx import TensorProto, defs, helper

from sdort.families.component_names import CONTROLNET
from sdort.graph import float16
from sdort.graph.signature import Array
from sdort.graph.weights import Weight, cast
from sdort.onnx_io.load import from_proto
from sdort.operators import find_operator
from sdort.passes.counted import counted_nodes
from sdort.passes.fp32_structure import unheld_nodes
from sdort.passes.similarities import similarity_nodes
from sdort.rewrite.editor import Editor, producer
from sdort.rewrite.masks import cone, extremes
from sdort.workload.steering_inputs import is_residual

STANDARD_FLOAT32_INPUTS = {"Resize": (1, 2)}
"""Inputs (by position) of standard operators that are fp32 whatever the activations are."""
_ABSENT = "sdort.absent."


def run(editor: Editor, *, io_fp16: bool = False, keep: Collection[str] = (), opset: int | None = None) -> int:
    """Convert the model to fp16, in place.

    Args:
        io_fp16: also the graph's inputs and outputs; else they keep their types behind a Cast, but for those between a
            ControlNet and a UNet.
        keep: names of more nodes that stay in fp32 (:mod:`sdort.precision`).
        opset: that the target loads; the graph's own by default.

    Returns:
        The number of nodes that compute in another type than before, new casts among them.
    """
    from onnxconverter_common.float16 import convert_float_to_float16

    model = editor.model
    fp32 = sorted({*fp32_nodes(editor), *_undefined(editor, opset or editor.graph.opset), *keep})
    ends = _separate_outputs(editor, fp32)
    before = {n.name: editor.dtype(n.outputs[0]) for n in editor.graph.nodes}
    kept = _float32_inputs(editor)
    constants = _constants(editor)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns of every constant it rounds; overflow is found while writing
        converted = convert_float_to_float16(
            _weightless(editor, constants),
            min_positive_val=float16.SMALLEST,
            max_finite_val=float16.LARGEST,
            keep_io_types=not io_fp16,
            disable_shape_infer=True,
            op_block_list=[],
            node_block_list=fp32,
            check_fp16_ready=False,
        )
    del converted.graph.value_info[:]
    model.graph = from_proto(converted, lambda t: _resolve(t, constants), model.component).graph
    _leave_out(model.graph)
    editor.refresh()
    _restore(editor, kept)
    editor.refresh()
    _join_neighbours(editor, before, ends)
    _narrow_between(editor)
    nodes = editor.graph.nodes
    editor.origins.update({n.name: (editor.step,) for n in nodes if n.name not in before and editor.step})
    return sum(before.get(node.name) != editor.dtype(node.outputs[0]) for node in nodes)


def float32_inputs(node: gs.Node) -> tuple[int, ...]:
    """Positions of the inputs that are fp32 whatever the activations are, of a standard operator or another's file."""
    operator = find_operator(node.domain, node.op)
    if operator is None:
        return () if node.domain else STANDARD_FLOAT32_INPUTS.get(node.op, ())
    return operator.input_positions(operator.float32_inputs)


def fp32_nodes(editor: Editor) -> list[str]:
    """Names of the nodes that stay in fp32 by the graph's structure."""
    casts = {n.name for n in editor.graph.nodes if n.op == "Cast" and editor.dtype(n.outputs[0]) == np.float32}
    numbers = unheld_nodes(editor) | counted_nodes(editor) | similarity_nodes(editor)
    return sorted(casts | numbers | _before_waves(editor) | _wide_masks(editor))


def places(editor: Editor) -> set[str]:
    """Names of the nodes that compute with places and timesteps, for which bf16's 8 bits are too few."""
    return counted_nodes(editor) | _before_waves(editor)


def _wide_masks(editor: Editor) -> set[str]:
    """Names of the nodes between a mask's constants that fp16 cannot hold and what they close."""
    kept: list[gs.Node] = []
    for node in editor.graph.nodes:
        if node.domain or node.op not in ("Softmax", "Greater") or editor.dtype(node.inputs[0]) != np.float32:
            continue
        masked = producer(node.inputs[0])
        if node.op == "Softmax" and masked is not None and masked.op in ("Add", "Sub", "Where"):
            wide = [t for t in masked.inputs if extremes(editor, t).beyond_half]
            kept += [node, masked] if wide else []
        else:
            wide = [node.inputs[0]] if extremes(editor, node.inputs[0]).beyond_half else []
            kept += [node] if wide else []  # whether a key is open
        kept += [inner for tensor in wide for inner in cone(editor, tensor)]
    return {node.name for node in kept}


def _undefined(editor: Editor, opset: int) -> set[str]:
    """Names of the nodes with an fp32 input or output that the opset does not define for fp16."""
    names = set()
    for node in editor.graph.nodes:
        if node.domain or not defs.has(node.op, opset):
            continue
        schema = defs.get_schema(node.op, opset)
        allowed = {c.type_param_str: c.allowed_type_strs for c in schema.type_constraints}
        for parameters, tensors in ((schema.inputs, node.inputs), (schema.outputs, node.outputs)):
            for parameter, tensor in zip(parameters, tensors, strict=False):
                types = allowed.get(parameter.type_str, [parameter.type_str])
                fixed = node.op in STANDARD_FLOAT32_INPUTS and tensors is node.inputs
                if tensor.name and editor.dtype(tensor) == np.float32 and "tensor(float16)" not in types and not fixed:
                    names.add(node.name)
    return names


def _before_waves(editor: Editor) -> set[str]:
    """Names of Sin and Cos and of all that they are computed from in fp32."""
    names: set[str] = set()
    stack = [n for n in editor.graph.nodes if n.op in ("Sin", "Cos")]
    while stack:
        node = stack.pop()
        if node.name not in names and editor.dtype(node.outputs[0]) == np.float32:
            names.add(node.name)
            stack.extend(p for t in node.inputs if (p := producer(t)) is not None)
    return names


def _separate_outputs(editor: Editor, fp32: Collection[str]) -> set[str]:
    """Put an Identity before the outputs that the converter would give a wrong type.

    It hands the readers of an output that is read inside too the output's own type, and an output that a node
    in fp32 computes the type of the others.

    Returns:
        The names of the new nodes.
    """
    names = set()
    for output in editor.graph.outputs:
        node = producer(output)
        if node is None or not (output.outputs or node.name in fp32):
            continue
        inner, readers = gs.Variable(editor.name(output.name)), list(output.outputs)
        node.outputs[next(i for i, t in enumerate(node.outputs) if t is output)] = inner
        editor.facts.set(inner, editor.facts.of(output))
        for reader in readers:
            for index, tensor in enumerate(reader.inputs):
                if tensor is output:
                    reader.inputs[index] = inner
        names.add(editor.node("Identity", [inner], outputs=[output]).name)
    editor.finish()
    return names


def _join_neighbours(editor: Editor, before: Collection[str], ends: Collection[str]) -> None:
    """Between nodes that stay in fp32 the converter casts to fp16 and back, which would lose what they stay for.

    So it does between such a node and an output in fp32, around what ``ends`` names.
    """
    for node in editor.graph.nodes:
        if node.op != "Cast" or node.name in before or node.attrs["to"] != TensorProto.FLOAT:
            continue
        end = producer(node.inputs[0])
        inner = producer(end.inputs[0] if end is not None and end.name in ends else node.inputs[0], "Cast")
        if inner is not None:
            editor.replace(node.outputs[0], inner.inputs[0])
    editor.finish()


def _float32_inputs(editor: Editor) -> dict[str, dict[int, gs.Tensor]]:
    """The inputs that stay fp32, by node and position: the converter knows no exceptions for single inputs."""
    kept: dict[str, dict[int, gs.Tensor]] = {}
    for node in editor.graph.nodes:
        positions = float32_inputs(node)
        kept[node.name] = {i: node.inputs[i] for i in positions if i < len(node.inputs) and node.inputs[i].name}
    return kept


def _leave_out(graph: gs.Graph) -> None:
    """Outputs that were left out lose the name that they had for the converter."""
    for node in graph.nodes:
        for index, tensor in enumerate(node.outputs):
            if tensor.name.startswith(_ABSENT):
                node.outputs[index] = gs.Variable.empty()


def _restore(editor: Editor, kept: dict[str, dict[int, gs.Tensor]]) -> None:
    """Give the inputs that stay fp32 their values again; others may read the same constant in fp16."""
    tensors, wide = editor.graph.tensors(), dict[str, gs.Constant]()
    for node in list(editor.graph.nodes):
        for index, tensor in kept.get(node.name, {}).items():
            if not isinstance(tensor, gs.Constant):
                # In fp32 whatever the converter made of it; the cast goes where it has nothing to do.
                node.inputs[index] = editor.cast(tensors[tensor.name], np.dtype(np.float32)).outputs[0]
                continue
            if tensor.name not in wide:
                wide[tensor.name] = editor.constant(tensor._values, tensor.name)
            node.inputs[index] = wide[tensor.name]


def _narrow_between(editor: Editor) -> None:
    """Keep residuals of a ControlNet for a UNet in fp16 on their way, which nobody else sees."""
    for tensor in editor.graph.inputs:
        casts = [node for node in tensor.outputs if node.op == "Cast" and node.attrs["to"] == TensorProto.FLOAT16]
        if is_residual(tensor.name) and len(casts) == len(tensor.outputs):
            tensor.dtype = np.dtype(np.float16)
            for node in casts:
                editor.replace(node.outputs[0], tensor)
    for tensor in editor.graph.outputs if editor.model.component == CONTROLNET else ():
        cast = producer(tensor, "Cast")
        node = producer(cast.inputs[0]) if cast else None
        if cast and node and cast.attrs["to"] == TensorProto.FLOAT and len(cast.inputs[0].outputs) == 1:
            index = next(index for index, output in enumerate(node.outputs) if output is cast.inputs[0])
            cast.outputs.clear()
            node.outputs[index] = tensor
            tensor.dtype = np.dtype(np.float16)
    editor.finish()
    editor.refresh()


def _constants(editor: Editor) -> dict[str, Array | Weight]:
    tensors = (t for n in editor.graph.nodes for t in n.inputs)
    return {t.name: t._values for t in tensors if isinstance(t, gs.Constant)}


def _resolve(proto: TensorProto, constants: dict[str, Array | Weight]) -> Weight | None:
    """The weight behind a converted initializer, cast if the converter says so."""
    from sdort.graph.weights import as_weight

    values = constants.get(proto.name)
    if values is None:
        return None
    half = proto.data_type == TensorProto.FLOAT16 and values.dtype != np.float16
    return cast(as_weight(values), np.float16) if half else as_weight(values)


def _weightless(editor: Editor, constants: dict[str, Array | Weight]) -> onnx.ModelProto:
    """The graph with every constant reduced to name, type and shape, and the type of every tensor stated."""
    graph = editor.graph
    outputs = [t for n in graph.nodes for t in n.outputs if t.name]
    known = {t.name for t in (*graph.inputs, *graph.outputs)}
    proto = helper.make_graph(
        [_node(n) for n in graph.nodes],
        graph.name or "graph",
        [_value_info(editor, t) for t in graph.inputs],
        [_value_info(editor, t) for t in graph.outputs],
        [
            TensorProto(name=k, data_type=helper.np_dtype_to_tensor_dtype(np.dtype(v.dtype)), dims=v.shape)
            for k, v in constants.items()
        ],
        value_info=[_value_info(editor, t) for t in outputs if t.name not in known and editor.dtype(t) is not None],
    )
    domains = {n.domain: 1 for n in graph.nodes if n.domain}
    domains |= {d.domain: d.version for d in graph.import_domains or []} | {"": graph.opset}
    opsets = [helper.make_opsetid(domain, version) for domain, version in domains.items()]
    return helper.make_model(proto, opset_imports=opsets, ir_version=10)


def _node(node: gs.Node) -> onnx.NodeProto:
    attrs = {
        k: onnx.numpy_helper.from_array(np.asarray(v.values)) if isinstance(v, gs.Constant) else v
        for k, v in node.attrs.items()
    }
    # The converter takes an output that is left out for the producer of all inputs that are left out.
    names = [t.name for t in node.inputs], [t.name or f"{_ABSENT}{node.name}.{i}" for i, t in enumerate(node.outputs)]
    return helper.make_node(node.op, *names, name=node.name, domain=node.domain or "", **attrs)


def _value_info(editor: Editor, tensor: gs.Tensor) -> onnx.ValueInfoProto:
    dtype = editor.dtype(tensor) or np.dtype(tensor.dtype)
    declared = tensor.shape if any(tensor is end for end in (*editor.graph.inputs, *editor.graph.outputs)) else None
    shape = editor.shape(tensor) if declared is None else declared
    dims = None if shape is None else [d if isinstance(d, int) else str(d) if d is not None else None for d in shape]
    return helper.make_tensor_value_info(tensor.name, helper.np_dtype_to_tensor_dtype(dtype), dims)
