"""RMSNormalization as ONNX Runtime's operator for it, which providers had before ONNX had one."""

STAGE = "fuse"
ANCHOR = "RMSNormalization"
RUN_AFTER = ("skip_simplified_layer_normalization",)
BEFORE = """
g (float[] x, float[] scale) => (float[] y) {
    y = RMSNormalization <axis: int = @axis, epsilon: float = @epsilon> (x, scale)
}"""
AFTER = """
g (float[] x, float[] scale) => (float[] y) {
    y = com.microsoft.SimplifiedLayerNormalization <axis: int = @axis, epsilon: float = @epsilon> (x, scale)
}"""
EXAMPLE = {"x": [2, 3, 8], "scale": [8], "axis": -1, "epsilon": 1e-5}
