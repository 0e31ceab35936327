"""MultiHeadAttention whose heads are wider than 256 -> sdort's, in two products without a pass over the scores.

The middle block of a VAE has one head of 512, for which cuDNN and flash attention have no kernel: ONNX Runtime takes
CUTLASS's general one. It takes a head size of whole 32s to compute it by matrix instructions.
"""

from sdort.rewrite.match import Match, Refusal, decline

STAGE = "extend"
ANCHOR = "com.microsoft.MultiHeadAttention"
_SIGNATURE = "g (float[B, S, C] q, float[B, L, C] k, float[B, L, C] v) => (float[B, S, C] y)"
BEFORE = f"""
{_SIGNATURE} {{
    y = com.microsoft.MultiHeadAttention <num_heads: int = @heads, scale: float = @scale> (q, k, v)
}}"""
AFTER = f"""
{_SIGNATURE} {{
    y = sdort.MultiHeadAttention <num_heads: int = @heads, scale: float = @scale> (q, k, v)
}}"""
EXAMPLE = {"B": 2, "S": 5, "L": 5, "C": 288, "heads": 1, "scale": 0.3}

_NARROW = 256
"""The widest heads of cuDNN's and flash attention."""


def check(m: Match) -> Refusal | None:
    width, heads = m.known("C"), m.attrs["heads"]
    if width is None or heads < 1 or width <= _NARROW * heads or width % (32 * heads):
        return decline("its heads are not wider than 256 and of whole 32s", (m.dims["C"], heads))
    return None
