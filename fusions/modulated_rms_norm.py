"""A root mean square norm that a scale of each image modulates, as Z-Image and Lumina have it."""

STAGE = "fuse"
ANCHOR = "RMSNormalization"
RUN_AFTER = ("gated_sum",)
BEFORE = """
g (float[B, S, C] x, float[B, 1, C] scale) => (float[B, S, C] y) <float[C] weight> {
    normal = RMSNormalization <axis = -1, epsilon: float = @epsilon> (x, weight)
    y = Mul (normal, scale)
}"""
AFTER = """
g (float[] x, float[] weight, float[] scale) => (float[] y) {
    y = sdort.ModulatedRMSNormalization <epsilon: float = @epsilon> (x, weight, scale)
}"""
EXAMPLE = {"B": 2, "S": 5, "C": 8, "epsilon": 1e-5}
