"""The bias of a projection and the residual sum after it."""

STAGE = "fuse"
ANCHOR = "Add"
RUN_AFTER = ("skip_layer_normalization",)
BEFORE = """
g (float[B, S, I] x, float[B, S, C] skip) => (float[B, S, C] y) <float[I, C] weight, float[C] bias> {
    product = MatMul (x, weight)
    biased = Add (product, bias)
    y = Add (biased, skip)
}"""
AFTER = """
g (float[B, S, I] x, float[B, S, C] skip, float[I, C] weight, float[C] bias) => (float[B, S, C] y) {
    product = MatMul (x, weight)
    y = com.microsoft.BiasAdd (product, bias, skip)
}"""
EXAMPLE = {"B": 2, "S": 5, "I": 12, "C": 8}
