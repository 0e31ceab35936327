"""ONNX Runtime's FusedMatMul, alpha * op(a) op(b), as another tool has put it in: Transposes, MatMul and a factor.

``op`` turns the last two axes. Turned batches (transBatchA, transBatchB) are left.
"""

from typing import Any

import numpy as np

from sdort.rewrite.match import Match, Refusal, refuse

STAGE = "restore"
ANCHOR = "com.microsoft.FusedMatMul"
BEFORE = """
g (float[] a, float[] b) => (float[] y) {
    y = com.microsoft.FusedMatMul <alpha: float = @alpha, transA: int = @left, transB: int = @right> (a, b)
}"""
AFTER = """
g (float[] a, float[] b, float factor) => (float[] y) {
    left = Transpose <perm: ints = @left_axes> (a)
    right = Transpose <perm: ints = @right_axes> (b)
    product = MatMul (left, right)
    y = Mul (product, factor)
}"""
EXAMPLE = {"a": [2, 5, 3], "b": [2, 4, 5], "left": 1, "right": 1, "alpha": 0.125}


def check(m: Match) -> Refusal | None:
    for name in "ab":
        if len(m.editor.shape(m[name]) or ()) < 2:
            return refuse("the number of axes is not known, or one", m[name].name)
    return None


def derive(m: Match) -> dict[str, Any]:
    factor = np.array(m.attrs["alpha"], m.editor.dtype(m["a"]) or np.float32)
    axes = {"left_axes": _axes(m, "a", m.attrs["left"]), "right_axes": _axes(m, "b", m.attrs["right"])}
    return {"factor": m.editor.constant(factor, "alpha"), **axes}


def _axes(m: Match, name: str, turned: int) -> list[int]:
    axes = list(range(len(m.editor.shape(m[name]) or ())))
    return [*axes[:-2], axes[-1], axes[-2]] if turned else axes
