"""AdaLN: a LayerNormalization without affine, times a scale, plus a shift of each image (https://arxiv.org/abs/2212.09748).

Two modulations may read one norm, as in Stable Diffusion 3.5's blocks with two attentions of the image.
"""

from sdort.rewrite.match import Match, Refusal, refuse

STAGE = "fuse"
ANCHOR = "LayerNormalization"
_OF_IMAGE = "float[B, 1, C]"
FIRST = f"{_OF_IMAGE} scale, {_OF_IMAGE} shift"
SECOND = f"{_OF_IMAGE} scale2, {_OF_IMAGE} shift2"
ONCE = "scaled = Mul (normal, scale)  y = Add (scaled, shift)"
TWICE = f"{ONCE}  scaled2 = Mul (normal, scale2)  y2 = Add (scaled2, shift2)"
BEFORE = (
    f"""
g (float[B, S, C] x, {FIRST}, {SECOND}) => (float[B, S, C] y, float[B, S, C] y2) <float[C] gamma> {{
    normal = LayerNormalization <axis = -1, epsilon: float = @epsilon> (x, gamma)
    {TWICE}
}}""",
    f"""
g (float[B, S, C] x, {FIRST}) => (float[B, S, C] y) <float[C] gamma> {{
    normal = LayerNormalization <axis = -1, epsilon: float = @epsilon> (x, gamma)
    {ONCE}
}}""",
)
AFTER = (
    """
g (float[] x, float[] scale, float[] shift, float[] scale2, float[] shift2) => (float[] y, float[] y2) {
    y, y2 = sdort.TwiceModulatedLayerNormalization <epsilon: float = @epsilon> (x, scale, shift, scale2, shift2)
}""",
    """
g (float[] x, float[] scale, float[] shift) => (float[] y) {
    y = sdort.ModulatedLayerNormalization <epsilon: float = @epsilon> (x, scale, shift)
}""",
)
EXAMPLE = {"B": 2, "S": 5, "C": 8, "epsilon": 1e-6, "gamma": [1.0] * 8}


def check(m: Match) -> Refusal | None:
    return None if m.is_filled("gamma", 1) else refuse("the normalization has a weight of its own")
