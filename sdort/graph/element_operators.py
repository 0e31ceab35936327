"""Operators that compute element by element: the one list, of which passes and the runtime make theirs."""

from __future__ import annotations

from sdort.graph.domains import MICROSOFT

UNARY = frozenset(
    """
    Abs Acos Acosh Asin Asinh Atan Atanh BitwiseNot Cast Ceil Celu Clip Cos Cosh Elu Erf Exp Floor Gelu HardSigmoid
    HardSwish Identity IsInf IsNaN LeakyRelu Log Mish Neg Not Reciprocal Relu Round Selu Shrink Sigmoid Sign Sin Sinh
    Softplus Softsign Sqrt Swish Tan Tanh ThresholdedRelu
    """.split()  # noqa: SIM905
)
"""ONNX's operators by which an element of the first input becomes the element of the output in the same place.

Further inputs, as Clip has, are scalars.
"""
BROADCAST = frozenset(
    """
    Add And BitShift BitwiseAnd BitwiseOr BitwiseXor Div Equal Greater GreaterOrEqual Less LessOrEqual Max Mean Min Mod
    Mul Or PRelu Pow Sub Sum Where Xor
    """.split()  # noqa: SIM905
)
"""ONNX's operators that do so with an element of each input, whose shapes broadcast."""
UNARY_MICROSOFT = frozenset({"FastGelu", "Gelu", "QuickGelu"})
"""ONNX Runtime's, of one input; FastGelu may have a bias too, and is none of these then."""


def is_unary(op: str, domain: str, inputs: int) -> bool:
    """Whether an operator, of ONNX or ONNX Runtime, makes each element of that of its first input."""
    return op in UNARY if not domain else domain == MICROSOFT and inputs == 1 and op in UNARY_MICROSOFT
