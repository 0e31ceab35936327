"""com.microsoft.FusedMatMul: alpha * A B, either of which may be transposed; ONNX Runtime fuses it by itself."""

import math

from sdort.graph.domains import MICROSOFT
from sdort.graph.fact import Fact, broadcast
from sdort.graph.operator import Call, Category, Example, Operator, Sizes, outputs_only, runs_itself


def infer(call: Call) -> list[Fact]:
    a, b, attributes = call.shape("A"), call.shape("B"), call.attributes
    turned_batch = attributes["transBatchA"] or attributes["transBatchB"]
    if a is None or b is None or len(a) < 2 or len(b) < 2 or turned_batch:
        return [Fact(call.dtype("A"))]
    batch = broadcast(a[:-2], b[:-2])
    rows, columns = a[-1 if attributes["transA"] else -2], b[-2 if attributes["transB"] else -1]
    return [Fact(call.dtype("A"), None if batch is None else (*batch, rows, columns))]


def definition(call: Call) -> str | None:
    attributes = call.attributes
    if attributes["transBatchA"] or attributes["transBatchB"]:
        return None
    left, right = (
        f'Einsum <equation = "...ij->...ji"> ({name})' if attributes[f"trans{name}"] else f"Identity ({name})"
        for name in "AB"
    )
    return f"""
      left = {left}
      right = {right}
      product = MatMul (left, right)
      alpha = Constant <value_float = {attributes["alpha"]:.20f}> ()
      factor = CastLike (alpha, A)
      Y = Mul (product, factor)"""


def operations(inputs: Sizes, outputs: Sizes) -> int | None:
    """The inner size, whether A is turned or not, is what the result's rows leave of A's last two."""
    (a, b), result = inputs[:2], outputs[0]
    if len(a) < 2 or len(b) < 2:
        return None
    return 2 * math.prod(result[:-2]) * math.prod(a[-2:]) * result[-1]


def channels_axis(call: Call) -> int:
    return -1 if call.attributes["transB"] else -2


OPERATOR = Operator(
    name="FusedMatMul",
    domain=MICROSOFT,
    category=Category.PRODUCT,
    inputs=("A", "B"),
    outputs=("Y",),
    attributes={"alpha": 1.0, "transA": 0, "transB": 0, "transBatchA": 0, "transBatchB": 0},
    infer=infer,
    definition=definition,
    on_cpu=runs_itself,
    stores_intermediates=outputs_only,
    float32_inputs=(),
    additive=False,
    factors=("A", "B"),
    operations=operations,
    kernels={},  # sdort takes it apart (fusions/restore_fused_mat_mul.py): what it computes is to be fused otherwise
    unserved={},
    channels_axis=channels_axis,
    examples=(
        Example({"A": (2, 5, 8), "B": (2, 8, 7)}, {"alpha": 0.5}),
        Example({"A": (2, 8, 5), "B": (2, 7, 8)}, {"transA": 1, "transB": 1}),
    ),
)
