"""Additions before a channels-last group normalization: a residual, a time embedding, the convolution's bias."""

STAGE = "fuse_nhwc"
ANCHOR = "com.microsoft.GroupNorm"
RUN_AFTER = ("group_norm_silu",)
_NORM = """
    y = com.microsoft.GroupNorm <activation: int = @activation, channels_last = 1, epsilon: float = @epsilon,
                                 groups: int = @groups> (sum, gamma, beta)
}"""
_IMAGE = """
g (float[N, H, W, C] x, float[N, H, W, C] skip) => (float[N, H, W, C] y, float[N, H, W, C] sum)
<float[C] gamma, float[C] beta> {
    sum = Add (x, skip)"""
_EMBEDDING = """
g (float[N, H, W, C] x, float[N, C] skip, int64[] view) => (float[N, H, W, C] y, float[N, H, W, C] sum)
<float[C] gamma, float[C] beta, float[N, 1, 1, C] pixel> {
    pixel = Reshape (skip, view)
    sum = Add (x, pixel)"""
BEFORE = (_EMBEDDING + _NORM, _IMAGE + _NORM)
_AFTER = """
g (float[N, H, W, C] x, float[] skip, float[C] gamma, float[C] beta)
=> (float[N, H, W, C] y, float[N, H, W, C] sum) {
    y, sum = com.microsoft.SkipGroupNorm <activation: int = @activation, channels_last = 1, epsilon: float = @epsilon,
                                          groups: int = @groups> (x, gamma, beta, skip)
}"""
AFTER = (_AFTER, _AFTER)
EXAMPLE = {"N": 2, "H": 3, "W": 5, "C": 8, "epsilon": 1e-5, "groups": 4, "activation": 1, "view": [0, 1, 1, -1]}
