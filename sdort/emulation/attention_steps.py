"""Attentions spelled out for looking inside: each step that an original has as a node becomes a node.

Definitions: ONNX Runtime's operator schemas (ContribOperators.md) and ONNX's Attention
(https://onnx.ai/onnx/operators/onnx__Attention.html). All is computed in fp32, as kernels do; the scores are stored
in between, as kernels do that are not fused into one. A function returns None for a form that it does not know.
"""

from __future__ import annotations

from sdort.emulation.standard import Call

LOWEST = -1e30
"""Added to scores that are closed."""


def multi_head_attention(call: Call, stored: int) -> str | None:
    """com.microsoft.MultiHeadAttention, packed or not."""
    if call.has_input(3) or call.has_input(4) or len(call.inputs) > 6:
        return None
    heads = f"heads = Constant <value_ints = [0, 0, {call.attributes['num_heads']}, -1]> ()\n"
    heads += "place = Constant <value_ints = [3]> ()\n"
    if not call.has_input(1):
        apart = "qp, kp, vp = Split <axis = 3, num_outputs = 3> (query)\n q4 = Squeeze (qp, place)\n"
    else:
        apart = "q4 = Reshape (query, heads)\n"
        apart += "" if call.has_input(2) else "kp, vp = Split <axis = 3, num_outputs = 2> (key)\n"
    packed = "k4 = Squeeze (kp, place)\n v4 = Squeeze (vp, place)\n"
    apart += "k4 = Reshape (key, heads)\n v4 = Reshape (value, heads)\n" if call.has_input(2) else packed
    mask = _mask("attention_bias" if call.has_input(5) else None, bool(call.attributes.get("unidirectional")))
    return heads + apart + _core(call, mask, stored) + _MERGE + "output = Identity (merged)"


def projected_attention(call: Call, stored: int) -> str | None:
    """com.microsoft.Attention, which projects its input itself."""
    if call.has_input(3) or call.has_input(4) or len(call.inputs) > 6 or call.attributes.get("qkv_hidden_sizes"):
        return None
    bias = "projected = Add (product, B)" if call.has_input(2) else "projected = Identity (product)"
    text = f"""
      heads = Constant <value_ints = [0, 0, {call.attributes["num_heads"]}, -1]> ()
      product = MatMul (X, W)
      {bias}
      q3, k3, v3 = Split <axis = -1, num_outputs = 3> (projected)
      q4 = Reshape (q3, heads)
      k4 = Reshape (k3, heads)
      v4 = Reshape (v3, heads)
    """
    mask = _mask("attention_bias" if call.has_input(5) else None, bool(call.attributes.get("unidirectional")))
    return text + _core(call, mask, stored) + _MERGE + "output = Identity (merged)"


def standard_attention(call: Call, stored: int, logical: bool) -> str | None:
    """ONNX's Attention, with the heads apart, [batch, heads, rows, size], or merged, [batch, rows, heads * size].

    Args:
        logical: the mask is of booleans: true where the scores are open.
    """
    attributes, heads = call.attributes, call.attributes.get("q_num_heads")
    if any(call.inputs[4:]) or any(call.outputs[1:]) or attributes.get("softcap"):
        return None
    if heads != attributes.get("kv_num_heads"):
        return None
    mask = _mask("mask" if call.has_input(3) else None, bool(attributes.get("is_causal")), logical)
    if heads is None:
        apart = "".join(f"{n}4 = Transpose <perm = [0, 2, 1, 3]> ({s})\n" for n, s in zip("qkv", "QKV", strict=True))
        return apart + _core(call, mask, stored) + "Y = Identity (sums)"
    apart = f"heads = Constant <value_ints = [0, 0, {heads}, -1]> ()\n"
    apart += "".join(f"{n}4 = Reshape ({s}, heads)\n" for n, s in zip("qkv", "QKV", strict=True))
    return apart + _core(call, mask, stored) + _MERGE + "Y = Identity (merged)"


def _core(call: Call, mask: str, stored: int) -> str:
    """From q4, k4, v4 [batch, rows, heads, size] to sums [batch, heads, rows, size]."""
    scale = call.attributes.get("scale")
    return f"""
      q = Identity (q4)
      k = Identity (k4)
      v = Identity (v4)
      width = Shape <start = -1> (q)
      width_float = Cast <to = 1> (width)
      root = Sqrt (width_float)
      factor = {f"Constant <value_float = {scale:.20f}> ()" if scale else "Reciprocal (root)"}
      queries = Transpose <perm = [0, 2, 1, 3]> (q)
      keys = Transpose <perm = [0, 2, 3, 1]> (k)
      values = Transpose <perm = [0, 2, 1, 3]> (v)
      products = MatMul (queries, keys)
      scaled = Mul (products, factor)
      narrow = Cast <to = {stored}> (scaled)
      scores = Cast <to = 1> (narrow)
      {mask}
      shares = Softmax <axis = -1> (masked)
      sums = MatMul (shares, values)
    """


_MERGE = """
      flat = Constant <value_ints = [0, 0, -1]> ()
      rows = Transpose <perm = [0, 2, 1, 3]> (sums)
      merged = Reshape (rows, flat)
    """


def _mask(given: str | None, causal: bool, logical: bool = False) -> str:
    """From scores to masked; ``given`` is added to them, or says which are open."""
    lines, last = [f"lowest = Constant <value_float = {LOWEST}> ()"], "scores"
    if given:
        added = [f"added = Cast <to = 1> ({given})", "open = Add (scores, added)"]
        lines += [f"open = Where ({given}, scores, lowest)"] if logical else added
        last = "open"
    if causal:
        lines += [
            "one = Constant <value_int = 1> ()",
            "square = Shape <start = -2> (scores)",
            "closed = Expand (lowest, square)",
            "triangle = Trilu <upper = 1> (closed, one)",
            f"causal = Add ({last}, triangle)",
        ]
        last = "causal"
    return "\n".join([*lines, f"masked = Identity ({last})"])
