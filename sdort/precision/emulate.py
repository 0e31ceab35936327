"""An fp16 model as its provider's kernels compute it, on any CPU: every result is rounded to fp16 where it is stored.

ONNX Runtime's CPU provider has next to no fp16 kernels. It casts, and where two of its nodes meet it keeps fp32, so a
model that overflows on a GPU seems sound there. Here every cast is explicit, and stays. Attention is spelled out with
its scores stored in fp16, as kernels do that are not fused into one (on ROCm, ONNX Runtime's own).
"""

from __future__ import annotations

from pathlib import Path

import onnx
from onnx import helper, inliner, parser

from sdort.precision.widen import all_nodes, half_tensors, widen
from sdort.reference import expand

DOMAIN = "sdort.emulated"


def write_emulated(path: Path, out: Path, component: str) -> None:
    """Write the emulation of an fp16 model beside it, so that both share the weights.

    Args:
        path: the fp16 model.
        out: another ``.onnx`` file in the same folder.

    Raises:
        BadModelError: the file is unsafe or broken, or has an operator in a form that is not known.
    """
    onnx.save(emulate(path, component), out)


def emulate(path: Path, component: str) -> onnx.ModelProto:
    """The emulation of an fp16 model, without the weights; see :func:`write_emulated`."""
    half = half_tensors(path, component)
    proto = onnx.load(path, load_external_data=False)
    for node in proto.graph.node:
        if node.op_type == "MultiHeadAttention" and node.output[0] in half:
            _spell_out(proto, node)
    widen(proto, half, all_nodes(proto), rounding=True)
    expand(proto)
    return inliner.inline_local_functions(proto)


def _spell_out(proto: onnx.ModelProto, node: onnx.NodeProto) -> None:
    """Make an attention without mask and bias a call of a function that stores its scores."""
    given = [*map(bool, node.input), False, False, False]
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    if any(given[3:]) or attributes.get("unidirectional"):
        return
    heads, scale = attributes["num_heads"], attributes.get("scale")
    names, apart = _heads(given)
    factor = f"Constant <value_float = {scale:.20f}> ()" if scale else "Reciprocal (root)"
    function = parser.parse_function(f"""<domain: "{DOMAIN}", opset_import: ["": 18]>
        Attention{len(proto.functions)} ({names}) => (Y) {{
            heads = Constant <value_ints = [0, 0, {heads}, -1]> ()
            merged = Constant <value_ints = [0, 0, -1]> ()
            one = Constant <value_ints = [3]> ()
            {apart}
            width = Shape <start = -1> (q)
            width_float = Cast <to = 1> (width)
            root = Sqrt (width_float)
            factor = {factor}
            queries = Transpose <perm = [0, 2, 1, 3]> (q)
            keys = Transpose <perm = [0, 2, 3, 1]> (k)
            values = Transpose <perm = [0, 2, 1, 3]> (v)
            products = MatMul (queries, keys)
            scores = Mul (products, factor)
            stored = Cast <to = 10> (scores)
            read = Cast <to = 1> (stored)
            shares = Softmax <axis = -1> (read)
            sums = MatMul (shares, values)
            rows = Transpose <perm = [0, 2, 1, 3]> (sums)
            Y = Reshape (rows, merged)
        }}""")
    proto.functions.append(function)
    if all(entry.domain != DOMAIN for entry in proto.opset_import):
        proto.opset_import.append(helper.make_opsetid(DOMAIN, 1))
    node.domain, node.op_type = DOMAIN, function.name
    del node.attribute[:]


def _heads(given: list[bool]) -> tuple[str, str]:
    """Parameters, and the text that makes q, k, v [batch, rows, heads, size] of them."""
    if not given[1]:
        split = "a, b, c = Split <axis = 3, num_outputs = 3> (X)"
        return "X", f"{split}\n q = Squeeze (a, one)\n k = Squeeze (b, one)\n v = Squeeze (c, one)"
    if not given[2]:
        split = "q = Reshape (X, heads)\n b, c = Split <axis = 3, num_outputs = 2> (K)"
        return "X, K", f"{split}\n k = Squeeze (b, one)\n v = Squeeze (c, one)"
    return "X, K, V", "q = Reshape (X, heads)\n k = Reshape (K, heads)\n v = Reshape (V, heads)"
