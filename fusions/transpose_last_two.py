"""A transpose of the last two axes, written with the leading axes merged (torch's dynamo exporter, opset 18)."""

STAGE = "raise"
ANCHOR = "Transpose"
BEFORE = """
g (float[B, N, L, D] x, int64[] merge, int64[] split) => (float[B, N, D, L] y) <float[M, L, D] merged> {
    merged = Reshape (x, merge)
    turned = Transpose <perm = [0, 2, 1]> (merged)
    y = Reshape (turned, split)
}"""
AFTER = "g (float[B, N, L, D] x) => (float[B, N, D, L] y) { y = Transpose <perm = [0, 1, 3, 2]> (x) }"
EXAMPLE = {"B": 2, "N": 3, "L": 5, "D": 4, "M": 6, "merge": [6, 5, 4], "split": [2, 3, 4, 5]}
