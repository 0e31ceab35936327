"""A branch's norm and gate, the stream that it is added to, and the modulated root mean square norm that reads the sum.

Z-Image's blocks have it: they normalize a branch before its gate (https://arxiv.org/abs/2511.22699).
"""

STAGE = "fuse"
ANCHOR = "RMSNormalization"
BEFORE = """
g (float[B, S, C] x, float[B, S, C] branch, float[B, 1, C] gate, float[B, 1, C] scale)
=> (float[B, S, C] y, float[B, S, C] sum) <float[C] factor, float[C] weight> {
    inner = RMSNormalization <axis = -1, epsilon: float = @branch_epsilon> (branch, factor)
    gated = Mul (gate, inner)
    sum = Add (x, gated)
    normal = RMSNormalization <axis = -1, epsilon: float = @epsilon> (sum, weight)
    y = Mul (normal, scale)
}"""
AFTER = """
g (float[] x, float[] branch, float[] factor, float[] gate, float[] weight, float[] scale) => (float[] y, float[] sum) {
    y, sum = sdort.GatedModulatedRMSNormalization <branch_epsilon: float = @branch_epsilon, epsilon: float = @epsilon>
        (x, branch, factor, gate, weight, scale)
}"""
EXAMPLE = {"B": 2, "S": 5, "C": 8, "epsilon": 1e-5, "branch_epsilon": 1e-3}
