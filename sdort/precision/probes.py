"""Probes in a graph that is measured: reductions behind tensors, bounds beside attentions.

Attention is one operator with scores inside. They are not computed but bounded, by Cauchy and Schwarz: no score exceeds
the longest query times the longest key. It takes no memory of the sequence's square, and holds for every pair.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

import onnx
from onnx import helper, parser

from sdort.graph.float16 import LARGEST, VANISHING
from sdort.operators import find_operator

MEANT = 1e37
"""From here on a number stands for infinity, as in attention masks, and infinity is what fp16 makes of it."""
PROBE_DOMAIN = "sdort.probes"
HIGHEST, LOWEST, SHARES, LOGITS = "//highest", "//lowest", "//shares", "//logits"
"""Suffixes of the names of outputs, behind the name of the tensor or node that is measured."""


def add_extremes(proto: onnx.ModelProto, tensors: Collection[str]) -> None:
    """The largest and the smallest element of each tensor as outputs: two nodes, none of which copies the tensor."""

    def probe(name: str) -> Iterator[onnx.NodeProto]:
        for operator, suffix in (("ReduceMax", HIGHEST), ("ReduceMin", LOWEST)):
            yield helper.make_node(operator, [name], [name + suffix], name + suffix, keepdims=0)
            _output(proto, name + suffix, [])

    _behind(proto, tensors, probe)


def add_shares(proto: onnx.ModelProto, tensors: Collection[str]) -> None:
    """An output [3] for each tensor: its largest magnitude, and the shares that overflow and that vanish in fp16."""
    function = _function(proto, _SHARES)

    def probe(name: str) -> Iterator[onnx.NodeProto]:
        yield helper.make_node(function.name, [name], [name + SHARES], name + SHARES, domain=PROBE_DOMAIN)
        _output(proto, name + SHARES, [3])

    _behind(proto, tensors, probe)


def add_logits(proto: onnx.ModelProto) -> None:
    """An output [1] for each fused attention: a bound on its scores' magnitude."""
    for node in list(proto.graph.node):
        operator = find_operator(node.domain, node.op_type)
        call = operator.call_of(node) if operator else None
        heads = operator.heads(call) if operator and operator.heads and call else None
        if call is None or heads is None:  # no attention, or one with a bias inside: no fusion of sdort's makes that
            continue
        scale = call.attributes["scale"]
        factor = f"Constant <value_float = {scale:.20f}> ()" if scale else "Reciprocal (root)"
        signature = f"Logits{len(proto.functions)} ({', '.join(call.inputs)}) => (result)"
        body = f"{signature} {{ {heads} {_BOUND} factor = {factor}\n{_SCALED} }}"
        function, name = _function(proto, body), node.name + LOGITS
        inputs = [tensor for tensor in node.input if tensor]
        proto.graph.node.append(helper.make_node(function.name, inputs, [name], name, domain=PROBE_DOMAIN))
        _output(proto, name, [1])


_SHARES = f"""
Shares (X) => (result) {{
    sizes = Abs (X)
    zero = Constant <value_float = 0.0> ()
    meant = Constant <value_float = {MEANT:.1f}> ()
    most = Constant <value_float = {LARGEST}> ()
    least = Constant <value_float = {VANISHING:.20f}> ()
    masked = GreaterOrEqual (sizes, meant)
    kept = Where (masked, zero, sizes)
    largest = ReduceMax <keepdims = 0> (kept)
    high = Greater (kept, most)
    high_float = Cast <to = 1> (high)
    overflow = ReduceMean <keepdims = 0> (high_float)
    low = LessOrEqual (kept, least)
    positive = Greater (kept, zero)
    gone = And (low, positive)
    gone_float = Cast <to = 1> (gone)
    vanish = ReduceMean <keepdims = 0> (gone_float)
    column = Constant <value_ints = [1]> ()
    a = Reshape (largest, column)
    b = Reshape (overflow, column)
    c = Reshape (vanish, column)
    result = Concat <axis = 0> (a, b, c)
}}"""

_BOUND = """
    last = Constant <value_ints = [-1]> ()
    rows = Constant <value_ints = [1]> ()
    query_lengths = ReduceL2 <keepdims = 0> (q4, last)
    key_lengths = ReduceL2 <keepdims = 0> (k4, last)
    longest_query = ReduceMax <keepdims = 0> (query_lengths, rows)
    longest_key = ReduceMax <keepdims = 0> (key_lengths, rows)
    products = Mul (longest_query, longest_key)
    largest = ReduceMax <keepdims = 0> (products)
    width = Shape <start = -1> (q4)
    width_float = Cast <to = 1> (width)
    root = Sqrt (width_float)
"""
_SCALED = "scaled = Mul (largest, factor)\n result = Reshape (scaled, rows)"
"""From queries q4 and keys k4 [batch, rows, heads, size]."""


def _behind(proto: onnx.ModelProto, tensors: Collection[str], probe: Callable[[str], Iterable[onnx.NodeProto]]) -> None:
    """Put what ``probe`` makes of a tensor where the tensor is made: nodes run in their order."""
    probed, nodes = set(tensors), list(proto.graph.node)
    del proto.graph.node[:]
    proto.graph.node.extend(new for i in proto.graph.input if i.name in probed for new in probe(i.name))
    for node in nodes:
        proto.graph.node.append(node)
        proto.graph.node.extend(new for name in node.output if name in probed for new in probe(name))


def _function(proto: onnx.ModelProto, text: str) -> onnx.FunctionProto:
    opset = next(entry.version for entry in proto.opset_import if entry.domain == "")
    function = parser.parse_function(f'<domain: "{PROBE_DOMAIN}", opset_import: ["": {opset}]>\n{text.strip()}')
    proto.functions.append(function)
    if all(entry.domain != PROBE_DOMAIN for entry in proto.opset_import):
        proto.opset_import.append(helper.make_opsetid(PROBE_DOMAIN, 1))
    return function


def _output(proto: onnx.ModelProto, name: str, shape: Sequence[int]) -> None:
    proto.graph.output.append(helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape))
