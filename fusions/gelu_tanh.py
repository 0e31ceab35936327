"""The tanh approximation of Gelu: x/2 * (1 + tanh(sqrt(2/pi) * (x + 0.044715 x^3))) (https://arxiv.org/abs/1606.08415)."""

STAGE = "raise"
ANCHOR = "Tanh"
BEFORE = """
g (float[] x) => (float[] y)
<float half = {0.5}, float one = {1.0}, float three = {3.0}, float c = {0.044715}, float r = {0.79788456}> {
    cube = Pow (x, three)
    bent = Mul (cube, c)
    sum = Add (x, bent)
    scaled = Mul (sum, r)
    t = Tanh (scaled)
    p = Add (t, one)
    h = Mul (x, half)
    y = Mul (h, p)
}"""
AFTER = 'g (float[] x) => (float[] y) { y = Gelu <approximate = "tanh"> (x) }'
EXAMPLE = {"x": [2, 3, 8]}
