"""Types and shapes of an untrusted file: what ONNX's own inference refuses, ONNX Runtime refuses on opening the model.

Both run the same code, the inference functions of ONNX's operators. Asked while a model is read, it costs a twentieth
of reading, and says so before anything was computed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import onnx
from onnx import TensorProto, numpy_helper

from sdort.errors import BadModelError
from sdort.graph.domains import MICROSOFT, is_runtimes_own
from sdort.graph.signature import Array

_PLACE_END = "): "
_PLACE = re.compile(r"\(op_type:(\w+)(?:, node name: (.*?))?\): ")
_KIND = re.compile(r"\A\[\w+\] ")


def check_inference(model: onnx.ModelProto, order: Sequence[int], small: Mapping[str, Array], component: str) -> None:
    """Refuse a model whose nodes cannot take their inputs.

    Declared shapes of results are not compared: ONNX Runtime only warns where they are wrong, as some exporters' are,
    and sdort infers its own. Declared types are.

    Args:
        model: the checked model; it is not changed.
        order: the indices of its nodes in topological order.
        small: the values of initializers that stand in another file, by name, as far as they matter for shapes.

    Raises:
        BadModelError: naming the node, and what of it does not fit.
    """
    copy = _without_shapes(model, order, small)
    try:
        onnx.shape_inference.infer_shapes(copy, check_type=True, strict_mode=True)
    except Exception as error:  # the C++ code has no one exception type
        raise _refusal(str(error), component) from None


def _without_shapes(model: onnx.ModelProto, order: Sequence[int], small: Mapping[str, Array]) -> onnx.ModelProto:
    """A copy in topological order, with the types of results and without their shapes."""
    copy = onnx.ModelProto(ir_version=model.ir_version, opset_import=model.opset_import, functions=model.functions)
    graph = copy.graph
    graph.name = model.graph.name
    graph.input.extend(model.graph.input)
    graph.node.extend(model.graph.node[index] for index in order)
    opset = next(entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx"))
    for node in graph.node:
        if is_runtimes_own(node.domain, node.op_type, opset):
            node.domain = MICROSOFT  # of whose operators onnx infers nothing
    if all(entry.domain != MICROSOFT for entry in copy.opset_import):
        copy.opset_import.add(domain=MICROSOFT, version=1)
    for tensor in model.graph.initializer:
        stored = tensor.data_location == TensorProto.EXTERNAL and tensor.name in small
        graph.initializer.append(numpy_helper.from_array(small[tensor.name], tensor.name) if stored else tensor)
    for declared, types in ((model.graph.value_info, graph.value_info), (model.graph.output, graph.output)):
        for info in declared:
            if info.type.tensor_type.elem_type:
                kind = onnx.TypeProto.Tensor(elem_type=info.type.tensor_type.elem_type)
                types.add(name=info.name, type=onnx.TypeProto(tensor_type=kind))
    return copy


def _refusal(text: str, component: str) -> BadModelError:
    operator, node, reason = _place(text) or ("a node", None, text.strip().partition("\n")[0])
    return BadModelError(
        f"{operator} cannot take its inputs: {reason}",
        component=component,
        node=node,
        hint="ONNX Runtime refuses the model, too. Export it again.",
    )


def _place(text: str) -> tuple[str, str | None, str] | None:
    """The operator, the node's name and the reason that a message of ONNX's names first; None if it names none."""
    for line in text.split("\n"):
        # A name is a stranger's, and may have the beginnings of a thousand places; behind the last end there is none.
        end = line.rfind(_PLACE_END) + len(_PLACE_END)
        if found := _PLACE.search(line, 0, end):
            return found[1], found[2], _KIND.sub("", line[found.end() :], count=1)
    return None
