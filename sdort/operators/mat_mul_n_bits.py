"""com.microsoft.MatMulNBits: A times a matrix in integers of a few bits, transposed (sdort.graph.group_quantized)."""

import math

from sdort.graph.domains import MICROSOFT
from sdort.graph.fact import Fact
from sdort.graph.operator import REQUIRED, Call, Category, Example, Operator, Sizes, outputs_only, runs_itself


def infer(call: Call) -> list[Fact]:
    shape = call.shape("A")
    return [Fact(call.dtype("A"), None if shape is None else (*shape[:-1], call.attributes["N"]))]


def definition(call: Call) -> str | None:
    attributes = call.attributes
    columns, rows, bits, group = (attributes[name] for name in ("K", "N", "bits", "block_size"))
    if bits not in (4, 8) or call.has("g_idx", "bias"):
        return None
    groups = -(-columns // group)
    return f"""
      rows = Constant <value_ints = [{rows}, -1]> ()
      grouped = Constant <value_ints = [{rows}, {groups}, -1]> ()
      {_integers("B", "levels", bits)}
      levels_by_row = Reshape (levels, grouped)
      number = Constant <value_ints = [{groups}]> ()
      first = Constant <value_ints = [0]> ()
      last_axis = Constant <value_ints = [1]> ()
      {_zeros(call, bits)}
      factors = Reshape (scales, grouped)
      wide = Cast <to = 1> (factors)
      centred = Sub (levels_by_row, zeros)
      weights = Mul (centred, wide)
      flat = Reshape (weights, rows)
      columns = Constant <value_ints = [{columns}]> ()
      matrix = Slice (flat, first, columns, last_axis)
      turned = Transpose <perm = [1, 0]> (matrix)
      typed = CastLike (turned, A)
      Y = MatMul (A, typed)"""


def _integers(name: str, result: str, bits: int) -> str:
    """Bytes as floats: each, or its lower and its upper half."""
    if bits == 8:
        return f"{result} = Cast <to = 1> ({name})"
    return f"""
      {name}_sixteen = Constant <value_float = 16.0> ()
      {name}_bytes = Cast <to = 1> ({name})
      {name}_shifted = Div ({name}_bytes, {name}_sixteen)
      {name}_upper = Floor ({name}_shifted)
      {name}_above = Mul ({name}_upper, {name}_sixteen)
      {name}_lower = Sub ({name}_bytes, {name}_above)
      {name}_end = Constant <value_ints = [-1]> ()
      {name}_lower_half = Unsqueeze ({name}_lower, {name}_end)
      {name}_upper_half = Unsqueeze ({name}_upper, {name}_end)
      {name}_pairs = Concat <axis = -1> ({name}_lower_half, {name}_upper_half)
      {name}_flat = Constant <value_ints = [-1]> ()
      {result} = Reshape ({name}_pairs, {name}_flat)"""


def _zeros(call: Call, bits: int) -> str:
    if not call.has("zero_points"):
        return f"zeros = Constant <value_float = {2.0 ** (bits - 1)}> ()"
    return f"""
      {_integers("zero_points", "points", bits)}
      points_by_row = Reshape (points, rows)
      needed = Slice (points_by_row, first, number, last_axis)
      zeros = Reshape (needed, grouped)"""


def operations(inputs: Sizes, outputs: Sizes) -> int | None:
    a, result = inputs[0], outputs[0]
    return 2 * math.prod(result) * a[-1] if a else None


def four_bits(call: Call) -> str | None:
    return None if call.attributes["bits"] == 4 else "MIGraphX reads MatMulNBits of 4 bits alone"


def known_form(call: Call) -> str | None:
    bits = call.attributes["bits"]
    return None if bits in (4, 8) else f"{bits} bits have no kernel everywhere, 4 and 8 have"


def _example(bits: int, group: int, columns: int, *, zeros: bool) -> Example:
    rows, groups = 6, -(-columns // group)
    stored: dict[str, tuple[int, ...]] = {"B": (rows, groups, group * bits // 8)}
    if zeros:
        stored["zero_points"] = (rows * -(-groups * bits // 8),)
    floats = {"A": (2, 5, columns), "scales": (rows * groups,)}
    return Example(floats, {"K": columns, "N": rows, "bits": bits, "block_size": group}, bytes=stored)


def channels_axis(call: Call) -> int:
    """The axis of groups of them."""
    return 1


OPERATOR = Operator(
    name="MatMulNBits",
    domain=MICROSOFT,
    category=Category.PRODUCT,
    inputs=("A", "B", "scales", "zero_points", "g_idx", "bias"),
    outputs=("Y",),
    attributes={
        "K": REQUIRED, "N": REQUIRED, "bits": 4, "block_size": REQUIRED, "accuracy_level": 0, "weight_prepacked": 0
    },
    infer=infer,
    definition=definition,
    on_cpu=runs_itself,
    stores_intermediates=outputs_only,
    float32_inputs=(),
    additive=False,
    factors=("A", "scales"),
    operations=operations,
    kernels={"rocm": known_form, "migraphx": four_bits, "cuda": known_form, "webgpu": known_form, "cpu": known_form},
    unserved={},
    channels_axis=channels_axis,
    examples=(
        _example(8, 32, 64, zeros=False),
        _example(4, 16, 40, zeros=True),
        _example(4, 32, 64, zeros=False),
    ),
)  # fmt: skip
