"""com.microsoft.RotaryEmbedding: pairs of elements of each head turned by the angles of a row's position.

(a + b i) (cos + i sin) for elements a and b that are neighbours (``interleaved``) or half a head apart
(https://arxiv.org/abs/2104.09864). The input is [batch, rows, heads * size], or [batch, heads, rows, size]; the tables
are [positions, size / 2]. ``position_ids`` is one number, the first row's position, or [batch, rows].
"""

from sdort.graph.domains import MICROSOFT
from sdort.graph.operator import Call, Category, Example, Operator, outputs_only, runs_itself, same

_PAIRS = """
      parted = Constant <value_ints = [0, 0, 0, -1, 2]> ()
      joined = Constant <value_ints = [0, 0, 0, -1]> ()
      last = Constant <value_ints = [-1]> ()
      pairs = Reshape (heads, parted)
      a5, b5 = Split <axis = -1, num_outputs = 2> (pairs)
      a = Squeeze (a5, last)
      b = Squeeze (b5, last)
      {0}
      real5 = Unsqueeze (real, last)
      imaginary5 = Unsqueeze (imaginary, last)
      turned5 = Concat <axis = -1> (real5, imaginary5)
      turned = Reshape (turned5, joined)"""
_HALVES = """
      a, b = Split <axis = -1, num_outputs = 2> (heads)
      {0}
      turned = Concat <axis = -1> (real, imaginary)"""
_PRODUCT = """
      ac = Mul (a, cos)
      bs = Mul (b, sin)
      real = Sub (ac, bs)
      bc = Mul (b, cos)
      as = Mul (a, sin)
      imaginary = Add (bc, as)"""
_FROM_FIRST = """
      zero = Constant <value_int = 0> ()
      one = Constant <value_int = 1> ()
      counted = Shape <start = {0}, end = {1}> (input)
      count = Squeeze (counted)
      steps = Range (zero, count, one)
      positions = Add (position_ids, steps)"""


def definition(call: Call) -> str | None:
    x, table, positions = (call.shape(name) for name in ("input", "cos_cache", "position_ids"))
    if x is None or table is None or positions is None or form(call) is not None:
        return None
    first = len(x) == 4
    size = 2 * table[-1]
    body = (_PAIRS if call.attributes["interleaved"] else _HALVES).format(_PRODUCT)
    end = "Transpose <perm = [0, 2, 1, 3]> (turned)" if first else "Reshape (turned, whole)"
    counted = _FROM_FIRST.format(*(2, 3) if first else (1, 2))
    return f"""
      {counted if len(positions) == 1 else "positions = Identity (position_ids)"}
      whole = Shape (input)
      by_head = Constant <value_ints = [0, 0, -1, {size}]> ()
      middle = Constant <value_ints = [-2]> ()
      heads = {"Transpose <perm = [0, 2, 1, 3]> (input)" if first else "Reshape (input, by_head)"}
      cos_rows = Gather (cos_cache, positions)
      sin_rows = Gather (sin_cache, positions)
      cos = Unsqueeze (cos_rows, middle)
      sin = Unsqueeze (sin_rows, middle)
      {body}
      output = {end}"""


def form(call: Call) -> str | None:
    """The reason against what no kernel here is asked for: packed batches, scales, heads that are turned in part."""
    x, table, positions = (call.shape(name) for name in ("input", "cos_cache", "position_ids"))
    if call.attributes["is_packed_batching"] or call.attributes["scale"] not in (None, 1):
        return "RotaryEmbedding of packed batches, or of a scale, is not known"
    if x is None or table is None or positions is None or len(x) not in (3, 4) or len(table) != 2:
        return "RotaryEmbedding takes three or four axes, and tables of two, that are known"
    if not isinstance(table[-1], int) or call.attributes["rotary_embedding_dim"] not in (None, 0, 2 * table[-1]):
        return "RotaryEmbedding turns whole heads of a fixed size"
    if len(x) == 4 and x[-1] != 2 * table[-1]:
        return "RotaryEmbedding turns whole heads"
    return None


OPERATOR = Operator(
    name="RotaryEmbedding",
    domain=MICROSOFT,
    category=Category.ACTIVATION,
    inputs=("input", "position_ids", "cos_cache", "sin_cache"),
    outputs=("output",),
    attributes=dict.fromkeys(("interleaved", "is_packed_batching", "num_heads", "rotary_embedding_dim", "scale")),
    infer=same,
    definition=definition,
    on_cpu=runs_itself,
    stores_intermediates=outputs_only,
    float32_inputs=(),
    additive=False,
    factors=(),
    operations=3,
    kernels={"migraphx": form, "cuda": form, "webgpu": form, "cpu": form},
    unserved={},
    examples=(
        Example({"input": (2, 5, 12), "cos_cache": (7, 2), "sin_cache": (7, 2)}, integers={"position_ids": [1]}),
        Example(
            {"input": (2, 3, 5, 8), "cos_cache": (6, 4), "sin_cache": (6, 4)},
            {"interleaved": 1},
            integers={"position_ids": [[0, 1, 2, 3, 4], [5, 4, 3, 2, 1]]},
        ),
    ),
)
