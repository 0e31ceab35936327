"""sdort.InterleavePhases: the image of twice the height and width of which X has the four phases, plus a bias.

X (N, H + 1 + p, W + 1 + q, 4C) is the 2x2 convolution, padded by one, of an image (N, H + p, W + q, .) whose last row
is there twice where p is 1, and whose last column where q is 1. Y is (N, 2H - p, 2W - q, C):
``Y[n, 2i + a, 2j + b] = X[n, i + a, j + b, 2a + b] + bias``. Where p is 1 the last row of Y lacks its lower neighbours:
``X[n, H - 1, .., 0] - X[n, H, .., 1] + X[n, H + 1, .., 1]``, and so the last column. ``image`` (N, H, W, .) says no
more than H and W. See :mod:`sdort.fusions.upsampling_convolution`.
"""

from sdort.graph.domains import OWN_DOMAIN
from sdort.graph.fact import Fact
from sdort.graph.operator import Call, Category, Example, Operator, outputs_only


def infer(call: Call) -> list[Fact]:
    x, image = call.shape("X"), call.shape("image")
    if x is None or image is None:
        return [Fact(call.dtype("X"))]
    height, width = (3 * small + 1 - phases for small, phases in zip(image[1:3], x[1:3], strict=True))
    return [Fact(call.dtype("X"), (x[0], height, width, x[3] // 4))]


def definition(call: Call) -> str:
    """Rows, then columns: both phases of row after row are ``slots``, of which row k of the result is k + 2 (k % 2)."""
    lines = """
      zero = Constant <value_int = 0> ()
      one = Constant <value_int = 1> ()
      two = Constant <value_int = 2> ()
      three = Constant <value_int = 3> ()
      ones = Constant <value_ints = [1]> ()
      threes = Constant <value_ints = [3]> ()
      fives = Constant <value_ints = [5]> ()
      twos = Constant <value_ints = [2]> ()
      zeros = Constant <value_ints = [0]> ()
      grid = Shape (X)
      small = Shape (image)
      many = Shape <end = 3> (X)
      parts = Constant <value_ints = [2, 2, -1]> ()
      apart_shape = Concat <axis = 0> (many, parts)
      apart = Reshape (X, apart_shape)
      turned = Transpose <perm = [0, 1, 3, 2, 4, 5]> (apart)
      n = Gather (grid, zeros)
      flat = Constant <value_ints = [-1]> ()
      grid_rows = Gather (grid, ones)
      grid_columns = Gather (grid, twos)
      slots_of_rows = Mul (grid_rows, twos)
      slots_of_columns = Mul (grid_columns, twos)
      slots_shape = Concat <axis = 0> (n, slots_of_rows, slots_of_columns, flat)
      slots0 = Reshape (turned, slots_shape)"""
    for axis in (1, 2):
        i, last = axis - 1, axis
        lines += f"""
      axis{i} = Constant <value_ints = [{axis}]> ()
      place{i} = Constant <value_int = {axis}> ()
      phases{i} = Gather (grid, place{i})
      size{i} = Gather (small, place{i})
      triple{i} = Mul (size{i}, three)
      more{i} = Add (triple{i}, one)
      end{i} = Sub (more{i}, phases{i})
      k{i} = Range (zero, end{i}, one)
      odd{i} = Mod (k{i}, two)
      shift{i} = Mul (odd{i}, two)
      from{i} = Add (k{i}, shift{i})
      main{i} = Gather <axis = {axis}> (slots{i}, from{i})
      ends{i} = Reshape (end{i}, ones)
      wrong{i} = Add (ends{i}, twos)
      behind{i} = Add (ends{i}, threes)
      right{i} = Add (behind{i}, ones)
      after{i} = Add (ends{i}, fives)
      less{i} = Slice (slots{i}, wrong{i}, behind{i}, axis{i})
      plus{i} = Slice (slots{i}, right{i}, after{i}, axis{i})
      mend{i} = Sub (plus{i}, less{i})
      mend_shape{i} = Shape <start = {axis}, end = {axis + 1}> (mend{i})
      whole{i} = Sub (ends{i}, mend_shape{i})
      head{i} = Slice (main{i}, zeros, whole{i}, axis{i})
      tail{i} = Slice (main{i}, whole{i}, ends{i}, axis{i})
      mended{i} = Add (tail{i}, mend{i})
      slots{last} = Concat <axis = {axis}> (head{i}, mended{i})"""
    return f"{lines}\n      Y = Add (slots2, bias)"


def phases(call: Call) -> str | None:
    shape = call.shape("X")
    fixed = shape and len(shape) == 4 and isinstance(shape[3], int)
    return None if fixed else "InterleavePhases needs a fixed number of channels"


OPERATOR = Operator(
    name="InterleavePhases",
    domain=OWN_DOMAIN,
    category=Category.SUM,
    inputs=("X", "bias", "image"),
    outputs=("Y",),
    attributes={},
    infer=infer,
    definition=definition,
    on_cpu=definition,
    stores_intermediates=outputs_only,
    float32_inputs=(),
    additive=False,  # what is small is a bias, as in a convolution
    factors=(),
    operations=1,
    kernels={"rocm": phases, "cuda": phases},
    unserved={},
    examples=(
        Example({"X": (2, 4, 6, 12), "bias": (3,), "image": (2, 3, 5, 7)}),
        Example({"X": (2, 5, 6, 12), "bias": (3,), "image": (2, 3, 5, 7)}),
        Example({"X": (1, 3, 3, 4), "bias": (1,), "image": (1, 1, 1, 2)}),
    ),
)
