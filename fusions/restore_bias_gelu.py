"""ONNX Runtime's BiasGelu, as another tool has put it in: a GEGLU takes the bias with its other half."""

STAGE = "restore"
ANCHOR = "com.microsoft.BiasGelu"
BEFORE = "g (float[] x, float[] bias) => (float[] y) { y = com.microsoft.BiasGelu (x, bias) }"
AFTER = """g (float[] x, float[] bias) => (float[] y) {
    biased = Add (x, bias)
    y = Gelu (biased)
}"""
EXAMPLE = {"x": [2, 3, 8], "bias": [8]}
