"""Fused operators as functions of their steps: each step that the original has as a node becomes a node.

The operators of :mod:`sdort.operators` are taken apart by their definitions, ONNX's Attention and LayerNormalization by
those below (https://onnx.ai/onnx/operators/).
"""

from __future__ import annotations

from collections.abc import Collection

import onnx
from onnx import TensorProto, helper

from sdort.graph.domains import MICROSOFT
from sdort.graph.operator import Call, standard_call_of
from sdort.onnx_io.own_functions import expand_own_functions
from sdort.onnx_io.standard_operators import (
    MINIMUM_OPSET,
    call_function,
    make_function,
    needs_expansion,
    parse_function,
)
from sdort.operators import find_operator
from sdort.operators.multi_head_attention import MERGE, attention_steps, masking
from sdort.operators.skip_layer_normalization import normalize

DECOMPOSED_DOMAIN = "sdort.decomposed"


def decompose(model: onnx.ModelProto, chosen: Collection[str], stored: int = TensorProto.FLOAT) -> onnx.ModelProto:
    """The model with functions in the place of the chosen nodes; one of a form that is not known stays.

    The functions are not expanded yet, so that rounding the results of nodes does not round the steps of a function.

    Args:
        model: belongs to this function now. Its weights are not looked at.
        chosen: first outputs of nodes.
        stored: the type, of TensorProto, in which the scores of an attention are stored.
    """
    model = expand_own_functions(model)
    opset = next(entry.version for entry in model.opset_import if not entry.domain)
    if opset < MINIMUM_OPSET:
        return model
    logical = _logical_tensors(model)
    functions: list[onnx.FunctionProto] = []
    for node in model.graph.node:
        if node.output[0] not in chosen:
            continue
        call, body = _steps(node, opset, stored, logical)
        if call is not None and body is not None:
            name = f"{node.op_type}_{len(functions)}"
            functions.append(parse_function(DECOMPOSED_DOMAIN, name, call.signature, body, opset))
            call_function(node, functions[-1])
        elif needs_expansion(node):
            functions.append(make_function(node, opset))
            call_function(node, functions[-1])
    unique = {(function.domain, function.name): function for function in functions}
    model.functions.extend(unique.values())
    model.opset_import.extend(helper.make_opsetid(domain, 1) for domain in sorted({domain for domain, _ in unique}))
    if all(entry.domain != MICROSOFT for entry in model.opset_import):
        model.opset_import.append(helper.make_opsetid(MICROSOFT, 1))
    return model


def _steps(node: onnx.NodeProto, opset: int, stored: int, logical: Collection[str]) -> tuple[Call | None, str | None]:
    """A node's call, and the text of its steps; None where they are not known."""
    operator = find_operator(node.domain, node.op_type)
    if operator is not None and operator.fits(node):
        call = operator.call_of(node, stored)
        return call, operator.definition(call)
    if not node.domain and node.op_type in ("Attention", "LayerNormalization"):
        call = standard_call_of(node, opset, stored)
        attention = node.op_type == "Attention"
        return call, _attention(call, {*node.input[3:4]} <= {*logical}) if attention else _layer_normalization(call)
    return None, None


def _logical_tensors(model: onnx.ModelProto) -> set[str]:
    """The tensors of booleans."""
    graph = onnx.shape_inference.infer_shapes(model).graph
    values = (*graph.value_info, *graph.input)
    return {value.name for value in values if value.type.tensor_type.elem_type == TensorProto.BOOL}


def _attention(call: Call, logical: bool) -> str | None:
    """ONNX's Attention, with the heads apart, [batch, heads, rows, size], or merged, [batch, rows, heads * size].

    Args:
        logical: the mask is of booleans: true where the scores are open.
    """
    attributes, heads = call.attributes, call.attributes.get("q_num_heads")
    if len(call.outputs) > 1 or not {*call.inputs} <= {"Q", "K", "V", "attn_mask"} or attributes.get("softcap"):
        return None
    if heads != attributes.get("kv_num_heads"):
        return None
    mask = masking("attn_mask" if call.has("attn_mask") else None, bool(attributes.get("is_causal")), logical)
    if heads is None:
        apart = "".join(f"{n}4 = Transpose <perm = [0, 2, 1, 3]> ({s})\n" for n, s in zip("qkv", "QKV", strict=True))
        return apart + attention_steps(call, mask) + "Y = Identity (sums)"
    apart = f"heads = Constant <value_ints = [0, 0, {heads}, -1]> ()\n"
    apart += "".join(f"{n}4 = Reshape ({s}, heads)\n" for n, s in zip("qkv", "QKV", strict=True))
    return apart + attention_steps(call, mask) + MERGE + "Y = Identity (merged)"


def _layer_normalization(call: Call) -> str | None:
    """ONNX's LayerNormalization over the last axis."""
    if call.attributes.get("axis", -1) != -1 or len(call.outputs) > 1:
        return None
    beta = "B" if call.has("B") else None
    return "sum = Identity (X)" + normalize(call.attributes.get("epsilon", 1e-5), "X", "Y", "Scale", beta)
