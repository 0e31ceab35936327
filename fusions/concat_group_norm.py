"""A channels-last Concat that a group normalization reads: sdort's GroupNorm reads both parts and writes the whole too.

In a UNet's decoder the 1x1 convolution beside the normalization reads the Concat too, so it stays as the second output;
where nobody else reads it, it is never written.
"""

STAGE = "extend"
ANCHOR = "com.microsoft.GroupNorm"
BEFORE = """
g (float[N, H, W, A] x, float[N, H, W, B] x2) => (float[N, H, W, C] y, float[N, H, W, C] joined)
<float[C] gamma, float[C] beta> {
    joined = Concat <axis = -1> (x, x2)
    y = com.microsoft.GroupNorm <activation: int = @activation, channels_last = 1, epsilon: float = @epsilon,
                                 groups: int = @groups> (joined, gamma, beta)
}"""
AFTER = """
g (float[N, H, W, A] x, float[N, H, W, B] x2, float[C] gamma, float[C] beta)
=> (float[N, H, W, C] y, float[N, H, W, C] joined) {
    y, joined = sdort.GroupNorm <activation: int = @activation, channels_last = 1, epsilon: float = @epsilon,
                                 groups: int = @groups> (x, x2, gamma, beta)
}"""
EXAMPLE = {"N": 2, "H": 3, "W": 5, "A": 8, "B": 4, "C": 12, "epsilon": 1e-5, "groups": 2, "activation": 1}
