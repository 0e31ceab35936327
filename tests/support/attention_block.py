"""A transformer block small enough to be searched in a moment: self-attention and a gated feed-forward, decomposed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

HEADS, SIZE, INNER = 2, 4, 1280  # as wide as BiasSplitGelu wants it
WIDTH = HEADS * SIZE
TEXT = f"""
<ir_version: 10, opset_import: ["": 18]>
block (float[B, S, {WIDTH}] sample) => (float[B, S, {WIDTH}] out_sample)
<int64[4] apart = {{0, 0, {HEADS}, {SIZE}}}, int64[3] merged = {{0, 0, {WIDTH}}}, float size = {{{SIZE**-0.5}}},
 float root = {{1.4142135623730951}}, float one = {{1.0}}, float half = {{0.5}}> {{
    [norm] normal = LayerNormalization <axis = -1> (sample, gamma, beta)
    [to_q] q = MatMul (normal, wq)
    [to_k] k = MatMul (normal, wk)
    [to_v] v = MatMul (normal, wv)
    [q4] q4 = Reshape (q, apart)
    [k4] k4 = Reshape (k, apart)
    [v4] v4 = Reshape (v, apart)
    [qh] qh = Transpose <perm = [0, 2, 1, 3]> (q4)
    [kh] kh = Transpose <perm = [0, 2, 3, 1]> (k4)
    [vh] vh = Transpose <perm = [0, 2, 1, 3]> (v4)
    [product] product = MatMul (qh, kh)
    [logits] logits = Mul (product, size)
    [softmax] shares = Softmax <axis = -1> (logits)
    [sums] sums = MatMul (shares, vh)
    [rows] rows = Transpose <perm = [0, 2, 1, 3]> (sums)
    [attention] attention = Reshape (rows, merged)
    [to_out] out = MatMul (attention, wo)
    [project] projected = MatMul (out, wp)
    [bias] biased = Add (projected, bp)
    [split] hidden, gate = Split <axis = -1, num_outputs = 2> (biased)
    [ratio] ratio = Div (gate, root)
    [erf] bent = Erf (ratio)
    [raise] raised = Add (bent, one)
    [double] double = Mul (gate, raised)
    [gelu] gelu = Mul (double, half)
    [gated] gated = Mul (hidden, gelu)
    [last] out_sample = MatMul (gated, wl)
}}"""
SHAPES = {
    "gamma": (WIDTH,), "beta": (WIDTH,), "wq": (WIDTH, WIDTH), "wk": (WIDTH, WIDTH), "wv": (WIDTH, WIDTH),
    "wo": (WIDTH, WIDTH), "wp": (WIDTH, 2 * INNER), "bp": (2 * INNER,), "wl": (INNER, WIDTH),
}  # fmt: skip


def write_block(path: Path, constant: float = 0.0) -> Path:
    """Write the block.

    Args:
        constant: one element of the first head's queries and keys, whatever the input: its square, halved, is in every
            score, where the softmax ignores it. 0 leaves the weights as they are drawn.
    """
    model = onnx.parser.parse_model(TEXT)
    draw = np.random.default_rng(3)
    weights = {name: draw.standard_normal(shape).astype(np.float32) * 0.5 for name, shape in SHAPES.items()}
    if constant:
        weights["gamma"][0], weights["beta"][0] = 0.0, 1.0
        for name in ("wq", "wk"):
            weights[name][:, 0], weights[name][0, 0] = 0.0, constant
    model.graph.initializer.extend(numpy_helper.from_array(values, name) for name, values in weights.items())
    onnx.save(model, path)
    return path
