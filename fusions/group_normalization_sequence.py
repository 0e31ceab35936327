"""A group normalization does not care how the pixels are arranged: it moves in front of the flattening."""

STAGE = "raise"
ANCHOR = "GroupNormalization"
RUN_AFTER = ("group_normalization",)
BEFORE = """
g (float[N, C, H, W] x, int64[] flat) => (float[] y) <float[C] gamma, float[C] beta, float[N, C, S] f> {
    f = Reshape (x, flat)
    y = GroupNormalization <epsilon: float = @epsilon, num_groups: int = @groups> (f, gamma, beta)
}"""
AFTER = """
g (float[N, C, H, W] x, int64[] flat, float[C] gamma, float[C] beta) => (float[] y) {
    n = GroupNormalization <epsilon: float = @epsilon, num_groups: int = @groups> (x, gamma, beta)
    y = Reshape (n, flat)
}"""
EXAMPLE = {"N": 2, "C": 8, "H": 3, "W": 5, "S": 15, "flat": [0, 0, -1], "epsilon": 1e-5, "groups": 4}
