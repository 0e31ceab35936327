"""ONNX Runtime's QuickGelu, x * sigmoid(alpha x), as another tool has put it in: with alpha 1 it is the SiLU."""

from typing import Any

import numpy as np

from sdort.rewrite.match import Match

STAGE = "restore"
ANCHOR = "com.microsoft.QuickGelu"
BEFORE = (
    "g (float[] x) => (float[] y) { y = com.microsoft.QuickGelu <alpha = 1.0> (x) }",
    "g (float[] x) => (float[] y) { y = com.microsoft.QuickGelu <alpha: float = @alpha> (x) }",
)
AFTER = (
    """g (float[] x) => (float[] y) {
    s = Sigmoid (x)
    y = Mul (x, s)
}""",
    """g (float[] x, float factor) => (float[] y) {
    scaled = Mul (x, factor)
    s = Sigmoid (scaled)
    y = Mul (x, s)
}""",
)
EXAMPLE = {"x": [2, 3, 8], "alpha": 1.702}


def derive(m: Match) -> dict[str, Any]:
    alpha = np.array(m.attrs.get("alpha", 1), m.editor.dtype(m["x"]) or np.float32)
    return {"factor": m.editor.constant(alpha, "alpha")}
