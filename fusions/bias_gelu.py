"""The bias of a projection and the Gelu after it (OpenCLIP)."""

STAGE = "fuse"
ANCHOR = "Gelu"
RUN_AFTER = ("bias_split_gelu",)
BEFORE = """
g (float[B, S, C] x) => (float[B, S, C] y) <float[C] bias> {
    biased = Add (x, bias)
    y = Gelu (biased)
}"""
AFTER = "g (float[B, S, C] x, float[C] bias) => (float[B, S, C] y) { y = com.microsoft.BiasGelu (x, bias) }"
EXAMPLE = {"B": 2, "S": 5, "C": 8}
