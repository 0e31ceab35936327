"""Sin and Cos in sums and products, where a target's own are too coarse.

WebGPU asks for an absolute error below 2^-11 between -pi and pi, and for nothing beyond
(https://www.w3.org/TR/WGSL/#concrete-float-accuracy); the embedding of a timestep takes angles up to 999. The angle
less its whole turns is in that range, and Taylor's series to the 19th power is exact to fp32's rounding there.
"""

from __future__ import annotations

import math

import numpy as np
import onnx_graphsurgeon as gs

from sdort.rewrite.editor import Editor

_HIGH = 6.28125
"""The first 8 bits of 2 pi: its product with fewer than 2^16 turns is exact in fp32 (Cody and Waite's reduction)."""
_LOW = 2 * math.pi - _HIGH
_TERMS = 10
_FIRST_POWER = {"Sin": 1, "Cos": 0}


def run(editor: Editor) -> int:
    """Write every Sin and Cos of fp32 and fp16 out, in fp32; returns how many there were."""
    nodes = [node for node in editor.graph.nodes if not node.domain and node.op in _FIRST_POWER]
    coarse = [node for node in nodes if editor.dtype(node.inputs[0]) in (np.float32, np.float16)]
    for node in coarse:
        if editor.dtype(node.inputs[0]) == np.float16:
            _widen(editor, node)
        _write_out(editor, node)
    editor.finish()
    return len(coarse)


def _widen(editor: Editor, node: gs.Node) -> None:
    """Let a node of fp16 compute in fp32."""
    (output,) = node.outputs
    node.inputs = [editor.cast(node.inputs[0], np.dtype(np.float32)).outputs[0]]
    wide = gs.Variable(f"{output.name}_wide", np.float32, output.shape)
    node.outputs = [wide]
    editor.cast(wide, np.dtype(np.float16), output)


def _write_out(editor: Editor, node: gs.Node) -> None:
    def number(value: float) -> gs.Constant:
        return editor.constant(np.array(value, np.float32), "term")

    (angle,), (output,), first = node.inputs, node.outputs, _FIRST_POWER[node.op]
    shifted = editor.op("Add", [editor.op("Mul", [angle, number(1 / (2 * math.pi))]), number(0.5)])
    turns = editor.op("Floor", [shifted])
    rest = angle
    for part in (_HIGH, _LOW):
        rest = editor.op("Sub", [rest, editor.op("Mul", [turns, number(part)])])
    square = editor.op("Mul", [rest, rest])
    series = [(-1) ** index / math.factorial(2 * index + first) for index in range(_TERMS)]
    total: gs.Tensor = number(series[-1])
    for term in series[-2:0:-1]:
        total = editor.op("Add", [editor.op("Mul", [total, square]), number(term)])
    total = editor.op("Mul", [total, square])
    if first:  # sin x = x (1 - x^2 / 6 + ...)
        factor = editor.op("Add", [total, number(series[0])])
        editor.node("Mul", [factor, rest], outputs=[output])
    else:
        editor.node("Add", [total, number(series[0])], outputs=[output])
