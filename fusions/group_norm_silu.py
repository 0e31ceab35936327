"""A channels-last group normalization and the SiLU that follows: x * sigmoid(x) (https://arxiv.org/abs/1702.03118)."""

STAGE = "fuse_nhwc"
ANCHOR = "com.microsoft.GroupNorm"
BEFORE = """
g (float[N, H, W, C] x) => (float[N, H, W, C] y) <float[C] gamma, float[C] beta> {
    n = com.microsoft.GroupNorm <activation = 0, channels_last = 1, epsilon: float = @epsilon, groups: int = @groups>
        (x, gamma, beta)
    s = Sigmoid (n)
    y = Mul (n, s)
}"""
AFTER = """
g (float[N, H, W, C] x, float[C] gamma, float[C] beta) => (float[N, H, W, C] y) {
    y = com.microsoft.GroupNorm <activation = 1, channels_last = 1, epsilon: float = @epsilon, groups: int = @groups>
        (x, gamma, beta)
}"""
EXAMPLE = {"N": 2, "H": 3, "W": 5, "C": 8, "epsilon": 1e-5, "groups": 4}
