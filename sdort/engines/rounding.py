"""An fp16 or bf16 model as its provider's kernels compute it, on any CPU: every result is rounded where it is stored.

ONNX Runtime's CPU provider has next to no kernels for either. It casts, and where two of its nodes meet it keeps fp32,
so a model that overflows on a GPU seems sound there. Here every cast is explicit, and stays. Operators whose
kernels store intermediate results, as attention's scores, are taken apart by their definitions, and these rounded too.

A model that is made for bf16 holds fp32: its provider rounds weights, inputs and every result itself
(:mod:`sdort.onnx_io.precision_mark`).
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, inliner

from sdort.onnx_io.component_file import ComponentFile, read_component
from sdort.onnx_io.precision_mark import says_bf16
from sdort.onnx_io.standard_operators import call_function, expand, parse_function
from sdort.operators import find_operator
from sdort.passes.widen import all_nodes, names_of_dtype, widen
from sdort.runtime.step.prepared_tensors import split_file

EMULATED_DOMAIN = "sdort.emulated"


def emulate(path: Path, component: str) -> onnx.ModelProto:
    """The emulation of an fp16 model, or of one that was made for bf16, without its weights: it lies beside them.

    Raises:
        BadModelError: the file is unsafe or broken, or has an operator in a form that is not known.
    """
    file = read_component(path, component)
    return emulate_graph(file.copy(), narrow_tensors(path, component), _made_before_steps(file))


def narrow_tensors(path: Path, component: str) -> set[str]:
    """The names of the tensors of such a model that are stored in fp16 or bf16, weights and inputs too."""
    file = read_component(path, component)
    bf16 = says_bf16(file.proto)
    names = names_of_dtype(path, component, np.dtype(np.float32 if bf16 else np.float16))
    split = split_file(file) if bf16 else None
    if split is None:
        return names
    # What runs before the steps stays in fp32, up to what the step takes (sdort.providers.bf16).
    return names & {name for node in split.step.graph.node for name in (*node.input, *node.output)}


def _made_before_steps(file: ComponentFile) -> set[str]:
    """The names of what a bf16 model makes before its steps, in fp32."""
    split = split_file(file) if says_bf16(file.proto) else None
    if split is None:
        return set()
    made = {name for node in split.step.graph.node for name in node.output}
    return {name for node in file.proto.graph.node for name in node.output} - made


def emulate_graph(proto: onnx.ModelProto, narrow: Collection[str], early: Collection[str] = ()) -> onnx.ModelProto:
    """The emulation of a model, or of a part of one, that is in memory; ``proto`` belongs to this function now.

    Args:
        early: results that nothing rounds but who reads them, if that is none of them: those of a bf16 model that are
            made before its steps.
    """
    bf16 = says_bf16(proto)
    for node in proto.graph.node:
        if node.output[0] in narrow and node.output[0] not in early:
            _store_intermediates(proto, node, TensorProto.BFLOAT16 if bf16 else TensorProto.FLOAT16)
    if bf16:
        _round_to_bf16(proto, narrow, early)
    else:
        widen(proto, narrow, all_nodes(proto), rounding=True)
    expand(proto)
    return inliner.inline_local_functions(proto)


def _round_to_bf16(proto: onnx.ModelProto, floats: Collection[str], early: Collection[str]) -> None:
    """Round the tensors of ``floats`` in place: results where they are made, weights and inputs where they are read."""
    nodes, made, read = list(proto.graph.node), set[str](), set[str]()
    del proto.graph.node[:]
    del proto.graph.value_info[:]
    for node in nodes:
        if node.output[0] in early:
            proto.graph.node.append(node)
            continue
        for index, name in enumerate(node.input):
            # Resize tells an empty constant of scales from one that is computed.
            if name in floats and name not in made and not (node.op_type == "Resize" and index):
                if name not in read:
                    _add_rounding(proto.graph, name, f"{name}//read")
                    read.add(name)
                node.input[index] = f"{name}//read"
        results = [name for name in node.output if name in floats]
        for index, name in enumerate(node.output):
            node.output[index] = f"{name}//exact" if name in floats else name
        proto.graph.node.append(node)
        for name in results:
            _add_rounding(proto.graph, f"{name}//exact", name)
        made.update(results)


def _add_rounding(graph: onnx.GraphProto, source: str, target: str) -> None:
    stored = f"{target}//stored"
    graph.node.append(helper.make_node("Cast", [source], [stored], stored, to=TensorProto.BFLOAT16))
    graph.node.append(helper.make_node("Cast", [stored], [target], f"{target}//wide", to=TensorProto.FLOAT))


def _store_intermediates(proto: onnx.ModelProto, node: onnx.NodeProto, stored: int) -> None:
    """Make a node whose kernels store intermediate results a call of a function that does."""
    operator = find_operator(node.domain, node.op_type)
    if operator is None or not operator.fits(node):
        return
    call = operator.call_of(node, stored)
    body = operator.definition(call) if operator.stores_intermediates(call) else None
    if body is None:
        return
    # Of the model's opset: functions of several are not inlined together with own operators'.
    opset = next(entry.version for entry in proto.opset_import if not entry.domain)
    function = parse_function(EMULATED_DOMAIN, f"{operator.name}{len(proto.functions)}", call.signature, body, opset)
    proto.functions.append(function)
    if all(entry.domain != EMULATED_DOMAIN for entry in proto.opset_import):
        proto.opset_import.append(helper.make_opsetid(EMULATED_DOMAIN, 1))
    call_function(node, function)
