"""A mask that is the causal one for every sequence length becomes the attribute."""

from sdort.rewrite.match import Match, Refusal, decline
from sdort.rewrite.shapes_only import is_causal

STAGE = "raise"
ANCHOR = "Attention"
RUN_AFTER = ("attention_masked",)
BEFORE = (
    """
g (float[B, N, S, D] q, float[B, N, S, D] k, float[B, N, S, E] v, float[] mask) => (float[B, N, S, E] y) {
    y = Attention <scale: float = @scale> (q, k, v, mask)
}""",
    """
g (float[B, N, S, D] q, float[B, N, S, D] k, float[B, N, S, E] v, bool[] mask) => (float[B, N, S, E] y) {
    y = Attention <scale: float = @scale> (q, k, v, mask)
}""",
)
AFTER = """
g (float[B, N, S, D] q, float[B, N, S, D] k, float[B, N, S, E] v) => (float[B, N, S, E] y) {
    y = Attention <scale: float = @scale, is_causal = 1> (q, k, v)
}"""
EXAMPLE = {"B": 2, "N": 3, "S": 5, "D": 4, "E": 4, "scale": 0.3, "mask": "causal"}


def check(m: Match) -> Refusal | None:
    return None if is_causal(m.editor, m["mask"]) else decline("the mask is not the causal one", m["mask"].name)
