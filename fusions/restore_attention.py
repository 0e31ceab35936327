"""ONNX Runtime's Attention, as another tool has put it in: three projections of one input, and ONNX's Attention.

One without a bias is left: ONNX Runtime's CPU provider ends the process on it, so none was seen to be right. Of
constant weights each projection gets its own; else one product is split. A mask is a row of keys for each sample, one
row for each query, or the number of open keys of each sample; a past comes and goes as one tensor
[2, batch, heads, rows, size] (onnxruntime/core/graph/contrib_ops/bert_defs.cc).
"""

from itertools import product
from typing import Any

import numpy as np
from sdort.fusions.restore_multi_head_attention import (
    ATTENTION,
    PADDING,
    attention_settings,
    mask_steps,
    open_keys,
    third,
)

from sdort.graph.weights import Combined, Reshaped, as_weight
from sdort.rewrite.match import Match, Refusal, refuse

STAGE = "restore"
ANCHOR = "com.microsoft.Attention"
_NODE = """com.microsoft.Attention <mask_filter_value: float = @filter, num_heads: int = @heads,
        qkv_hidden_sizes: ints = @widths, scale: float = @scale, unidirectional: int = @causal>"""
_ROWS = ("int64[B, Q, O] padding", """open = Greater (padding, shut)
    penalty = Where (open, zero, filter)
    axes = Constant <value_ints = [1]> ()
    closed = Unsqueeze (penalty, axes)""")  # fmt: skip
_LENGTHS = ("int64[B] padding", """lengths = Cast <to = 7> (padding)
    end = Unsqueeze (lengths, one)
    rows = Shape <start = 1, end = 2> (x)
    count = Squeeze (rows)
    none = Constant <value_int = 0> ()
    step = Constant <value_int = 1> ()
    places = Range (none, count, step)
    open = Less (places, end)
    penalty = Where (open, zero, filter)
    axes = Constant <value_ints = [1, 2]> ()
    row = Unsqueeze (penalty, axes)
    sizes4 = Concat <axis = 0> (one, one, rows, one)
    closed = Expand (row, sizes4)""")  # fmt: skip
_APART = "qm = MatMul (x, part0)  km = MatMul (x, part1)  vm = MatMul (x, part2)"
_TOGETHER = "qkv = MatMul (x, weight)  qm, km, vm = Split <axis = -1> (qkv, sizes)"
_SHIFTED = "q = Add (qm, shift0)  k = Add (km, shift1)  v = Add (vm, shift2)"
_SHIFTS = f"shift0, shift1, shift2 = Split <axis = 0> (shift, sizes)  {_SHIFTED}"
_PAST = """pk, pv = Split <axis = 0, num_outputs = 2> (past)
    past_key = Squeeze (pk, zeroth)  past_value = Squeeze (pv, zeroth)"""
_PRESENT = """
    present_k = Unsqueeze (key, zeroth)  present_v = Unsqueeze (value, zeroth)
    present = Concat <axis = 0> (present_k, present_v)"""
_OPTIONS = [
    (constant, padding, bias, past)
    for padding, constant, bias, past in product((None, PADDING, _ROWS, _LENGTHS), (1, 0), (0, 1), (0, 1))
    if constant or not (padding or bias or past)
    # With a past there are more keys than rows, and the kernels take no bias of the scores.
    if not (past and (bias or padding in (_ROWS, _LENGTHS)))
]


def _texts(constant: int, padding: tuple[str, str] | None, bias: int, past: int) -> tuple[str, str]:
    optional = ((None, "shift", True), (padding and padding[0], "padding", padding),
                ("float[] past", "past", past), ("float[] bias", "bias", bias))  # fmt: skip
    flows = [
        "float[B, S, I] x",
        *([] if constant else ["float[I, P] weight, float[P] shift"]),
        *(text for text, _, there in optional if there and text),
    ]
    given = ["x", "packed" if constant else "weight", *(name if there else '""' for _, name, there in optional)]
    while given[-1] == '""':
        given.pop()
    masks, mask = mask_steps(padding, bias, "x")
    rest = [mask or '""', *(["past_key", "past_value"] if past else [])] if mask or past else []
    head = f"g ({', '.join(flows)}) => (float[] y{', float[] present' if past else ''})"
    before = f"{'y, present' if past else 'y'} = {_NODE} ({', '.join(given)})"
    steps = [_APART if constant else _TOGETHER, _SHIFTED if constant else _SHIFTS, masks, _PAST if past else ""]
    last = f"{'y, key, value' if past else 'y'} = {ATTENTION} ({', '.join(['q, k, v', *rest])})"
    return (
        f"{head} {'<float[I, P] packed, float[P] shift>' if constant else ''} {{ {before} }}",
        f"{head} {{\n    {'  '.join(filter(None, steps))}\n    {last}{_PRESENT if past else ''}\n}}",
    )


BEFORE, AFTER = zip(*(_texts(*options) for options in _OPTIONS), strict=True)
_EARLIER = 7


def _example(padding: tuple[str, str] | None, past: int) -> Any:
    if padding is _LENGTHS:
        return np.array([5, 3], np.int32)
    keys = open_keys(5 + _EARLIER * past)
    return np.tile(keys[:, None], (1, 5, 1)) if padding is _ROWS else keys


EXAMPLE = {
    "B": 2, "S": 5, "I": 10, "P": 36, "heads": 3, "scale": 0.3, "filter": -50.0,
    "causal": tuple(int(options[1] is None) for options in _OPTIONS),
    "widths": tuple([12, 12, 12] if options[0] or options[3] else [9, 9, 18] for options in _OPTIONS),
    "padding": tuple(_example(options[1], options[3]) for options in _OPTIONS),
    "bias": tuple([2, 3, 5, 5 + _EARLIER * options[3]] for options in _OPTIONS),
    "past": [2, 2, 3, _EARLIER, 4],
}  # fmt: skip


def check(m: Match) -> Refusal | None:
    widths, heads, total = m.attrs["widths"], m.attrs["heads"], m.known("P")
    if not isinstance(heads, int) or heads < 1:
        return refuse("the number of heads is not positive", heads)
    if total is None:
        return refuse("the width of its projections is not fixed", m.dims["P"])
    if widths and (len(widths) != 3 or sum(widths) != total):
        return refuse("qkv_hidden_sizes are not the widths of its weights", (*widths, total))
    if any(width % heads for width in _widths(m)) or (not widths and total % 3):
        return refuse("the widths are no multiples of the heads", (*_widths(m), heads))
    if "packed" in m.tensors and len(set(_widths(m))) > 1:
        return refuse("the projections are of several widths", tuple(_widths(m)))
    return None


def _widths(m: Match) -> list[int]:
    return list(m.attrs["widths"] or [m.size("P") // 3] * 3)


def derive(m: Match) -> dict[str, Any]:
    widths = _widths(m)
    made: dict[str, Any] = attention_settings(m) | {"sizes": m.editor.ints(widths), "zeroth": m.editor.ints([0])}
    if "packed" in m.tensors:
        weight, shift, width = as_weight(m["packed"]._values), as_weight(m["shift"]._values), widths[0]
        apart = Reshaped(weight, [weight.shape[0], 3, width])
        for part in range(3):
            own = Combined(apart, 1, [[float(index == part) for index in range(3)]])
            flat = Reshaped(own, [weight.shape[0], width])
            made[f"part{part}"] = m.editor.constant(flat, m["packed"].name)
            made[f"shift{part}"] = third(m, shift, part)
    return made
