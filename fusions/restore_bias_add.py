"""ONNX Runtime's BiasAdd, as another tool has put it in; that of images may stand between views of them."""

STAGE = "restore"
ANCHOR = "com.microsoft.BiasAdd"
BEFORE = (
    """g (float[N, H, W, C] x, float[N, H, W, C] skip, int64[] flat, int64[] flat_skip, int64[] back)
=> (float[N, H, W, C] y) <float[C] bias, float[N, S, C] rows> {
    rows = Reshape (x, flat)
    skip_rows = Reshape (skip, flat_skip)
    sum = com.microsoft.BiasAdd (rows, bias, skip_rows)
    y = Reshape (sum, back)
}""",
    "g (float[] x, float[] bias, float[] skip) => (float[] y) { y = com.microsoft.BiasAdd (x, bias, skip) }",
)
AFTER = (
    """g (float[N, H, W, C] x, float[N, H, W, C] skip, float[C] bias) => (float[N, H, W, C] y) {
    biased = Add (x, bias)
    y = Add (biased, skip)
}""",
    """g (float[] x, float[] bias, float[] skip) => (float[] y) {
    biased = Add (x, bias)
    y = Add (biased, skip)
}""",
)
EXAMPLE = {
    "N": 2, "H": 3, "W": 5, "C": 8, "S": 15, "flat": [0, -1, 8], "flat_skip": [0, -1, 8], "back": [2, 3, 5, 8],
    "x": [2, 3, 8], "bias": ([0.5, 1.0, -2.0, 3.0, 0.25, -1.0, 2.0, 4.0], [8]), "skip": [2, 3, 8],
}  # fmt: skip
