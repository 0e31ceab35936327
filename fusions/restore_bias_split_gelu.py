"""ONNX Runtime's BiasSplitGelu, as another tool has put it in."""

STAGE = "restore"
ANCHOR = "com.microsoft.BiasSplitGelu"
BEFORE = "g (float[] x, float[] bias) => (float[] y) { y = com.microsoft.BiasSplitGelu (x, bias) }"
AFTER = """g (float[] x, float[] bias) => (float[] y) {
    biased = Add (x, bias)
    hidden, gate = Split <axis = -1, num_outputs = 2> (biased)
    act = Gelu (gate)
    y = Mul (hidden, act)
}"""
EXAMPLE = {"x": [2, 3, 16], "bias": [16]}
