"""ONNX Runtime's exact Gelu, as another tool has put it in, is ONNX's, which more fuses with."""

STAGE = "restore"
ANCHOR = "com.microsoft.Gelu"
BEFORE = "g (float[] x) => (float[] y) { y = com.microsoft.Gelu (x) }"
AFTER = "g (float[] x) => (float[] y) { y = Gelu (x) }"
EXAMPLE = {"x": [2, 3, 8]}
