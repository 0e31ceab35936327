"""ONNX Runtime's MultiHeadAttention, as another tool has put it in: ONNX's Attention, with all that goes with it.

Query, key and value come apart or packed (the MatMul that makes packed ones of constant weights is taken apart too);
a bias of the three projections, a padding mask, a bias of the scores and a past are said around the Attention or are
inputs of it (onnxruntime/core/graph/contrib_ops/bert_defs.cc).
"""

from itertools import product
from typing import Any

import numpy as np
import onnx_graphsurgeon as gs

from sdort.graph.weights import Combined, Reshaped, Weight, as_weight
from sdort.rewrite.match import Match, Refusal, refuse

STAGE = "restore"
ANCHOR = "com.microsoft.MultiHeadAttention"
CLOSED = -10000.0
"""The number that kernels add to the scores of masked keys where ``mask_filter_value`` is left out."""
_NODE = """com.microsoft.MultiHeadAttention <mask_filter_value: float = @filter, num_heads: int = @heads,
        scale: float = @scale, unidirectional: int = @causal>"""
ATTENTION = """Attention <is_causal: int = @is_causal, kv_num_heads: int = @heads, q_num_heads: int = @heads,
        scale: float = @factor>"""
# Forms of query, key and value: inputs and constants, the nodes before, the node's first inputs, and how q, k and v
# are made of them.
_APART = ("float[B, S, C] q, float[K, L, W] k, float[A, T, V] v", "", "", "q, k, v", "")
_PACKED = (
    "float[B, S, N, 3, D] qkv", "", "", "qkv",
    """qp, kp, vp = Split <axis = 3, num_outputs = 3> (qkv)
    q = Reshape (qp, flat)  k = Reshape (kp, flat)  v = Reshape (vp, flat)""",
)  # fmt: skip
_PACKED_KV = (
    "float[B, S, C] q, float[K, L, N, 2, D] kv", "", "", "q, kv",
    "kp, vp = Split <axis = 3, num_outputs = 2> (kv)  k = Reshape (kp, flat)  v = Reshape (vp, flat)",
)  # fmt: skip
_PROJECTED = (
    "float[B, S, I] x, int64[] shape", "float[I, P] weight, float[B, S, N, 3, D] qkv",
    "m = MatMul (x, weight)  qkv = Reshape (m, shape)", "qkv",
    "q = MatMul (x, part0)  k = MatMul (x, part1)  v = MatMul (x, part2)",
)  # fmt: skip
_PROJECTED_KV = (
    "float[B, S, C] q, float[K, L, I] x, int64[] shape", "float[I, P] weight, float[K, L, N, 2, D] kv",
    "m = MatMul (x, weight)  kv = Reshape (m, shape)", "q, kv", "k = MatMul (x, part0)  v = MatMul (x, part1)",
)  # fmt: skip
PADDING = ("int64[B, O] padding", """open = Greater (padding, shut)
    penalty = Where (open, zero, filter)
    axes = Constant <value_ints = [1, 2]> ()
    row = Unsqueeze (penalty, axes)
    rows = Shape <start = 1, end = 2> ({query})
    sizes4 = Concat <axis = 0> (one, one, rows, one)
    closed = Expand (row, sizes4)""")  # fmt: skip
"""A mask of one row of keys for each sample, and the steps to one that is added to the scores."""
_CONSTANT, _COMPUTED = 1, 2
"""A bias of the projections that is known, and one that is not."""
_OPTIONS = [
    # With packed inputs the kernels take neither a past nor a bias of the projections.
    *((form, None, bias, 0, 0) for form in (_PROJECTED, _PROJECTED_KV, _PACKED, _PACKED_KV) for bias in (0, 1)),
    *((_APART, *masks, projected, 0) for masks, projected in product(product((None, PADDING), (0, 1)), (_CONSTANT, 0))),
    *((_APART, None, 0, projected, past) for projected, past in ((_COMPUTED, 0), (_CONSTANT, 1), (0, 1))),
]
"""Form, padding mask, whether the scores have a bias, a bias of the projections, whether there is a past."""


def mask_steps(padding: tuple[str, str] | None, bias: object, query: str) -> tuple[str, str]:
    """The steps to the mask of all that closes keys, and its name; empty where there is nothing."""
    if padding is None:
        return "", "bias" if bias else ""
    lines = padding[1].format(query=query)
    return (f"{lines}  mask = Add (closed, bias)", "mask") if bias else (lines, "closed")


def _texts(
    form: tuple[str, ...], padding: tuple[str, str] | None, bias: int, projected: int, past: int
) -> tuple[str, str]:
    inputs, constants, before, arguments, made = form
    masks, mask = mask_steps(padding, bias, "q")
    extra = (
        ("float[F] projection" if projected == _COMPUTED else "", "projection", projected),
        (padding and padding[0], "padding", padding),
        ("float[] bias", "bias", bias),
        ("float[] past_key", "past_key", past),
        ("float[] past_value", "past_value", past),
    )
    flows = ", ".join([inputs, *(text for text, _, there in extra if there and text)])
    constants = "float[F] projection" if projected == _CONSTANT else constants
    given = [*arguments.split(", ")]
    given += ['""'] * (3 - len(given)) + [name if there else '""' for _, name, there in extra]
    while given[-1] == '""':
        given.pop()
    outputs = "(float[] y, float[] present_key, float[] present_value)" if past else "(float[] y)"
    results = "y, present_key, present_value" if past else "y"
    q, k, v = ("qb", "kb", "vb") if projected else ("q", "k", "v")
    shifts = "shift0, shift1, shift2 = Split <axis = 0> (projection, sizes)" if projected == _COMPUTED else ""
    shifts += "  qb = Add (q, shift0)  kb = Add (k, shift1)  vb = Add (v, shift2)" if projected else ""
    rest = [mask or '""', *(["past_key", "past_value"] if past else [])] if mask or past else []
    head = f"g ({flows}) => {outputs}"
    last = f"{results} = {ATTENTION} ({', '.join([q, k, v, *rest])})"
    return (
        f"{head} {f'<{constants}>' if constants else ''} {{\n    {before}\n    "
        f"{results} = {_NODE} ({', '.join(given)})\n}}",
        f"{head} {{\n    {made}\n    {shifts}\n    {masks}\n    {last}\n}}",
    )


BEFORE, AFTER = zip(*(_texts(*options) for options in _OPTIONS), strict=True)
_PAST = 7


def open_keys(count: int) -> Any:
    """A padding mask of two samples, one of which is shorter."""
    return np.array([[1] * count, [1] * 3 + [0] * (count - 3)], np.int32)


EXAMPLE = {
    "B": 2, "S": 5, "C": 12, "K": 2, "L": 5, "W": 12, "A": 2, "T": 5, "V": 12, "N": 3, "D": 4, "I": 10, "F": 36,
    "P": tuple(24 if options[0] is _PROJECTED_KV else 36 for options in _OPTIONS),
    "shape": tuple([0, 0, 3, 2 if options[0] is _PROJECTED_KV else 3, 4] for options in _OPTIONS),
    "heads": 3, "scale": 0.3, "causal": tuple(int(options[1] is None) for options in _OPTIONS), "filter": -50.0,
    "padding": tuple(open_keys(5 + _PAST * options[4]) for options in _OPTIONS),
    "bias": tuple([2, 3, 5, 5 + _PAST * options[4]] for options in _OPTIONS),
    "past_key": [2, 3, _PAST, 4], "past_value": [2, 3, _PAST, 4],
}  # fmt: skip


PARTS = (3, 2)
"""Projections in a packed weight: all three, or without the query."""


def check(m: Match) -> Refusal | None:
    heads = m.attrs["heads"]
    if not isinstance(heads, int) or heads < 1:
        return refuse("the number of heads is not positive", heads)
    if "D" in m.dims and not m.known("D"):
        return refuse("the head size is not fixed", m.dims["D"])
    packed = PARTS["q" in m.tensors] * heads * (m.known("D") or 0) if "weight" in m.tensors else None
    if m.dims.get("N", heads) != heads or m.dims.get("P", packed) != packed:
        return refuse("its packed inputs have another number of heads", (m.dims["N"], heads))
    if "projection" in m.tensors and None in (m.known("C"), m.known("W"), m.known("V")):
        return refuse("the widths of its bias are not known", (m.dims["C"], m.dims["W"], m.dims["V"]))
    if "projection" in m.tensors and m.dims["F"] != m.size("C") + m.size("W") + m.size("V"):
        return refuse("its bias is not as wide as query, key and value", m.dims["F"])
    if m.attrs["causal"] and "L" in m.dims and "past_key" not in m.tensors and m.dims["S"] != m.dims["L"]:
        return refuse("kernels differ in what is causal where rows are not as many as keys", (m.dims["S"], m.dims["L"]))
    constant = "projection" in m.tensors and isinstance(m["projection"], gs.Constant)
    if constant and len({m.dims["C"], m.dims["W"], m.dims["V"]}) > 1:
        return refuse("the projections are of several widths", (m.dims["C"], m.dims["W"], m.dims["V"]))
    return None


def derive(m: Match) -> dict[str, Any]:
    editor = m.editor
    made: dict[str, Any] = attention_settings(m)
    if "D" in m.dims:
        made["flat"] = editor.ints([0, 0, m.attrs["heads"] * m.size("D")])
    if "projection" in m.tensors:
        made["sizes"] = editor.ints([m.size("C"), m.size("W"), m.size("V")])
        if isinstance(m["projection"], gs.Constant):
            made |= {f"shift{part}": third(m, as_weight(m["projection"]._values), part) for part in range(3)}
    if "weight" in m.tensors:
        made |= _parts(m)
    return made


def attention_settings(m: Match) -> dict[str, Any]:
    """Attributes that both of ONNX Runtime's attentions and ONNX's have under other names."""
    dtype = m.editor.dtype(next(m[name] for name in ("q", "x", "qkv") if name in m.tensors))
    closed = CLOSED if m.attrs["filter"] is None else m.attrs["filter"]
    return {
        "is_causal": m.attrs["causal"] or None,
        "factor": m.attrs["scale"] or None,
        "filter": m.editor.constant(np.array(closed, dtype), "closed"),
        "zero": m.editor.constant(np.zeros((), dtype), "zero"),
        "one": m.editor.ints([1]),
        "shut": m.editor.constant(np.zeros((), np.int32), "shut"),
    }


def third(m: Match, packed: Weight, part: int) -> gs.Constant:
    """A third of a vector."""
    apart = Reshaped(packed, [3, packed.shape[0] // 3])
    own = Combined(apart, 0, [[float(index == part) for index in range(3)]])
    return m.editor.constant(Reshaped(own, apart.shape[1:]), "shift")


def _parts(m: Match) -> dict[str, Any]:
    """The packed weight, head by head, as one for each of what it projects to."""
    weight, heads, size = as_weight(m["weight"]._values), m.attrs["heads"], m.size("D")
    inputs, count = weight.shape[0], weight.shape[1] // (heads * size)
    by_head = Reshaped(weight, [inputs, heads, count, size])
    parts = (Combined(by_head, 2, [[float(i == part) for i in range(count)]]) for part in range(count))
    return {
        f"part{index}": m.editor.constant(Reshaped(part, [inputs, heads * size]), m["weight"].name)
        for index, part in enumerate(parts)
    }
