"""ONNX Runtime's FastGelu, as another tool has put it in, with a bias or without."""

STAGE = "restore"
ANCHOR = "com.microsoft.FastGelu"
BEFORE = (
    "g (float[] x) => (float[] y) { y = com.microsoft.FastGelu (x) }",
    "g (float[] x, float[] bias) => (float[] y) { y = com.microsoft.FastGelu (x, bias) }",
)
AFTER = (
    'g (float[] x) => (float[] y) { y = Gelu <approximate = "tanh"> (x) }',
    """g (float[] x, float[] bias) => (float[] y) {
    biased = Add (x, bias)
    y = Gelu <approximate = "tanh"> (biased)
}""",
)
EXAMPLE = {"x": [2, 3, 8], "bias": [8]}
