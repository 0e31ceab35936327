"""A convolution's bias moves into the SkipGroupNorm that reads it, which adds it without a kernel of its own."""

STAGE = "fuse_nhwc"
ANCHOR = "com.microsoft.SkipGroupNorm"
RUN_AFTER = ("skip_group_norm",)
_HEAD = """
g (float[N, H, W, I] x, {skip} skip) => (float[N, P, Q, C] y, float[N, P, Q, C] sum)
<float[C, J, K, I] weight, float[C] bias, float[C] gamma, float[C] beta> {{
    c = com.microsoft.NhwcConv <strides: ints = @strides, pads: ints = @pads, dilations: ints = @dilations,
                                group: int = @group, kernel_shape: ints = @kernel,
                                auto_pad: string = @auto_pad> (x, weight, bias)
    y, sum = com.microsoft.SkipGroupNorm <activation: int = @activation, channels_last = 1, epsilon: float = @epsilon,
                                          groups: int = @groups> ({inputs})
}}"""
BEFORE = (
    _HEAD.format(skip="float[]", inputs="c, gamma, beta, skip"),
    _HEAD.format(skip="float[N, P, Q, C]", inputs="skip, gamma, beta, c"),
)
AFTER = """
g (float[N, H, W, I] x, float[] skip, float[C, J, K, I] weight, float[C] bias, float[C] gamma, float[C] beta)
=> (float[N, P, Q, C] y, float[N, P, Q, C] sum) {
    c = com.microsoft.NhwcConv <strides: ints = @strides, pads: ints = @pads, dilations: ints = @dilations,
                                group: int = @group, kernel_shape: ints = @kernel,
                                auto_pad: string = @auto_pad> (x, weight)
    y, sum = com.microsoft.SkipGroupNorm <activation: int = @activation, channels_last = 1, epsilon: float = @epsilon,
                                          groups: int = @groups> (c, gamma, beta, skip, bias)
}"""
EXAMPLE = {
    "N": 2, "H": 3, "W": 5, "I": 4, "P": 3, "Q": 5, "C": 8, "J": 3, "K": 3, "strides": [1, 1], "pads": [1, 1, 1, 1],
    "dilations": [1, 1], "group": 1, "kernel": [3, 3], "auto_pad": "NOTSET", "epsilon": 1e-5, "groups": 4,
    "activation": 1, "skip": [2, 3, 5, 8],
}  # fmt: skip
