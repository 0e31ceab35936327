"""The tanh approximation of Gelu: x/2 * (1 + tanh(sqrt(2/pi) * (x + 0.044715 x^3))) (https://arxiv.org/abs/1606.08415)."""

from itertools import product

STAGE = "raise"
ANCHOR = "Tanh"
_BEFORE = """
g (float[] x) => (float[] y)
<float half = {{0.5}}, float one = {{1.0}}, float three = {{3.0}}, float c = {{0.044715}}, float r = {{0.79788456}}> {{
    {0}
    bent = Mul (cube, c)
    sum = Add (x, bent)
    scaled = Mul (sum, r)
    t = Tanh (scaled)
    p = Add (t, one)
    {1}
}}"""
_CUBES = ("cube = Pow (x, three)", "square = Mul (x, x)  cube = Mul (square, x)")
_HALVES = (
    "h = Mul (x, half)  y = Mul (h, p)",
    "h = Mul (p, half)  y = Mul (x, h)",
    "h = Mul (x, p)  y = Mul (h, half)",
)
BEFORE = tuple(_BEFORE.format(*parts) for parts in product(_CUBES, _HALVES))
AFTER = 'g (float[] x) => (float[] y) { y = Gelu <approximate = "tanh"> (x) }'
EXAMPLE = {"x": [2, 3, 8]}
