"""Fused operators spelled out for looking inside: each step that the original has as a node becomes a node.

What :mod:`sdort.emulation.standard` spells out for the CPU is taken from there. The rest the CPU has kernels for, so
that nobody but a search for a fault needs it in parts. Definitions: ONNX Runtime's operator schemas
(ContribOperators.md).
"""

from __future__ import annotations

from collections.abc import Collection

import onnx
from onnx import TensorProto, helper

from sdort.emulation import standard as reference
from sdort.emulation.attention_steps import multi_head_attention, projected_attention, standard_attention
from sdort.emulation.standard import Call, call_function
from sdort.operators import own as own_operators

DOMAIN = "sdort.inside"
MICROSOFT = "com.microsoft"

PARAMETERS: dict[tuple[str, str], tuple[tuple[str, ...], tuple[str, ...]]] = {
    ("", "Attention"): (("Q", "K", "V", "mask", "past_key", "past_value"), ("Y", "present_key", "present_value")),
    (MICROSOFT, "MultiHeadAttention"): (reference.PARAMETERS["MultiHeadAttention"][0], ("output",)),
    (MICROSOFT, "Attention"): (("X", "W", "B", "mask_index", "past", "attention_bias"), ("output",)),
    ("", "LayerNormalization"): (("X", "gamma", "beta"), ("Y",)),
    (MICROSOFT, "SkipLayerNormalization"): (("X", "skip", "gamma", "beta", "bias"), ("Y", "mean", "deviation", "S")),
    (MICROSOFT, "BiasGelu"): (("X", "bias"), ("Y",)),
    (MICROSOFT, "Gelu"): (("X",), ("Y",)),
    (MICROSOFT, "QuickGelu"): (("X",), ("Y",)),
}
"""Inputs and outputs in the order of the operators' schemas."""


def spell_out(model: onnx.ModelProto, chosen: Collection[str], stored: int = TensorProto.FLOAT) -> onnx.ModelProto:
    """The model with functions in the place of the chosen nodes; one of a form that is not known stays.

    The functions are not expanded yet, so that what rounds the results of nodes leaves their insides as they are.

    Args:
        model: belongs to this function now. Its weights are not looked at.
        chosen: first outputs of nodes.
        stored: the type, of TensorProto, in which the scores of an attention are stored.
    """
    model = own_operators.expand(model)
    opset = next(entry.version for entry in model.opset_import if not entry.domain)
    if opset < reference.MINIMUM_OPSET:
        return model
    logical = _logical_tensors(model)
    functions: list[onnx.FunctionProto] = []
    for node in model.graph.node:
        body = _body(node, stored, logical) if node.output[0] in chosen else None
        if body is not None:
            functions.append(_function(node, body, f"{node.op_type}_{len(functions)}", opset))
            call_function(node, functions[-1])
        elif node.output[0] in chosen and reference.needs_expansion(node):
            functions.append(reference.make_function(node, opset))
            call_function(node, functions[-1])
    unique = {(function.domain, function.name): function for function in functions}
    model.functions.extend(unique.values())
    model.opset_import.extend(helper.make_opsetid(domain, 1) for domain in sorted({domain for domain, _ in unique}))
    if all(entry.domain != MICROSOFT for entry in model.opset_import):
        model.opset_import.append(helper.make_opsetid(MICROSOFT, 1))
    return model


def _body(node: onnx.NodeProto, stored: int, logical: Collection[str]) -> str | None:
    call = Call.of(node)
    inputs, outputs = PARAMETERS.get((node.domain, node.op_type), ((), ()))
    if len(node.input) > len(inputs) or len(node.output) > len(outputs):
        return None
    if (node.domain, node.op_type) == ("", "Attention"):
        return standard_attention(call, stored, call.has_input(3) and node.input[3] in logical)
    if node.op_type == "MultiHeadAttention":
        return multi_head_attention(call, stored)
    if node.op_type == "Attention":
        return projected_attention(call, stored)
    if node.op_type in ("LayerNormalization", "SkipLayerNormalization"):
        return _layer_normalization(call, node.op_type == "SkipLayerNormalization")
    if node.op_type in ("Gelu", "BiasGelu"):
        return f"{'biased = Add (X, bias)' if node.op_type == 'BiasGelu' else 'biased = Identity (X)'}{_ERF}"
    return _quick_gelu(call) if node.op_type == "QuickGelu" else None


def _function(node: onnx.NodeProto, body: str, name: str, opset: int) -> onnx.FunctionProto:
    """The function of one node: its absent inputs and outputs, and its attributes, are in the body."""
    signature = Call.of(node).signature(*PARAMETERS[node.domain, node.op_type])
    header = f'<domain: "{DOMAIN}", opset_import: ["": {opset}]>'
    return onnx.parser.parse_function(f"{header}\n{name} {signature} {{{body}\n}}")


def _logical_tensors(model: onnx.ModelProto) -> set[str]:
    """The tensors of booleans."""
    graph = onnx.shape_inference.infer_shapes(model).graph
    values = (*graph.value_info, *graph.input)
    return {value.name for value in values if value.type.tensor_type.elem_type == TensorProto.BOOL}


def _layer_normalization(call: Call, skip: bool) -> str | None:
    """Of X, or of X + bias + skip, over the last axis."""
    if call.attributes.get("axis", -1) != -1:
        return None
    biased = "biased = Add (X, bias)" if call.has_input(4) else "biased = Identity (X)"
    summed = f"{biased}\n sum = Add (biased, skip)" if skip else "sum = Identity (X)"
    has_beta = call.has_input(3 if skip else 2)
    outputs = [f"{name} = Identity ({value})" for index, name, value in _STATISTICS if call.has_output(index) and skip]
    return f"""
      {summed}
      axes = Constant <value_ints = [-1]> ()
      epsilon = Constant <value_float = {call.attributes.get("epsilon", 1e-5):.20f}> ()
      wide = Cast <to = 1> (sum)
      average = ReduceMean <keepdims = 1> (wide, axes)
      centered = Sub (wide, average)
      square = Mul (centered, centered)
      variance = ReduceMean <keepdims = 1> (square, axes)
      raised = Add (variance, epsilon)
      root = Sqrt (raised)
      normal = Div (centered, root)
      scaled = Mul (normal, gamma)
      affine = {"Add (scaled, beta)" if has_beta else "Identity (scaled)"}
      Y = CastLike (affine, X)
      inverse = Reciprocal (root)
      {" ".join(outputs)}"""


_STATISTICS = ((1, "mean", "average"), (2, "deviation", "inverse"), (3, "S", "sum"))
_ERF = """
      root = Constant <value_float = 1.4142135623730951> ()
      half = Constant <value_float = 0.5> ()
      one = Constant <value_float = 1.0> ()
      ratio = Div (biased, root)
      erf = Erf (ratio)
      raised = Add (erf, one)
      cdf = Mul (raised, half)
      Y = Mul (biased, cdf)"""


def _quick_gelu(call: Call) -> str:
    return f"""
      alpha = Constant <value_float = {call.attributes.get("alpha", 1.702):.20f}> ()
      bent = Mul (X, alpha)
      gate = Sigmoid (bent)
      Y = Mul (X, gate)"""
