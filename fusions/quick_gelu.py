"""CLIP's activation x * sigmoid(1.702 x) (https://arxiv.org/abs/1606.08415, section 2)."""

STAGE = "fuse"
ANCHOR = "Sigmoid"
BEFORE = """
g (float[] x) => (float[] y) <float alpha = {1.702}> {
    scaled = Mul (x, alpha)
    s = Sigmoid (scaled)
    y = Mul (x, s)
}"""
AFTER = "g (float[] x) => (float[] y) { y = com.microsoft.QuickGelu <alpha = 1.702> (x) }"
EXAMPLE = {"x": [2, 3, 8]}
