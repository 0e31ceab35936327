"""ArgMax over integers, where the target has it for floats only: the index of TopK's one, which takes integers.

Of equal elements both are bound to name the first (https://onnx.ai/onnx/operators/onnx__TopK.html); prompts are padded
with the token that ends them. An ArgMax over floats would be a reduction of MIOpen or cuDNN, which promise no order.
"""

from typing import Any

from sdort.rewrite.match import Match

STAGE = "lower"
ANCHOR = "ArgMax"
BEFORE = (
    "g (int64[] x) => (int64[] y) { y = ArgMax <axis: int = @axis, keepdims = 1> (x) }",
    "g (int64[] x) => (int64[] y) { y = ArgMax <axis: int = @axis, keepdims = 0> (x) }",
)
AFTER = (
    """g (int64[] x) => (int64[] y) <int64[1] one = {1}> {
    largest, y = TopK <axis: int = @axis> (x, one)
}""",
    """g (int64[] x, int64[1] axes) => (int64[] y) <int64[1] one = {1}> {
    largest, index = TopK <axis: int = @axis> (x, one)
    y = Squeeze (index, axes)
}""",
)
EXAMPLE = {"x": [[3, 9, 9, 1, 0], [0, 0, 0, 0, 0]], "axis": -1}


def derive(m: Match) -> dict[str, Any]:
    return {"axes": m.editor.ints([m.attrs["axis"]])}
