"""ONNX Runtime's root mean square norms, as another tool has put them in, are ONNX's RMSNormalization."""

STAGE = "restore"
ANCHOR = "com.microsoft.SimplifiedLayerNormalization"
BEFORE = """
g (float[] x, float[] scale) => (float[] y) {
    y = com.microsoft.SimplifiedLayerNormalization <axis: int = @axis, epsilon: float = @epsilon,
                                                    stash_type: int = @stash> (x, scale)
}"""
AFTER = """
g (float[] x, float[] scale) => (float[] y) {
    y = RMSNormalization <axis: int = @axis, epsilon: float = @epsilon, stash_type: int = @stash> (x, scale)
}"""
EXAMPLE = {"x": [2, 3, 8], "scale": [8], "axis": -1, "epsilon": 1e-5, "stash": 1}
