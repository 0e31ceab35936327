"""Run an optimized graph anywhere: operators that only GPU providers have, spelled out as standard ones.

ONNX Runtime's CPU provider has no GroupNorm, SkipGroupNorm, NhwcConv, BiasSplitGelu, BiasAdd and no packed
MultiHeadAttention. A function body for an operator of its own ``com.microsoft`` domain is ignored, so every such
node is pointed at a function in :data:`DOMAIN` whose body is written below in ONNX's text syntax.
Definitions: ONNX Runtime's operator schemas (ContribOperators.md) and, for weight layouts, its CUDA kernels.
Norms and activations are computed in float32 and rounded once, as the kernels do.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import onnx

from sdort.errors import BadModelError
from sdort.operators import own as own_operators

DOMAIN = "sdort.reference"
MINIMUM_OPSET = 18
"""The bodies use CastLike and Split's num_outputs; optimized models are at 18 or later."""


@dataclass(frozen=True)
class Call:
    """A node to be spelled out: which optional inputs and outputs it has, and its attributes."""

    inputs: tuple[bool, ...]
    outputs: tuple[bool, ...]
    attributes: dict[str, Any]

    @classmethod
    def of(cls, node: onnx.NodeProto) -> Call:
        """What a node asks for."""
        attributes = {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}
        return cls(tuple(map(bool, node.input)), tuple(map(bool, node.output)), attributes)

    def has_input(self, index: int) -> bool:
        return index < len(self.inputs) and self.inputs[index]

    def has_output(self, index: int) -> bool:
        return index < len(self.outputs) and self.outputs[index]

    def signature(self, inputs: Sequence[str], outputs: Sequence[str]) -> str:
        """``(inputs) => (outputs)`` of its function in ONNX text: of an operator's parameters, those that are there."""
        taken = ", ".join(name for index, name in enumerate(inputs) if self.has_input(index))
        given = ", ".join(name for index, name in enumerate(outputs) if self.has_output(index))
        return f"({taken}) => ({given})"

    def text(self, *names: str) -> str:
        """The named attributes, those that are set, as ONNX text: ``<groups = 4, epsilon = 1e-5>``."""
        parts = []
        for name in names:
            value = self.attributes.get(name)
            if isinstance(value, bytes):
                parts.append(f'{name} = "{value.decode()}"')
            elif isinstance(value, float):
                parts.append(
                    f"{name} = {value!r}" if "e" in repr(value) or "." in repr(value) else f"{name} = {value}.0"
                )
            elif value is not None:
                parts.append(f"{name} = {list(value) if not isinstance(value, int) else value}")
        return f"<{', '.join(parts)}>" if parts else ""


def normalize(call: Call, source: str, channels_last: bool) -> str:
    """Group normalization of ``source`` with optional SiLU into Y: (N, H, W, C), or (N, C, H, W)."""
    groups = int(call.attributes["groups"])
    ones, zeros = ", ".join(["1.0"] * groups), ", ".join(["0.0"] * groups)
    transposed = "Transpose <perm = [{}]> ({})" if channels_last else "Identity ({1})"
    return f"""
      wide = Cast <to = 1> ({source})
      planes = {transposed.format("0, 3, 1, 2", "wide")}
      shape = Shape (planes)
      rows = Constant <value_ints = [0, {groups}, -1]> ()
      grouped = Reshape (planes, rows)
      one = Constant <value_floats = [{ones}]> ()
      zero = Constant <value_floats = [{zeros}]> ()
      normal = InstanceNormalization {call.text("epsilon") or "<epsilon = 1e-5>"} (grouped, one, zero)
      restored = Reshape (normal, shape)
      column = Constant <value_ints = [-1, 1, 1]> ()
      gamma_wide = Cast <to = 1> (gamma)
      beta_wide = Cast <to = 1> (beta)
      gamma_column = Reshape (gamma_wide, column)
      beta_column = Reshape (beta_wide, column)
      scaled = Mul (restored, gamma_column)
      affine = Add (scaled, beta_column)
      gate = Sigmoid (affine)
      activated = {"Mul (affine, gate)" if call.attributes.get("activation") else "Identity (affine)"}
      laid_out = {transposed.format("0, 2, 3, 1", "activated")}
      Y = CastLike (laid_out, X)"""


def group_norm(call: Call) -> str:
    return normalize(call, "X", bool(call.attributes.get("channels_last", 1)))


def skip_group_norm(call: Call) -> str:
    """The skip is (N, H, W, C), (N, 1, 1, C) or (N, C): between its first and last dims stand 1 or H*W elements."""
    if not call.attributes.get("channels_last", 1):
        raise BadModelError("SkipGroupNorm is defined for channels-last tensors only")
    bias = "summed = Add (skipped, bias)" if call.has_input(4) else "summed = Identity (skipped)"
    return f"""
      batch = Shape <start = 0, end = 1> (X)
      channels = Shape <start = -1> (X)
      all = Constant <value_ints = [-1]> ()
      flat_shape = Concat <axis = 0> (batch, all, channels)
      flat = Reshape (X, flat_shape)
      flat_skip = Reshape (skip, flat_shape)
      flat_sum = Add (flat, flat_skip)
      x_shape = Shape (X)
      skipped = Reshape (flat_sum, x_shape)
      {bias}
      {"S = Identity (summed)" if call.has_output(1) else ""}
      {normalize(call, "summed", channels_last=True)}"""


def nhwc_conv(call: Call) -> str:
    """Conv on (N, H, W, C) with weights (M, kH, kW, C / group)."""
    settings = call.text("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")
    return f"""
      planes = Transpose <perm = [0, 3, 1, 2]> (X)
      filters = Transpose <perm = [0, 3, 1, 2]> (W)
      convolved = Conv {settings} (planes, filters{", B" if call.has_input(2) else ""})
      Y = Transpose <perm = [0, 2, 3, 1]> (convolved)"""


def bias_split_gelu(call: Call) -> str:
    """left * gelu(right) of the halves of X + bias, gelu by the error function."""
    return """
      biased = Add (X, bias)
      wide = Cast <to = 1> (biased)
      left, right = Split <axis = -1, num_outputs = 2> (wide)
      root = Constant <value_float = 1.4142135623730951> ()
      half = Constant <value_float = 0.5> ()
      one = Constant <value_float = 1.0> ()
      ratio = Div (right, root)
      erf = Erf (ratio)
      raised = Add (erf, one)
      cdf = Mul (raised, half)
      gelu = Mul (right, cdf)
      product = Mul (left, gelu)
      Y = CastLike (product, X)"""


def bias_add(call: Call) -> str:
    return """
      biased = Add (X, bias)
      Y = Add (biased, skip)"""


def packed_attention(call: Call) -> str:
    """Query (B, S, heads, 3, size), or key (B, S, heads, 2, size), unpacked for the CPU's own kernel."""
    packed_key = call.has_input(1)
    names = ["k", "v"] if packed_key else ["q", "k", "v"]
    source, query = ("key", "query") if packed_key else ("query", "q")
    lines = [
        "merged = Constant <value_ints = [0, 0, -1]> ()",
        f"{', '.join(name + '_part' for name in names)} = Split <axis = 3, num_outputs = {len(names)}> ({source})",
        *(f"{name} = Reshape ({name}_part, merged)" for name in names),
    ]
    rest = [name if call.has_input(3 + i) else '""' for i, name in enumerate(PARAMETERS["MultiHeadAttention"][0][3:])]
    while rest and rest[-1] == '""':
        rest.pop()
    settings = call.text("mask_filter_value", "num_heads", "scale", "unidirectional")
    arguments = ", ".join([query, "k", "v", *rest])
    return "\n".join([*lines, f"output = com.microsoft.MultiHeadAttention {settings} ({arguments})"])


PARAMETERS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "GroupNorm": (("X", "gamma", "beta"), ("Y",)),
    "SkipGroupNorm": (("X", "gamma", "beta", "skip", "bias"), ("Y", "S")),
    "NhwcConv": (("X", "W", "B"), ("Y",)),
    "BiasSplitGelu": (("X", "bias"), ("Y",)),
    "BiasAdd": (("X", "bias", "skip"), ("Y",)),
    "MultiHeadAttention": (("query", "key", "value", "bias", "key_padding_mask", "attention_bias"), ("output",)),
}
"""Inputs and outputs in the order of the operators' schemas."""

BODIES: dict[str, Callable[[Call], str]] = {
    "GroupNorm": group_norm,
    "SkipGroupNorm": skip_group_norm,
    "NhwcConv": nhwc_conv,
    "BiasSplitGelu": bias_split_gelu,
    "BiasAdd": bias_add,
    "MultiHeadAttention": packed_attention,
}


def expand(model: onnx.ModelProto) -> int:
    """Point every node that ONNX Runtime's CPU provider lacks at a function made of standard operators, in place.

    Weights are not looked at, so they may be external.

    Returns:
        The number of nodes changed.

    Raises:
        BadModelError: the model's opset is below 18, or a node has a form that its operator does not define.
    """
    model.CopyFrom(own_operators.expand(model))
    opsets = {entry.domain: entry.version for entry in model.opset_import}
    functions: dict[str, onnx.FunctionProto] = {}
    nodes = [node for node in model.graph.node if needs_expansion(node)]
    if nodes and opsets.get("", 0) < MINIMUM_OPSET:
        raise BadModelError(f"the reference needs opset {MINIMUM_OPSET} or later, this model has {opsets.get('', 0)}")
    for node in nodes:
        function = make_function(node, opsets[""])
        functions[function.name] = function
        call_function(node, function)
    if nodes:
        model.functions.extend(functions.values())
        model.opset_import.append(onnx.helper.make_opsetid(DOMAIN, 1))
    return len(nodes)


def needs_expansion(node: onnx.NodeProto) -> bool:
    """Whether the CPU provider has no kernel for this node's operator and form."""
    if node.domain != "com.microsoft" or node.op_type not in BODIES:
        return False
    # An unpacked attention has a value; the packed forms leave it out.
    return node.op_type != "MultiHeadAttention" or not _given(node.input, 2)


def make_function(node: onnx.NodeProto, opset: int) -> onnx.FunctionProto:
    """The function that computes what ``node`` does; equal forms get equal functions."""
    inputs, outputs = PARAMETERS[node.op_type]
    call = Call.of(node)
    if len(node.input) > len(inputs) or len(node.output) > len(outputs):
        raise BadModelError(f"{node.op_type} has more inputs or outputs than the reference knows", node=node.name)
    body = BODIES[node.op_type](call)
    signature = call.signature(inputs, outputs)
    name = f"{node.op_type}_{hashlib.sha256(f'{signature}{body}'.encode()).hexdigest()[:8]}"
    imports = f'["": {opset}, "com.microsoft": 1]'
    return onnx.parser.parse_function(f'<domain: "{DOMAIN}", opset_import: {imports}>\n{name} {signature} {{{body}\n}}')


def call_function(node: onnx.NodeProto, function: onnx.FunctionProto) -> None:
    """Make ``node`` a call of ``function``: its absent inputs and outputs and its attributes are in the body."""
    node.domain, node.op_type = function.domain, function.name
    for names in (node.input, node.output):
        present = [name for name in names if name]
        del names[:]
        names.extend(present)
    del node.attribute[:]


def _given(names: Iterable[str], index: int) -> bool:
    names = list(names)
    return index < len(names) and bool(names[index])
