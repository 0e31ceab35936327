"""LayerNormalization as exporters below opset 17 write it.

y = gamma * (x - mean) / sqrt(var + epsilon) + beta over the last axis (https://arxiv.org/abs/1607.06450).
"""

from typing import Any

import onnx_graphsurgeon as gs

from sdort.rewrite.editor import Editor, producer
from sdort.rewrite.match import Match, behind_casts

STAGE = "raise"
ANCHOR = "ReduceMean"
MUST_FUSE = True
BEFORE = """
g (float[B, S, C] x) => (float[B, S, C] y)
<float[C] gamma, float[C] beta, float epsilon, int64[1] axis = {-1}, float two = {2.0}> {
    mean = ReduceMean <keepdims = 1> (x, axis)
    centered = Sub (x, mean)
    square = Pow (centered, two)
    variance = ReduceMean <keepdims = 1> (square, axis)
    shifted = Add (variance, epsilon)
    deviation = Sqrt (shifted)
    normal = Div (centered, deviation)
    scaled = Mul (normal, gamma)
    y = Add (scaled, beta)
}"""
AFTER = """
g (float[B, S, C] x, float[C] gamma, float[C] beta) => (float[B, S, C] y) {
    y = LayerNormalization <axis = -1, epsilon: float = @eps> (x, gamma, beta)
}"""
EXAMPLE = {"B": 2, "S": 3, "C": 8, "epsilon": [1e-5]}


def derive(m: Match) -> dict[str, Any]:
    return {"eps": m.scalar("epsilon")}


def concerns(editor: Editor, anchor: gs.Node) -> bool:
    """Whether a mean is subtracted from what it is of, or is of such differences; an RMSNorm has neither."""
    source, _ = behind_casts(editor, anchor.inputs[0])
    square = producer(source)
    difference = producer(behind_casts(editor, square.inputs[0])[0], "Sub") if square is not None else None
    if difference is not None and square is not None and square.op in ("Pow", "Mul"):
        return producer(behind_casts(editor, difference.inputs[1])[0], "ReduceMean") is not None
    readers = [reader for tensor in anchor.outputs for reader in tensor.outputs]
    readers += [later for reader in readers if reader.op == "Cast" for later in reader.outputs[0].outputs]
    return any(r.op == "Sub" and behind_casts(editor, r.inputs[0])[0] is source for r in readers)
