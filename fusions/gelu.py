"""The exact Gelu as ORT's operator: the standard one needs opset 20, where ROCm has no Resize and Pad kernels."""

STAGE = "lower"
ANCHOR = "Gelu"
MUST_FUSE = True
BEFORE = "g (float[] x) => (float[] y) { y = Gelu (x) }"
AFTER = "g (float[] x) => (float[] y) { y = com.microsoft.Gelu (x) }"
EXAMPLE = {"x": [2, 3, 8]}
