"""sdort.RotaryEmbedding: pairs of elements of each head turned by angles of which each row has its own.

(a + b i) (cos + i sin) for elements a and b that are neighbours (``interleaved``) or half a head apart
(https://arxiv.org/abs/2104.09864). X is [batch, rows, heads * size]; cos and sin are [batch or 1, rows, size / 2].
"""

from sdort.graph.domains import OWN_DOMAIN
from sdort.graph.operator import AttributeReference, Call, Category, Example, Operator, any_form, outputs_only, same


def turned(call: Call, heads: str, y: str) -> str:
    """Steps from ``heads``, [batch, rows, heads, size] in float32, to y, of X's dtype and shape.

    A body cannot ask for an attribute, only hand it on; so the places of pairs are computed: those of one are
    ``apart``, 1 or half a head, and element i is the second of its pair where i / apart is odd.
    """
    value = call.attributes["interleaved"]
    given = "value_int: int = @interleaved" if isinstance(value, AttributeReference) else f"value_int = {value}"
    return f"""
      neighbours = Constant <{given}> ()
      zero = Constant <value_int = 0> ()
      one = Constant <value_int = 1> ()
      two = Constant <value_int = 2> ()
      middle = Constant <value_ints = [-2]> ()
      half_shape = Shape <start = -1> (cos)
      half = Squeeze (half_shape)
      size = Mul (half, two)
      steps = Range (zero, size, one)
      less = Sub (one, half)
      nearer = Mul (neighbours, less)
      apart = Add (half, nearer)
      part = Div (steps, apart)
      second = Mod (part, two)
      doubled = Mul (second, two)
      sign = Sub (doubled, one)
      away = Mul (sign, apart)
      other_place = Sub (steps, away)
      elements = Add (neighbours, one)
      pair = Div (steps, elements)
      angle = Mod (pair, half)
      wide_cos = Gather <axis = -1> (cos, angle)
      wide_sin = Gather <axis = -1> (sin, angle)
      row_cos = Cast <to = 1> (wide_cos)
      row_sin = Cast <to = 1> (wide_sin)
      signs = Cast <to = 1> (sign)
      signed_sin = Mul (row_sin, signs)
      head_cos = Unsqueeze (row_cos, middle)
      head_sin = Unsqueeze (signed_sin, middle)
      other = Gather <axis = -1> ({heads}, other_place)
      straight = Mul ({heads}, head_cos)
      crossed = Mul (other, head_sin)
      sum = Add (straight, crossed)
      whole = Shape (X)
      flat = Reshape (sum, whole)
      {y} = CastLike (flat, X)"""


BY_HEAD = """
      outer = Constant <value_ints = [0, 0, -1]> ()
      a_half = Shape <start = -1> (cos)
      a_head = Add (a_half, a_half)
      by_head = Concat <axis = 0> (outer, a_head)
      wide_x = Cast <to = 1> (X)
      heads = Reshape (wide_x, by_head)"""
"""Steps from X to ``heads``, [batch, rows, heads, size] in float32."""


def definition(call: Call) -> str:
    return BY_HEAD + turned(call, "heads", "Y")


OPERATOR = Operator(
    name="RotaryEmbedding",
    domain=OWN_DOMAIN,
    category=Category.ACTIVATION,
    inputs=("X", "cos", "sin"),
    outputs=("Y",),
    attributes={"interleaved": 0},
    infer=same,
    definition=definition,
    on_cpu=definition,
    stores_intermediates=outputs_only,
    float32_inputs=(),
    additive=False,
    factors=(),
    operations=3,
    kernels={"rocm": any_form},  # on CUDA ONNX Runtime's own
    unserved={},
    examples=(
        Example({"X": (2, 5, 24), "cos": (1, 5, 4), "sin": (1, 5, 4)}),
        Example({"X": (2, 5, 24), "cos": (2, 5, 4), "sin": (2, 5, 4)}, {"interleaved": 1}),
    ),
)
