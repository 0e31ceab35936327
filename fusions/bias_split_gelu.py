"""GEGLU: the projection's bias, the split and hidden * Gelu(gate) in one (https://arxiv.org/abs/2002.05202).

sdort's own operator takes the widths that ONNX Runtime's has no kernel for, as of SDXL's refiner.
"""

STAGE = "fuse"
ANCHOR = "Gelu"
BEFORE = """
g (float[B, S, D] x) => (float[B, S, H] y) <float[D] bias> {
    biased = Add (x, bias)
    hidden, gate = Split <axis = -1, num_outputs = 2> (biased)
    act = Gelu (gate)
    y = Mul (hidden, act)
}"""
AFTER = (  # the first that the provider runs
    "g (float[B, S, D] x, float[D] bias) => (float[B, S, H] y) { y = com.microsoft.BiasSplitGelu (x, bias) }",
    "g (float[B, S, D] x, float[D] bias) => (float[B, S, H] y) { y = sdort.BiasSplitGelu (x, bias) }",
)
EXAMPLE = {"B": 2, "S": 5, "D": 16, "H": 8}
