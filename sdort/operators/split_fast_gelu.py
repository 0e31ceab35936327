"""sdort.SplitFastGelu: left * Gelu(right) of the halves of X, [batch, rows, 2 width], the Gelu by a hyperbolic tangent.

GEGLU (https://arxiv.org/abs/2002.05202) as T5 1.1 has it.
"""

from dataclasses import replace

from sdort.graph.operator import Call
from sdort.operators import split_silu


def definition(call: Call) -> str:
    """With ONNX Runtime's FastGelu, which GPU providers have a kernel of."""
    return split_silu.halves("active = com.microsoft.FastGelu (right)")


OPERATOR = replace(split_silu.OPERATOR, name="SplitFastGelu", definition=definition, on_cpu=definition, operations=10)
